"""Progress of Spark jobs and streaming queries, and their reaction to Ctrl-C.

`on_progress` is called with a `JobProgress` from time to time, in the waiting thread or in a watcher thread.
"""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from sparrow.spark.runtime.session import activate
from sparrow.spark.runtime.spark_errors import translate_spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

POLL_INTERVAL_S = 0.2
"""Interval at which a query or the tasks of a job are polled."""


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a running job."""

    rows: int = 0
    """Rows read so far in this run."""
    lag: int | None = None
    """Messages not read yet; None if the source does not report it."""
    tasks: int = 0
    """Finished Spark tasks."""
    tasks_total: int = 0
    """Spark tasks known so far; there may be more later."""


ProgressCallback = Callable[[JobProgress], None]


# -- streams ----------------------------------------------------------------------------------------------------------


def follow_query(query: StreamingQuery, on_progress: ProgressCallback) -> JobProgress:
    """Wait until a query ends, and report each of its batches. On an interrupt, stop the query first."""
    last_timestamp, done = "", JobProgress()

    def report_batches() -> None:
        nonlocal last_timestamp, done
        for progress in query.recentProgress:  # the last hundred; the timestamp is the start of the batch
            if progress.timestamp > last_timestamp:
                last_timestamp, done = progress.timestamp, _add_batch(done, progress)
                on_progress(done)

    try:
        with translate_spark_errors(), deferred_interrupts() as is_interrupted:
            while not query.awaitTermination(POLL_INTERVAL_S):  # type: ignore[arg-type]
                report_batches()
                if is_interrupted():
                    raise KeyboardInterrupt
            report_batches()
    except BaseException:
        query.stop()
        raise
    return done


def _add_batch(done: JobProgress, progress: StreamingQueryProgress) -> JobProgress:
    return JobProgress(rows=done.rows + progress.numInputRows, lag=query_lag(progress))


def query_lag(progress: StreamingQueryProgress) -> int | None:
    """Return the messages that a query has not read yet; None if no source reports it."""
    counts = [
        lag for source in progress.sources if (lag := lag_between(source.endOffset, source.latestOffset)) is not None
    ]
    return sum(counts) if counts else None


def lag_between(end: str | None, latest: str | None) -> int | None:
    """Return the messages between two offsets as Spark reports them; None if they are not from our source."""
    end_offsets, latest_offsets = parse_offset(end), parse_offset(latest)
    if end_offsets is None or latest_offsets is None:
        return None
    return sum(max(0, at - end_offsets.get(queue, at)) for queue, at in latest_offsets.items())


def parse_offset(offset: str | None) -> Mapping[str, int] | None:
    """Return the next offset of each queue, `topic/broker/queue id`; None if it is not from our source."""
    try:
        found: Any = msgspec.json.decode(offset or "null")
        if isinstance(found, str):  # Spark quotes offsets of Python sources
            found = msgspec.json.decode(found)
        return msgspec.convert(found["q"], dict[str, int])
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError):
        return None


# -- batch jobs -------------------------------------------------------------------------------------------------------


@contextmanager
def watch_job(spark: SparkSession, on_progress: ProgressCallback, *, what: str = "sparrow") -> Iterator[None]:
    """Report the tasks of the jobs started inside, and cancel them on an interrupt."""
    activate(spark)
    context, group = spark.sparkContext, f"{what}-{uuid.uuid4().hex[:12]}"
    tracker, is_over = context.statusTracker(), threading.Event()

    def report_tasks() -> None:
        tasks = total = 0
        for job_id in tracker.getJobIdsForGroup(group):
            job = tracker.getJobInfo(job_id)
            for stage in map(tracker.getStageInfo, job.stageIds if job is not None else ()):
                if stage is not None:
                    tasks, total = tasks + stage.numCompletedTasks, total + stage.numTasks
        on_progress(JobProgress(tasks=tasks, tasks_total=total))

    def watch(is_interrupted: Callable[[], bool]) -> None:
        while not is_over.wait(POLL_INTERVAL_S):
            try:
                report_tasks()
                if is_interrupted():
                    context.cancelJobGroup(group)
            except Exception:  # the session is being stopped; the waiting thread gets the error
                return

    context.setJobGroup(group, what, interruptOnCancel=True)
    with deferred_interrupts() as is_interrupted:
        watcher = threading.Thread(target=watch, args=(is_interrupted,), name="sparrow-job-watch", daemon=True)
        watcher.start()
        try:
            with translate_spark_errors():
                yield
        except BaseException as failure:
            with suppress(Exception):  # the session may be stopped; the original error matters
                context.cancelJobGroup(group)
            if is_interrupted():
                raise KeyboardInterrupt from failure
            raise
        finally:
            is_over.set()
            watcher.join()
            with suppress(Exception):  # a thread keeps its job group until another one is set
                for name in ("spark.jobGroup.id", "spark.job.description"):
                    context.setLocalProperty(name, None)  # type: ignore[arg-type]
    report_tasks()


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """Record Ctrl-C, and act on it between two calls to Java: an interrupt within a call breaks the gateway.

    A second Ctrl-C has its normal effect. Outside of the main thread there are no signals.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted.is_set
        return

    def record(*_: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, previous_handler)

    previous_handler = signal.getsignal(signal.SIGINT) or signal.SIG_DFL
    signal.signal(signal.SIGINT, record)
    try:
        yield interrupted.is_set
    finally:
        signal.signal(signal.SIGINT, previous_handler)
