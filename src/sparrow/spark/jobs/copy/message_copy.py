"""Exact copies of messages, exactly once: the common part of the restore and replay jobs.

1. Body, properties, flags and time of birth are those of the original. Offset, store time and born host are new; the
   broker sets them.
2. All messages of a queue go to one queue of the target, in order: the queue with the same id on the broker with the
   same name if it exists, else one that depends only on the original queue.
3. A job has a key. Once it is written, the brokers' ledgers refuse it: running it again writes nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from sparrow.client.aio.produce import staging
from sparrow.model.errors import Refused
from sparrow.model.priority import write_queue_id
from sparrow.spark.client_pool import CLIENT_POOL, PooledClient
from sparrow.spark.options import ClientOptions, parse_client_options, select_client_options
from sparrow.spark.runtime.progress import ProgressCallback, watch_job
from sparrow.spark.sink.brokers import SinkBrokers
from sparrow.wire.bodies import QueueRef

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparrow.client.topic_route import TopicRoute

COPY_SINK_NAME = "copies"
COPIED_COLUMNS = ("properties_raw", "flag", "sys_flag", "born_timestamp", "reconsume_times")
"""Columns that are copied, besides the body."""
READ_COLUMNS = (
    "body",
    *COPIED_COLUMNS,
    "keys",
    "msg_id",
    "topic",
    "broker",
    "queue_id",
    "queue_offset",
    "store_timestamp",
)
"""Columns that are read to select and to copy messages."""
COUNT_COLUMNS = ("keys", "msg_id", "topic", "broker", "queue_id", "queue_offset", "store_timestamp")
"""Columns that are read to select and to count messages."""
_RETRY_TIMEOUT_MS = 60_000


class QueueCount(msgspec.Struct, frozen=True):
    """Number and offsets of the selected messages of one queue."""

    queue: QueueRef
    rows: int
    first: int
    last: int
    """Inclusive."""


class CopyResult(msgspec.Struct, frozen=True):
    """Result of a restore or replay."""

    counts: tuple[QueueCount, ...]
    """Selected messages by queue."""
    written: int
    """Messages written: 0 in a dry run, or if the job was done before."""
    was_done: bool = False
    """The job was done before."""

    @property
    def rows(self) -> int:
        """Number of selected messages."""
        return sum(count.rows for count in self.counts)


def count_by_queue(messages: DataFrame) -> tuple[QueueCount, ...]:
    """Count the messages of each queue."""
    from pyspark.sql import functions as F

    found = (
        messages.groupBy("topic", "broker", "queue_id")
        .agg(F.count("*").alias("rows"), F.min("queue_offset").alias("first"), F.max("queue_offset").alias("last"))
        .collect()
    )
    counts = (QueueCount(QueueRef(r.topic, r.broker, r.queue_id), r["rows"], r.first, r.last) for r in found)
    return tuple(sorted(counts, key=lambda count: count.queue))


class CopyTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Target of the copies."""

    name_servers: str
    topic: str | None = None
    """None: the topic of the original."""
    job_key: str
    options: dict[str, str] = {}
    """More options for the sink, such as `sparrow.accessKey`."""

    @property
    def client(self) -> ClientOptions:
        """How to reach the brokers."""
        return parse_client_options(self.name_servers, self.options)

    def topic_of(self, source: str) -> str:
        """Return the target topic for a source topic."""
        return self.topic or source


def copy_messages(
    spark: SparkSession,
    messages: DataFrame,
    counts: Sequence[QueueCount],
    target: CopyTarget,
    *,
    on_progress: ProgressCallback,
    raw: Column | None = None,
    one_queue: bool = False,
) -> CopyResult:
    """Write the messages to the target. `raw`: a column with changed property strings."""
    if not counts:
        return CopyResult((), 0)
    client = CLIENT_POOL.get(target.client)
    routes = client.run(_routes(client, target, counts, one_queue=one_queue))
    if client.run(_was_done(client, routes.values(), target.job_key)):
        return CopyResult(tuple(counts), 0, was_done=True)
    queue_indexes = {} if one_queue else assign_queues([count.queue for count in counts], routes, target)
    with watch_job(spark, on_progress, what="copy"):
        (
            _target_rows(spark, messages, queue_indexes, raw, routes, target)
            .write.format("sparrow")
            .mode("append")
            .options(
                nameServers=target.name_servers,
                delivery="exactlyOnce",
                jobKey=target.job_key,
                sinkName=COPY_SINK_NAME,
                **select_client_options(target.options),
            )
            .save()
        )
    return CopyResult(tuple(counts), sum(count.rows for count in counts))


