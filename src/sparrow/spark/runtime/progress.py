"""Watching Spark work: how far a job is, and in one sentence why it failed.

`told` is called with a `JobProgress` now and then, in the thread that waits or in one of the watcher's own.
"""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from sparrow.spark.runtime.spark_errors import translate_spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

POLL_INTERVAL_S = 0.2
"""Between two looks at a query or at a job's tasks."""


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is."""

    rows: int = 0
    """Read so far, in this run."""
    lag: int | None = None
    """Messages that are there and not yet read, where the source tells."""
    tasks: int = 0
    """Of Spark's tasks, those that are finished."""
    tasks_total: int = 0
    """Those known by now; there may be more to come."""


ProgressCallback = Callable[[JobProgress], None]


# -- streams ----------------------------------------------------------------------------------------------------------


def follow_query(query: StreamingQuery, on_progress: ProgressCallback) -> JobProgress:
    """Wait until a query ends, and tell of each of its batches. Interrupted, the query is stopped first."""
    heard, done = "", JobProgress()

    def hear() -> None:
        nonlocal heard, done
        for progress in query.recentProgress:  # the last hundred; one is of the time at which its batch began
            if progress.timestamp > heard:
                heard, done = progress.timestamp, _after(done, progress)
                on_progress(done)

    try:
        with translate_spark_errors(), interrupt_requested() as is_asked:
            while not query.awaitTermination(POLL_INTERVAL_S):  # type: ignore[arg-type]
                hear()
                if is_asked():
                    raise KeyboardInterrupt
            hear()
    except BaseException:
        query.stop()
        raise
    return done


def _after(done: JobProgress, progress: StreamingQueryProgress) -> JobProgress:
    return JobProgress(rows=done.rows + progress.numInputRows, lag=query_lag(progress))


def query_lag(progress: StreamingQueryProgress) -> int | None:
    """What the topics of a query hold behind the end of its last batch; None: no topic told."""
    counts = [
        lag for source in progress.sources if (lag := lag_between(source.endOffset, source.latestOffset)) is not None
    ]
    return sum(counts) if counts else None


def lag_between(end: str | None, latest: str | None) -> int | None:
    """Messages between two offsets of our source, as Spark reports them. None: they are not of our source."""
    ends, latests = _places(end), _places(latest)
    if ends is None or latests is None:
        return None
    return sum(max(0, at - ends.get(queue, at)) for queue, at in latests.items())


def _places(said: str | None) -> Mapping[str, int] | None:
    try:
        found: Any = msgspec.json.decode(said or "null")
        if isinstance(found, str):  # Spark puts offsets of Python sources into quotes
            found = msgspec.json.decode(found)
        return msgspec.convert(found["q"], dict[str, int])
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError):
        return None


# -- batch jobs -------------------------------------------------------------------------------------------------------


@contextmanager
def watch_job(spark: SparkSession, on_progress: ProgressCallback, *, what: str = "sparrow") -> Iterator[None]:
    """Tell of the tasks of whatever runs inside, and stop it when it is interrupted."""
    context, group = spark.sparkContext, f"{what}-{uuid.uuid4().hex[:12]}"
    tracker, is_over = context.statusTracker(), threading.Event()

    def look() -> None:
        tasks = total = 0
        for job_id in tracker.getJobIdsForGroup(group):
            job = tracker.getJobInfo(job_id)
            for stage in map(tracker.getStageInfo, job.stageIds if job is not None else ()):
                if stage is not None:
                    tasks, total = tasks + stage.numCompletedTasks, total + stage.numTasks
        on_progress(JobProgress(tasks=tasks, tasks_total=total))

    def watch(is_asked: Callable[[], bool]) -> None:
        while not is_over.wait(POLL_INTERVAL_S):
            try:
                look()
                if is_asked():
                    context.cancelJobGroup(group)
            except Exception:  # the session is being stopped, and whoever waits for the job hears of it
                return

    context.setJobGroup(group, what, interruptOnCancel=True)
    with interrupt_requested() as is_asked:
        watcher = threading.Thread(target=watch, args=(is_asked,), name="sparrow-job-watch", daemon=True)
        watcher.start()
        try:
            with translate_spark_errors():
                yield
        except BaseException as failure:
            with suppress(Exception):  # the session may be gone; what matters is why
                context.cancelJobGroup(group)
            if is_asked():
                raise KeyboardInterrupt from failure
            raise
        finally:
            is_over.set()
            watcher.join()
            with suppress(Exception):  # a thread keeps its group until it is told another one
                for name in ("spark.jobGroup.id", "spark.job.description"):
                    context.setLocalProperty(name, None)  # type: ignore[arg-type]
    look()


@contextmanager
def interrupt_requested() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is noted, and acted on between two calls of Java: in the middle of one it leaves both sides confused.

    A second Ctrl-C does what it did before. In other threads than the main one nobody can ask.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def note(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL
    signal.signal(signal.SIGINT, note)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


# -- failures ---------------------------------------------------------------------------------------------------------
