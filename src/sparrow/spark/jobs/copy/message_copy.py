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
from sparrow.spark.client_pool import LINKS, Link
from sparrow.spark.options import client_options, for_client
from sparrow.spark.runtime.progress import Told, watch_job
from sparrow.spark.sink.brokers import Brokers
from sparrow.wire.bodies import QueueRef

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparrow.client.topic_route import TopicRoute

SINK_NAME = "copies"
COPIED = ("properties_raw", "flag", "sys_flag", "born_timestamp", "reconsume_times")
"""What is written as it was read, besides the body."""
COLUMNS = ("body", *COPIED, "keys", "msg_id", "topic", "broker", "queue_id", "queue_offset", "store_timestamp")
"""What is read to write a copy, and to choose which."""
COUNTED = ("keys", "msg_id", "topic", "broker", "queue_id", "queue_offset", "store_timestamp")
"""What is read only to count them."""
_PATIENCE_MS = 60_000


class Count(msgspec.Struct, frozen=True):
    """Messages of one queue."""

    queue: QueueRef
    rows: int
    first: int
    last: int
    """Offsets, both included."""


class Copied(msgspec.Struct, frozen=True):
    counts: tuple[Count, ...]
    """What was found, queue by queue."""
    written: int
    """Messages that were added to topics: none in a dry run, or if the same work was done before."""
    was_done: bool = False
    """The same work was done before."""

    @property
    def rows(self) -> int:
        return sum(count.rows for count in self.counts)


def counted(messages: DataFrame) -> tuple[Count, ...]:
    """How many there are in each queue."""
    from pyspark.sql import functions as F

    found = (
        messages.groupBy("topic", "broker", "queue_id")
        .agg(F.count("*").alias("rows"), F.min("queue_offset").alias("first"), F.max("queue_offset").alias("last"))
        .collect()
    )
    counts = (Count(QueueRef(r.topic, r.broker, r.queue_id), r["rows"], r.first, r.last) for r in found)
    return tuple(sorted(counts, key=lambda count: count.queue))


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where copies go."""

    name_servers: str
    topic: str | None = None
    """None: to the topic each came from."""
    job_key: str
    options: dict[str, str] = {}
    """More for the sink: `sparrow.accessKey` and the like."""

    def topic_of(self, source: str) -> str:
        return self.topic or source


def copy(
    spark: SparkSession,
    messages: DataFrame,
    counts: Sequence[Count],
    target: Target,
    *,
    told: Told,
    raw: Column | None = None,
    one_queue: bool = False,
) -> Copied:
    """Write the messages to the target. `raw`: their property strings, if those are to differ from the originals'."""
    if not counts:
        return Copied((), 0)
    link = LINKS.to(client_options(target.name_servers, for_client(target.options)))
    routes = link.run(_routes(link, target, counts, one_queue=one_queue))
    if link.run(_was_done(link, routes.values(), target.job_key)):
        return Copied(tuple(counts), 0, was_done=True)
    places = {} if one_queue else placed([count.queue for count in counts], routes, target)
    with watch_job(spark, told, what="copy"):
        (
            _placed_rows(spark, messages, places, raw, routes, target)
            .write.format("sparrow")
            .mode("append")
            .options(
                nameserver=target.name_servers,
                delivery="exactlyOnce",
                jobKey=target.job_key,
                sinkName=SINK_NAME,
                **for_client(target.options),
            )
            .save()
        )
    return Copied(tuple(counts), sum(count.rows for count in counts))


def _placed_rows(
    spark: SparkSession,
    messages: DataFrame,
    places: Mapping[QueueRef, int],
    raw: Column | None,
    routes: Mapping[str, TopicRoute],
    target: Target,
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
        .select("body", *COPIED, to.alias("topic"), place.alias("queue_id"))
    )


def placed(sources: Sequence[QueueRef], routes: Mapping[str, TopicRoute], target: Target) -> dict[QueueRef, int]:
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
        number = write_queue_id(queue.queue_id) if name in route.in_lanes else queue.queue_id
        hashed = zlib.crc32(f"{queue.broker_name}/{queue.queue_id}".encode()) % len(there)
        places[queue] = there.get((name, number), hashed)
    return places


async def _routes(link: Link, target: Target, counts: Sequence[Count], *, one_queue: bool) -> dict[str, TopicRoute]:
    """Of every topic that is written to. One that is not there is made, with the queues that the originals had."""
    routes = {}
    for topic in sorted({target.topic_of(count.queue.topic) for count in counts}):
        own = [count.queue.queue_id for count in counts if target.topic_of(count.queue.topic) == topic]
        queues = 1 if one_queue else max(own) + 1
        brokers = Brokers(link.session, patience_ms=_PATIENCE_MS, topic_queues=queues)
        await brokers.check_staging(topic)
        routes[topic] = await brokers.made_route(topic)
    return routes


async def _was_done(link: Link, routes: Iterable[TopicRoute], job_key: str) -> bool:
    """Whether the ledgers have this work. On several brokers the sink notes when all of them do."""
    scope = f"job/{job_key}/{SINK_NAME}"
    masters = {name: address for route in routes for name, address in route.masters.items()}
    suffix = "#done" if len(masters) > 1 else ""
    noted = [await staging.query_ledger(link.session, address, scope + suffix) for address in masters.values()]
    return any(number is not None for number in noted)


def check_some(counts: Sequence[Count], where: str) -> None:
    if not counts:
        raise Refused(f"nothing in {where} is meant by this selection")
