"""The latest message of each key: topics as a table of what is, instead of a log of what happened.

    PATH/_current        which version counts, and up to which offsets it was made
    PATH/_planned        up to which offsets the next one goes, while it is made
    PATH/v00000012/      the table, in Parquet

1. Newer is, within a queue, what has the higher offset; between queues, what was stored later, then the higher offset.
2. Each run reads only what came since the run before and merges it into a new version. `_current` is replaced in one
   step, so readers see the old table or the new one. The version before stays, for readers that have just opened it.
3. Progress and table are one file, so they cannot disagree: a run that is killed leaves the old ones, and the next run
   does the same work again.
4. To a topic: the newest message of each key that has news goes there. The same plan is written only once.
5. Messages without keys are no one's news.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sparrow.model.errors import Refused
from sparrow.spark.options import for_client
from sparrow.spark.runtime.filesystem import joined, key_of, names_in, path_exists, read_text, remove, replace_text
from sparrow.spark.runtime.progress import Told, watch_job
from sparrow.spark.source.metadata import look, places_of
from sparrow.spark.source.offset_resolution import name_of
from sparrow.spark.source.options import SourceOptions
from sparrow.spark.source.schema import TYPES
from sparrow.wire.bodies import QueueRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACE = ("topic", "broker", "queue_id", "queue_offset", "store_timestamp")
TABLE = ("keys", "body", "tags", "msg_id", "properties", "born_timestamp", *PLACE)
COPY = ("keys", "body", "properties_raw", "flag", "sys_flag", "born_timestamp", *PLACE)
KEY = ("topic", "keys")
CURRENT, PLANNED = "_current", "_planned"
_VERSIONS_KEPT = 2


class Compact(msgspec.Struct, frozen=True, kw_only=True):
    """What to compact, and where to."""

    name_servers: str
    path: str
    """Of the table; with `to_topic`, only progress is kept there."""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    to_topic: str | None = None
    drop_empty: bool = False
    """A key whose newest message has an empty body is gone."""
    options: dict[str, str] = {}

    def __post_init__(self) -> None:
        if bool(self.topics) == (self.pattern is not None):
            raise Refused("say which topics to compact: their names, or a pattern, and not both")
        if self.to_topic in self.topics:
            raise Refused(f"{self.to_topic!r} cannot be compacted into itself: name another topic")


class Version(msgspec.Struct, frozen=True):
    """What `_current` and `_planned` say."""

    number: int
    next: dict[str, int]
    """topic/broker/queue -> the offset to be read next."""

    @property
    def folder(self) -> str:
        return f"v{self.number:08}"


class Compacted(msgspec.Struct, frozen=True):
    read: int
    """Messages that came since the run before."""
    keys: int
    """In the table now; of a topic, messages written."""
    version: int


def run(spark: SparkSession, compact: Compact, *, told: Told) -> Compacted:
    """Bring the table, or the topic, up to what the topics hold now."""
    current = _said(spark, joined(compact.path, CURRENT)) or Version(0, {})
    ranges, planned = _plan(spark, compact, current)
    read = sum(end - start for start, end in ranges.values())
    if not read:
        there = _known(spark, compact, current)
        return Compacted(0, there.count() if there is not None else 0, current.number)
    news = messages(spark, compact, ranges)
    with watch_job(spark, told, what="compact"):
        if compact.to_topic is None:
            keys = _write_table(spark, compact, news, current, planned)
        else:
            keys = _write_topic(compact, news, planned)
    replace_text(spark, joined(compact.path, CURRENT), msgspec.json.encode(planned).decode())
    remove(spark, joined(compact.path, PLANNED))
    _sweep(spark, compact.path, planned.number)
    return Compacted(read, keys, planned.number)


def table(spark: SparkSession, path: str) -> DataFrame:
    """The table as it is now."""
    current = _said(spark, joined(path, CURRENT))
    if current is None or not path_exists(spark, joined(path, current.folder)):
        raise Refused(f"there is no compacted table at {path}")
    return spark.read.parquet(joined(path, current.folder))


def latest(messages: DataFrame) -> DataFrame:
    """One row for each key of each topic: the newest."""
    from pyspark.sql import functions as F

    columns = [name for name in messages.columns if name not in KEY]
    in_queue = (
        messages.where(F.length("keys") > 0)
        .groupBy(*KEY, "broker", "queue_id")
        .agg(F.max_by(F.struct(*columns), "queue_offset").alias("row"))
    )
    order = F.struct("row.store_timestamp", "row.queue_offset", "row.broker", "row.queue_id")
    newest = in_queue.groupBy(*KEY).agg(F.max_by("row", order).alias("row"))
    return newest.select(*KEY, "row.*").select(*messages.columns)


def without_empty(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.where(F.length("body") > 0)


# -- reading ----------------------------------------------------------------------------------------------------------

Ranges = dict[QueueRef, tuple[int, int]]


def _plan(spark: SparkSession, compact: Compact, current: Version) -> tuple[Ranges, Version]:
    """What the next version is made of. A plan that was made before and not carried out is kept to."""
    which = {"subscribe": ",".join(compact.topics)} if compact.topics else {"subscribePattern": str(compact.pattern)}
    options = SourceOptions.of({**which, "nameserver": compact.name_servers, **compact.options})
    heads = look(options, places_of(options), is_fresh=True)
    ends = {name_of(queue): head.end for queue, head in heads.items()}
    planned = _said(spark, joined(compact.path, PLANNED))
    if planned is None or planned.number != current.number + 1:
        planned = Version(current.number + 1, current.next | ends)
        is_new = True
    else:
        is_new = False
    ranges = {}
    for queue, head in heads.items():
        name = name_of(queue)
        if name in planned.next:
            ranges[queue] = (current.next.get(name, head.first), planned.next[name])
    if is_new and any(start < end for start, end in ranges.values()):
        replace_text(spark, joined(compact.path, PLANNED), msgspec.json.encode(planned).decode())
    return ranges, planned


def messages(spark: SparkSession, compact: Compact, ranges: Ranges) -> DataFrame:
    """What came since the run before."""
    assign: dict[str, dict[str, list[int]]] = {}
    starts: dict[str, dict[str, dict[str, int]]] = {}
    ends: dict[str, dict[str, dict[str, int]]] = {}
    for queue, (start, end) in ranges.items():
        assign.setdefault(queue.topic, {}).setdefault(queue.broker_name, []).append(queue.queue_id)
        for said, offset in ((starts, start), (ends, end)):
            said.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    is_copy = compact.to_topic is not None
    return (
        spark.read.format("sparrow")
        .schema(", ".join(f"{name} {TYPES[name]}" for name in (COPY if is_copy else TABLE)))
        .options(
            nameserver=compact.name_servers,
            assign=msgspec.json.encode(assign).decode(),
            startingOffsets=msgspec.json.encode(starts).decode(),
            endingOffsets=msgspec.json.encode(ends).decode(),
            decompress=str(not is_copy).lower(),
            **compact.options,
        )
        .load()
    )


# -- writing ----------------------------------------------------------------------------------------------------------


def _write_table(spark: SparkSession, compact: Compact, news: DataFrame, current: Version, planned: Version) -> int:
    known = _known(spark, compact, current)
    rows = latest(news if known is None else known.unionByName(news))
    if compact.drop_empty:
        rows = without_empty(rows)
    folder = joined(compact.path, planned.folder)
    rows.write.mode("overwrite").option("compression", "zstd").parquet(folder)
    return spark.read.parquet(folder).count()


def _known(spark: SparkSession, compact: Compact, current: Version) -> DataFrame | None:
    folder = joined(compact.path, current.folder)
    return spark.read.parquet(folder) if current.number and path_exists(spark, folder) else None


def _write_topic(compact: Compact, news: DataFrame, planned: Version) -> int:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    rows = latest(news)
    if compact.drop_empty:
        rows = without_empty(rows)
    seen = Observation()
    key = key_of("compact", (msgspec.structs.replace(compact, options={}), planned))
    (
        rows.select("body", "keys", "properties_raw", "flag", "sys_flag", "born_timestamp")
        .observe(seen, F.count("*").alias("rows"))
        .write.format("sparrow")
        .mode("append")
        .options(
            nameserver=compact.name_servers,
            topic=compact.to_topic,
            delivery="exactlyOnce",
            jobKey=key,
            **for_client(compact.options),
        )
        .save()
    )
    return int(seen.get["rows"])


def _said(spark: SparkSession, path: str) -> Version | None:
    text = read_text(spark, path)
    try:
        return None if text is None else msgspec.json.decode(text, type=Version)
    except msgspec.DecodeError as cause:
        raise Refused(f"{path} is not what a compaction leaves behind: {cause}") from cause


def _sweep(spark: SparkSession, path: str, number: int) -> None:
    """Versions that nobody reads any more, and those of runs that were killed."""
    kept = {Version(number - back, {}).folder for back in range(_VERSIONS_KEPT)}
    for name in names_in(spark, path):
        if name.startswith("v") and name[1:].isdecimal() and name not in kept:
            remove(spark, joined(path, name))
