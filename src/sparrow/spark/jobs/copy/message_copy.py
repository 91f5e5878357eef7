"""Writing messages again, every byte of them: what `restore` and `replay` have in common.

1. Body, properties, flags and time of birth are those of the original. Offset and store time are new, and so is the
   host that it comes from: brokers write down whom they see.
2. All messages of a queue go to one queue of the target, in their order: to the one of the same number on the broker of
   the same name where there is one, else to another that depends on nothing but the original's queue.
3. A piece of work has a key. Once it is written, the brokers' ledgers refuse it: running it again writes nothing.
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
from sparrow.spark.options import parse_client_options, select_client_options
from sparrow.spark.runtime.progress import ProgressCallback, watch_job
from sparrow.spark.sink.brokers import SinkBrokers
from sparrow.wire.bodies import QueueRef

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparrow.client.topic_route import TopicRoute

COPY_SINK_NAME = "copies"
COPIED_COLUMNS = ("properties_raw", "flag", "sys_flag", "born_timestamp", "reconsume_times")
"""What is written as it was read, besides the body."""
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
"""What is read to write a copy, and to choose which."""
COUNT_COLUMNS = ("keys", "msg_id", "topic", "broker", "queue_id", "queue_offset", "store_timestamp")
"""What is read only to count them."""
_PATIENCE_MS = 60_000


class QueueCount(msgspec.Struct, frozen=True):
    """Messages of one queue."""

    queue: QueueRef
    rows: int
    first: int
    last: int
    """Offsets, both included."""


class CopyResult(msgspec.Struct, frozen=True):
    counts: tuple[QueueCount, ...]
    """What was found, queue by queue."""
    written: int
    """Messages that were added to topics: none in a dry run, or if the same work was done before."""
    was_done: bool = False
    """The same work was done before."""

    @property
    def rows(self) -> int:
        return sum(count.rows for count in self.counts)


def count_by_queue(messages: DataFrame) -> tuple[QueueCount, ...]:
    """How many there are in each queue."""
    from pyspark.sql import functions as F

    found = (
        messages.groupBy("topic", "broker", "queue_id")
        .agg(F.count("*").alias("rows"), F.min("queue_offset").alias("first"), F.max("queue_offset").alias("last"))
        .collect()
    )
    counts = (QueueCount(QueueRef(r.topic, r.broker, r.queue_id), r["rows"], r.first, r.last) for r in found)
    return tuple(sorted(counts, key=lambda count: count.queue))


class CopyTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where copies go."""

    name_servers: str
    topic: str | None = None
    """None: to the topic each came from."""
    job_key: str
    options: dict[str, str] = {}
    """More for the sink: `sparrow.accessKey` and the like."""

    def topic_of(self, source: str) -> str:
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
    """Write the messages to the target. `raw`: their property strings, if those are to differ from the originals'."""
    if not counts:
        return CopyResult((), 0)
    client = CLIENT_POOL.get(parse_client_options(target.name_servers, select_client_options(target.options)))
    routes = client.run(_routes(client, target, counts, one_queue=one_queue))
    if client.run(_was_done(client, routes.values(), target.job_key)):
        return CopyResult(tuple(counts), 0, was_done=True)
    places = {} if one_queue else assign_queues([count.queue for count in counts], routes, target)
    with watch_job(spark, on_progress, what="copy"):
        (
            _placed_rows(spark, messages, places, raw, routes, target)
            .write.format("sparrow")
            .mode("append")
            .options(
                nameserver=target.name_servers,
                delivery="exactlyOnce",
                jobKey=target.job_key,
                sinkName=COPY_SINK_NAME,
                **select_client_options(target.options),
            )
            .save()
        )
    return CopyResult(tuple(counts), sum(count.rows for count in counts))


def _placed_rows(
    spark: SparkSession,
    messages: DataFrame,
    places: Mapping[QueueRef, int],
    raw: Column | None,
    routes: Mapping[str, TopicRoute],
    target: CopyTarget,
) -> DataFrame:
    from pyspark.sql import functions as F

    queue = ("topic", "broker", "queue_id")
    known = [(q.topic, q.broker_name, q.queue_id, place) for q, place in places.items()]
    table = spark.createDataFrame(known, "topic string, broker string, queue_id int, place int")
    # A queue that appeared since they were counted: to any, always the same one.
    size = F.lit(min(len(route.write_queues) for route in routes.values()))
    place = F.coalesce("place", F.pmod(F.xxhash64(*queue), size).cast("int"))
    to = F.lit(target.topic) if target.topic is not None else F.col("topic")
    return (
        messages.withColumn("properties_raw", F.col("properties_raw") if raw is None else raw)
        .join(F.broadcast(table), list(queue), "left")
        # One task has all of a queue, sorted: stages are published in the order of tasks, each in its own order.
        .repartition(*queue)
        .sortWithinPartitions(*queue, "queue_offset")
        .select("body", *COPIED_COLUMNS, to.alias("topic"), place.alias("queue_id"))
    )


def assign_queues(
    sources: Sequence[QueueRef], routes: Mapping[str, TopicRoute], target: CopyTarget
) -> dict[QueueRef, int]:
    """The place of each queue's messages among the write queues of their target."""
    names = sorted({queue.broker_name for queue in sources})
    places = {}
    for queue in sources:
        route = routes[target.topic_of(queue.topic)]
        there = {(each.broker_name, each.queue_id): place for place, each in enumerate(route.write_queues)}
        brokers = sorted({each.broker_name for each in route.write_queues})
        # Another platform's brokers have other names: the first stands for the first, and so on.
        name = queue.broker_name
        if name not in brokers:
            name = brokers[names.index(name) % len(brokers)]
        number = write_queue_id(queue.queue_id) if name in route.lane_brokers else queue.queue_id
        hashed = zlib.crc32(f"{queue.broker_name}/{queue.queue_id}".encode()) % len(there)
        places[queue] = there.get((name, number), hashed)
    return places


async def _routes(
    client: PooledClient, target: CopyTarget, counts: Sequence[QueueCount], *, one_queue: bool
) -> dict[str, TopicRoute]:
    """Of every topic that is written to. One that is not there is made, with the queues that the originals had."""
    routes = {}
    for topic in sorted({target.topic_of(count.queue.topic) for count in counts}):
        own = [count.queue.queue_id for count in counts if target.topic_of(count.queue.topic) == topic]
        queues = 1 if one_queue else max(own) + 1
        brokers = SinkBrokers(client.session, patience_ms=_PATIENCE_MS, topic_queues=queues)
        await brokers.check_staging(topic)
        routes[topic] = await brokers.ensure_route(topic)
    return routes


async def _was_done(client: PooledClient, routes: Iterable[TopicRoute], job_key: str) -> bool:
    """Whether the ledgers have this work. On several brokers the sink notes when all of them do."""
    scope = f"job/{job_key}/{COPY_SINK_NAME}"
    masters = {name: address for route in routes for name, address in route.masters.items()}
    suffix = "#done" if len(masters) > 1 else ""
    noted = [await staging.query_ledger(client.session, address, scope + suffix) for address in masters.values()]
    return any(number is not None for number in noted)


def check_any_selected(counts: Sequence[QueueCount], where: str) -> None:
    if not counts:
        raise Refused(f"nothing in {where} is meant by this selection")
