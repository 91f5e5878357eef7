"""Files and folders on any file system that Spark supports, through Hadoop's FileSystem API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def join_path(path: str, *names: str) -> str:
    """Join a path or URL and names."""
    return "/".join([path.rstrip("/"), *names])


def path_exists(spark: SparkSession, path: str) -> bool:
    """Return whether a file or folder exists."""
    filesystem, path_object = _locate(spark, path)
    return bool(filesystem.exists(path_object))


def checkpoint_exists(spark: SparkSession, path: str) -> bool:
    """Return whether a query has ever run with this checkpoint."""
    return path_exists(spark, join_path(path, "metadata"))


def list_names(spark: SparkSession, path: str) -> list[str]:
    """Return the names in a folder; none if it does not exist."""
    filesystem, path_object = _locate(spark, path)
    return (
        sorted(each.getPath().getName() for each in filesystem.listStatus(path_object))
        if filesystem.exists(path_object)
        else []
    )


def read_text(spark: SparkSession, path: str) -> str | None:
    """Return the content of a small file; None if it does not exist."""
    filesystem, path_object = _locate(spark, path)
    if not filesystem.exists(path_object):
        return None
    opened = filesystem.open(path_object)
    try:
        return bytes(opened.readAllBytes()).decode()
    finally:
        opened.close()


def replace_text(spark: SparkSession, path: str, text: str) -> None:
    """Replace a small file atomically."""
    context = _jvm(spark).org.apache.hadoop.fs
    filesystem, path_object = _locate(spark, path)
    temporary = context.Path(f"{path}.new")
    written = filesystem.create(temporary, True)
    try:
        written.write(bytearray(text.encode()))
    finally:
        written.close()
    # `FileSystem.rename` does not overwrite; `FileContext.rename` does, atomically where the file system supports it.
    replacing = spark.sparkContext._gateway.new_array(context.Options.Rename, 1)  # type: ignore[union-attr]
    replacing[0] = context.Options.Rename.OVERWRITE
    context.FileContext.getFileContext(filesystem.getUri()).rename(
        filesystem.makeQualified(temporary), filesystem.makeQualified(path_object), replacing
    )


def remove_path(spark: SparkSession, path: str) -> None:
    """Delete a file, or a folder with all its content."""
    filesystem, path_object = _locate(spark, path)
    filesystem.delete(path_object, True)


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def _locate(spark: SparkSession, path: str) -> tuple[Any, Any]:
    path_object = _jvm(spark).org.apache.hadoop.fs.Path(path)
    return path_object.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()), path_object
