"""Outbox job: send a large backlog of the event bus, with one relay in every task.

1. Each task claims batches of rows with a lease, appends them in bulk, and marks them, like any relay. The relay is a
   parameter, since this package does not import the bus. Other relays can run at the same time and claim other rows.
2. At least once, as with any relay: rows that a task has sent but not marked are sent again when their lease expires,
   with the same event ids, by which receivers drop repeats. A task that Spark runs twice is just another relay.
3. Only the first event of each key can be claimed. More tasks do not speed up a backlog with few keys.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from sparrow.spark.runtime.progress import JobProgress, ProgressCallback, watch_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLAIM_ROWS = 2_000
"""Rows claimed at a time. They are sent within half a lease, whatever the size of the bodies."""
_COUNT_INTERVAL_S = 1.0
"""Interval at which the remaining events are counted."""
_COUNTS_SCHEMA = "sent long, failed long, seconds double"


class OutboxJob(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the outbox job."""

    tasks: int | None = None
    """Number of concurrent relays; None: one per core."""


class RelayCounts(NamedTuple):
    """Counts of one relay."""

    sent: int
    failed: int
    """Failed attempts; these events are retried later."""


class TaskRelay(Protocol):
    """Sends until nothing is due. It is pickled for the tasks."""

    def __call__(self, number: int) -> RelayCounts: ...


class OutboxResult(msgspec.Struct, frozen=True):
    """Result of an outbox run."""

    sent: int
    failed: int
    left: int
    """Events that are not due yet, or claimed by other relays."""
    seconds: float
    """Duration of the slowest task, without Spark's own overhead."""

    @property
    def rows_per_s(self) -> float:
        """Events sent per second, in the slowest task's time."""
        return self.sent / self.seconds if self.seconds else 0.0


def run(
    spark: SparkSession,
    arguments: OutboxJob,
    relay: TaskRelay,
    count_unsent_events: Callable[[], int],
    *,
    on_progress: ProgressCallback = lambda done: None,
) -> OutboxResult:
    """Send what is due. `count_unsent_events` is called in the driver."""
    tasks = arguments.tasks or max(1, spark.sparkContext.defaultParallelism)

    def relayed(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                started = time.monotonic()
                done = relay(number)
                columns = [[done.sent], [done.failed], [time.monotonic() - started]]
                yield pa.RecordBatch.from_arrays(
                    [pa.array(values, kind) for values, kind in zip(columns, _COUNTS_TYPES, strict=True)],
                    names=["sent", "failed", "seconds"],
                )

    work = spark.range(0, tasks, 1, tasks).mapInArrow(relayed, _COUNTS_SCHEMA)
    with watch_job(spark, lambda done: None, what="outbox"), _report_unsent(count_unsent_events, on_progress):
        rows = work.collect()
    return OutboxResult(
        sum(row["sent"] for row in rows),
        sum(row["failed"] for row in rows),
        count_unsent_events(),
        max(row["seconds"] for row in rows),
    )


_COUNTS_TYPES = (pa.int64(), pa.int64(), pa.float64())


@contextmanager
def _report_unsent(count_unsent_events: Callable[[], int], on_progress: ProgressCallback) -> Iterator[None]:
    """Report the remaining events by counting them in the database: tasks report only at their end."""
    first, is_over = count_unsent_events(), threading.Event()

    def watch() -> None:
        left = first
        while True:
            on_progress(JobProgress(rows=max(0, first - left), lag=left))
            if is_over.wait(_COUNT_INTERVAL_S):
                return
            left = count_unsent_events()

    watcher = threading.Thread(target=watch, name="sparrow-outbox-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


class BulkAppender:
    """Appends messages of any topics in bulk from a task.

    The messages are stored when `append` returns. After a lost response it retries, and brokers drop repeats.
    """

    def __init__(self, name_servers: str, *, client: dict[str, str], topic_queues: int, retry_timeout_ms: int) -> None:
        from sparrow.spark.sink.options import parse_sink_options

        self._options = parse_sink_options(
            {
                "nameServers": name_servers,
                "delivery": "idempotent",
                "chunkRows": str(CLAIM_ROWS * 10),
                "topicQueues": str(topic_queues),
                "commitTimeoutMs": str(retry_timeout_ms),
                **client,
            }
        )
        self._scope = f"outbox/{uuid.uuid4().hex}"
        self._numbers = count()

    def append(self, messages: pa.RecordBatch) -> None:
        """Append messages with the columns of a sink: body, topic, keys, sharding_key, properties."""
        from sparrow.spark.client_pool import CLIENT_POOL
        from sparrow.spark.sink.commit_messages import WriteId
        from sparrow.spark.sink.message_columns import resolve_columns
        from sparrow.spark.sink.partition_writer import WriteTask, write_partition

        layout = resolve_columns([(field.name, _SPARK_TYPES[field.type]) for field in messages.schema], self._options)
        task = WriteTask(WriteId(self._scope, next(self._numbers)), 0, can_create_topics=True)
        write_partition([messages], layout, self._options, task, CLIENT_POOL.get(self._options.client))


PROPERTIES_TYPE = pa.map_(pa.string(), pa.string())
_SPARK_TYPES = {pa.binary(): "binary", pa.string(): "string", PROPERTIES_TYPE: "map<string,string>"}
