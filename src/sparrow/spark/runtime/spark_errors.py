"""Spark's errors, shortened to one sentence."""

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
    """Spark gave up. The sentence is the innermost cause; Spark's own words are the `__cause__`."""


@contextmanager
def translate_spark_errors() -> Iterator[None]:
    """Spark's errors, most of which are traces of Java around one of Python, as a `JobFailed`."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        with _without_traces():
            yield
    except (PySparkException, Py4JError) as cause:
        raise JobFailed(summarize_error(str(cause))) from cause


_TELLERS = (
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.sql.execution.datasources.v2.AppendDataExec",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
)
"""Loggers of Spark that print every failure, which whoever waits for the job is told anyway."""


@contextmanager
def _without_traces() -> Iterator[None]:
    from pyspark import SparkContext

    with suppress(Exception):  # logging is no reason to fail
        _set_level(SparkContext._jvm, "OFF")
    try:
        yield
    finally:
        with suppress(Exception):
            _set_level(SparkContext._jvm, None)


def _set_level(jvm: Any, level: str | None) -> None:
    """None: as everybody's."""
    logging = jvm.org.apache.logging.log4j
    chosen = logging.Level.toLevel(level) if level else logging.LogManager.getRootLogger().getLevel()
    for name in _TELLERS:
        logging.core.config.Configurator.setLevel(name, chosen)


def shorten_batch_errors(write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """What `foreachBatch` is given: it fails with one short sentence, and without its causes.

    Spark looks for patterns in what comes from there, and Java's way to do that overflows the stack on a long trace.
    """

    def write_batch(batch: DataFrame, number: int) -> None:
        try:
            write(batch, number)
        except Exception as error:
            raise JobFailed(summarize_error(str(error))) from None

    return write_batch


_RAISED = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*): (?P<sentence>.+)", re.MULTILINE)


_OURS = re.compile(r"^sparrow\.[\w.]+: (?P<sentence>.+)", re.MULTILINE)


_ENDED = re.compile(r"\A\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")


_JAVA_FRAME = re.compile(r"^\s+at \S+\(.*$", re.MULTILINE)


def summarize_error(trace: str) -> str:
    """What a person should read of it: our own error if there is one, else the last Python error, else its start."""
    trace = trace.split("\nJVM stacktrace:", maxsplit=1)[0]
    ours = _OURS.findall(trace)
    if ours:
        return _short(ours[-1])
    _, is_python, python = trace.rpartition("Traceback (most recent call last):")
    if is_python and (raised := _RAISED.search(python)):
        return _short(f"{raised[1]}: {raised['sentence']}")
    lines = [line.strip() for line in _JAVA_FRAME.sub("", _ENDED.sub("", trace)).splitlines()]
    return _short(next((line for line in lines if line), "Spark gave no reason"))


def _short(sentence: str) -> str:
    return sentence.strip()[:_SENTENCE_CHARS_MAX]
