"""Files and folders on any file system that Spark supports, through Hadoop's FileSystem API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def join_path(path: str, *names: str) -> str:
    return "/".join([path.rstrip("/"), *names])


def path_exists(spark: SparkSession, path: str) -> bool:
    files, at = _found(spark, path)
    return bool(files.exists(at))


def checkpoint_exists(spark: SparkSession, path: str) -> bool:
    """Return whether a query has ever run with this checkpoint."""
    return path_exists(spark, join_path(path, "metadata"))


def list_names(spark: SparkSession, path: str) -> list[str]:
    """Return the names in a folder; none if it does not exist."""
    files, at = _found(spark, path)
    return sorted(each.getPath().getName() for each in files.listStatus(at)) if files.exists(at) else []


def read_text(spark: SparkSession, path: str) -> str | None:
    """Return the content of a small file; None if it does not exist."""
    files, at = _found(spark, path)
    if not files.exists(at):
        return None
    opened = files.open(at)
    try:
        return bytes(opened.readAllBytes()).decode()
    finally:
        opened.close()


def replace_text(spark: SparkSession, path: str, text: str) -> None:
    """Replace a small file atomically."""
    context = _jvm(spark).org.apache.hadoop.fs
    files, at = _found(spark, path)
    beside = context.Path(f"{path}.new")
    written = files.create(beside, True)
    try:
        written.write(bytearray(text.encode()))
    finally:
        written.close()
    # `FileSystem.rename` does not overwrite; `FileContext.rename` does, atomically where the file system supports it.
    replacing = spark.sparkContext._gateway.new_array(context.Options.Rename, 1)  # type: ignore[union-attr]
    replacing[0] = context.Options.Rename.OVERWRITE
    context.FileContext.getFileContext(files.getUri()).rename(
        files.makeQualified(beside), files.makeQualified(at), replacing
    )


def remove_path(spark: SparkSession, path: str) -> None:
    files, at = _found(spark, path)
    files.delete(at, True)


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def _found(spark: SparkSession, path: str) -> tuple[Any, Any]:
    at = _jvm(spark).org.apache.hadoop.fs.Path(path)
    return at.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()), at
