"""Translate Spark's errors, long Java and Python tracebacks, to one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sparrow.model.errors import SparrowError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_SENTENCE_CHARS_MAX = 2_000


class JobFailed(SparrowError):
    """A Spark job failed. The message is the innermost cause; Spark's full error is the `__cause__`."""


@contextmanager
def translate_spark_errors() -> Iterator[None]:
    """Raise `JobFailed` with a short message in place of Spark's errors."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        with _quiet_failure_loggers():
            yield
    except (PySparkException, Py4JError) as cause:
        raise JobFailed(summarize_error(str(cause))) from cause


_FAILURE_LOGGERS = (
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.sql.execution.datasources.v2.AppendDataExec",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
)
"""Spark's loggers that print every failure; the caller gets it as an exception anyway."""


@contextmanager
def _quiet_failure_loggers() -> Iterator[None]:
    from pyspark import SparkContext

    with suppress(Exception):  # logging must not fail the job
        _set_level(SparkContext._jvm, "OFF")
    try:
        yield
    finally:
        with suppress(Exception):
            _set_level(SparkContext._jvm, None)


def _set_level(jvm: Any, level: str | None) -> None:
    """Set the level of these loggers; None resets it to the level of the root logger."""
    logging = jvm.org.apache.logging.log4j
    chosen = logging.Level.toLevel(level) if level else logging.LogManager.getRootLogger().getLevel()
    for name in _FAILURE_LOGGERS:
        logging.core.config.Configurator.setLevel(name, chosen)


def shorten_batch_errors(write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Wrap a function for `foreachBatch` so that it raises one short sentence without a cause.

    Spark matches the error text against patterns, and Java's regular expressions overflow the stack on a long
    traceback.
    """

    def write_batch(batch: DataFrame, number: int) -> None:
        try:
            write(batch, number)
        except Exception as error:
            raise JobFailed(summarize_error(str(error))) from None

    return write_batch


_PYTHON_ERROR = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*): (?P<sentence>.+)", re.MULTILINE)


_SPARROW_ERROR = re.compile(r"^sparrow\.[\w.]+: (?P<sentence>.+)", re.MULTILINE)


_STREAM_FAILED_PREFIX = re.compile(r"\A\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")


_FORMAT_NOT_FOUND = re.compile(r"\[DATA_SOURCE_NOT_FOUND\][^\n]*\bsparrow\b")


_JAVA_FRAME = re.compile(r"^\s+at \S+\(.*$", re.MULTILINE)


def summarize_error(trace: str) -> str:
    """Return the essential message: our own error if there is one, else the last Python error, else the first line."""
    trace = trace.split("\nJVM stacktrace:", maxsplit=1)[0]
    if _FORMAT_NOT_FOUND.search(trace):
        return (
            'Spark does not find the format "sparrow": the Python that Spark runs beside the driver '
            "(PYSPARK_DRIVER_PYTHON, else PYSPARK_PYTHON, else python3 on the PATH) does not have Sparrow. Run "
            "`pip install 'sparrowmq[spark]'` there, or start the session with sparrow.spark.spark_session. In a thread"
            " of your own, call spark_session before you write: each thread needs an active session"
        )
    ours = _SPARROW_ERROR.findall(trace)
    if ours:
        return _truncate(ours[-1])
    _, is_python, python = trace.rpartition("Traceback (most recent call last):")
    if is_python and (raised := _PYTHON_ERROR.search(python)):
        return _truncate(f"{raised[1]}: {raised['sentence']}")
    lines = [line.strip() for line in _JAVA_FRAME.sub("", _STREAM_FAILED_PREFIX.sub("", trace)).splitlines()]
    return _truncate(next((line for line in lines if line), "Spark gave no reason"))


def _truncate(sentence: str) -> str:
    return sentence.strip()[:_SENTENCE_CHARS_MAX]