def _target_rows(
    spark: SparkSession,
    messages: DataFrame,
    queue_indexes: Mapping[QueueRef, int],
    raw: Column | None,
    routes: Mapping[str, TopicRoute],
    target: CopyTarget,
) -> DataFrame:
    from pyspark.sql import functions as F

    queue = ("topic", "broker", "queue_id")
    known = [(q.topic, q.broker_name, q.queue_id, place) for q, place in queue_indexes.items()]
    table = spark.createDataFrame(known, "topic string, broker string, queue_id int, place int")
    # A queue that was created after the count: any queue, but always the same one.
    size = F.lit(min(len(route.write_queues) for route in routes.values()))
    place = F.coalesce("place", F.pmod(F.xxhash64(*queue), size).cast("int"))
    to = F.lit(target.topic) if target.topic is not None else F.col("topic")
    return (
        messages.withColumn("properties_raw", F.col("properties_raw") if raw is None else raw)
        .join(F.broadcast(table), list(queue), "left")
        # One task has all messages of a queue, sorted. Stages are published in the order of the tasks.
        .repartition(*queue)
        .sortWithinPartitions(*queue, "queue_offset")
        .select("body", *COPIED_COLUMNS, to.alias("topic"), place.alias("queue_id"))
    )


def assign_queues(
    sources: Sequence[QueueRef], routes: Mapping[str, TopicRoute], target: CopyTarget
) -> dict[QueueRef, int]:
    """Return the index of the target write queue for each source queue."""
    names = sorted({queue.broker_name for queue in sources})
    queue_indexes = {}
    for queue in sources:
        route = routes[target.topic_of(queue.topic)]
        indexes = {(each.broker_name, each.queue_id): place for place, each in enumerate(route.write_queues)}
        brokers = sorted({each.broker_name for each in route.write_queues})
        # Brokers of another cluster have other names: the first source broker maps to the first target broker, and so
        # on.
        name = queue.broker_name
        if name not in brokers:
            name = brokers[names.index(name) % len(brokers)]
        number = write_queue_id(queue.queue_id) if name in route.lane_brokers else queue.queue_id
        hashed = zlib.crc32(f"{queue.broker_name}/{queue.queue_id}".encode()) % len(indexes)
        queue_indexes[queue] = indexes.get((name, number), hashed)
    return queue_indexes


async def _routes(
    client: PooledClient, target: CopyTarget, counts: Sequence[QueueCount], *, one_queue: bool
) -> dict[str, TopicRoute]:
    """Return the routes of all target topics. Missing topics are created with as many queues as the originals have."""
    routes = {}
    for topic in sorted({target.topic_of(count.queue.topic) for count in counts}):
        own = [count.queue.queue_id for count in counts if target.topic_of(count.queue.topic) == topic]
        queues = 1 if one_queue else max(own) + 1
        brokers = SinkBrokers(client.session, retry_timeout_ms=_RETRY_TIMEOUT_MS, topic_queues=queues)
        await brokers.check_staging(topic)
        routes[topic] = await brokers.ensure_route(topic)
    return routes


async def _was_done(client: PooledClient, routes: Iterable[TopicRoute], job_key: str) -> bool:
    """Return whether the ledgers contain the job. With several brokers, the sink records its end as `#done`."""
    scope = f"job/{job_key}/{COPY_SINK_NAME}"
    masters = {name: address for route in routes for name, address in route.masters.items()}
    suffix = "#done" if len(masters) > 1 else ""
    noted = [await staging.query_ledger(client.session, address, scope + suffix) for address in masters.values()]
    return any(number is not None for number in noted)


def check_any_selected(counts: Sequence[QueueCount], where: str) -> None:
    """Raise `Refused` if no messages are selected."""
    if not counts:
        raise Refused(f"no messages selected in {where}: check the topics, times, offsets and keys")
