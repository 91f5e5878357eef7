"""A large backlog of the event bus to its topics: a relay in every task.

1. Each task claims a lot of rows for a while, has it appended in bulk, and marks it, as a relay does; what does so is
   handed in, since this room does not know the bus. Relays that run meanwhile have the other rows.
2. At least once, as with relays: a task that dies after it has sent and before it has marked leaves rows that are sent
   again when their lease is over, under the same event ids, by which receivers drop repeats. So a task that Spark runs
   twice, or again, is just one more relay.
3. Of the events with one key only the first can be claimed. A backlog of few keys is not sent faster by more tasks.
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
"""Claimed together. A lot is sent within half a lease, whatever the bodies' size."""
_LOOK_S = 1.0
"""Between two counts of what is left."""
_COUNTED = "sent long, failed long, seconds double"


class OutboxJob(msgspec.Struct, frozen=True, kw_only=True):
    tasks: int | None = None
    """Relays side by side; None: one for each core."""


class RelayCounts(NamedTuple):
    """What one relay did."""

    sent: int
    failed: int
    """Attempts that failed: those events are tried again later, by whoever comes."""


class TaskRelay(Protocol):
    """Sends until nothing is due. Goes to the tasks by pickle."""

    def __call__(self, number: int) -> RelayCounts: ...


class OutboxResult(msgspec.Struct, frozen=True):
    sent: int
    failed: int
    left: int
    """Events that are not due yet, or in other hands."""
    seconds: float
    """Of the slowest task, Spark's own time not counted."""

    @property
    def rows_per_s(self) -> float:
        return self.sent / self.seconds if self.seconds else 0.0


def run(
    spark: SparkSession,
    arguments: OutboxJob,
    relay: TaskRelay,
    count_unsent_events: Callable[[], int],
    *,
    on_progress: ProgressCallback = lambda done: None,
) -> OutboxResult:
    """Send what is due. `count_unsent_events` counts, in the driver, what is not sent yet."""
    tasks = arguments.tasks or max(1, spark.sparkContext.defaultParallelism)

    def relayed(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                begun = time.monotonic()
                done = relay(number)
                columns = [[done.sent], [done.failed], [time.monotonic() - begun]]
                yield pa.RecordBatch.from_arrays(
                    [pa.array(values, kind) for values, kind in zip(columns, _KINDS, strict=True)],
                    names=["sent", "failed", "seconds"],
                )

    work = spark.range(0, tasks, 1, tasks).mapInArrow(relayed, _COUNTED)
    with watch_job(spark, lambda done: None, what="outbox"), _counting(count_unsent_events, on_progress):
        rows = work.collect()
    return OutboxResult(
        sum(row["sent"] for row in rows),
        sum(row["failed"] for row in rows),
        count_unsent_events(),
        max(row["seconds"] for row in rows),
    )


_KINDS = (pa.int64(), pa.int64(), pa.float64())


@contextmanager
def _counting(count_unsent_events: Callable[[], int], on_progress: ProgressCallback) -> Iterator[None]:
    """Tells what is left, as the database sees it: tasks say nothing before their end."""
    first, is_over = count_unsent_events(), threading.Event()

    def watch() -> None:
        left = first
        while True:
            on_progress(JobProgress(rows=max(0, first - left), lag=left))
            if is_over.wait(_LOOK_S):
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
    """Messages of any topics, appended in bulk from inside a task.

    What is posted is there when `post` returns. When no answer comes it is asked again, and not appended twice.
    """

    def __init__(self, name_servers: str, *, client: dict[str, str], topic_queues: int, patience_ms: int) -> None:
        from sparrow.spark.sink.options import parse_sink_options

        self._options = parse_sink_options(
            {
                "nameserver": name_servers,
                "delivery": "idempotent",
                "chunkRows": str(CLAIM_ROWS * 10),
                "topicQueues": str(topic_queues),
                "commitTimeoutMs": str(patience_ms),
                **client,
            }
        )
        self._scope = f"outbox/{uuid.uuid4().hex}"
        self._numbers = count()

    def append(self, messages: pa.RecordBatch) -> None:
        """Columns are those of a sink: body, topic, keys, sharding_key, properties."""
        from sparrow.spark.client_pool import CLIENT_POOL
        from sparrow.spark.sink.commit_messages import WriteId
        from sparrow.spark.sink.message_columns import resolve_columns
        from sparrow.spark.sink.partition_writer import WriteTask, write_partition

        layout = resolve_columns([(field.name, _IN_SPARK[field.type]) for field in messages.schema], self._options)
        task = WriteTask(WriteId(self._scope, next(self._numbers)), 0, can_create_topics=True)
        write_partition([messages], layout, self._options, task, CLIENT_POOL.get(self._options.client))


PROPERTIES_TYPE = pa.map_(pa.string(), pa.string())
_IN_SPARK = {pa.binary(): "binary", pa.string(): "string", PROPERTIES_TYPE: "map<string,string>"}
