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
from sparrow.spark.jobs.job_keys import derive_job_key
from sparrow.spark.options import select_client_options
from sparrow.spark.runtime.filesystem import join_path, list_names, path_exists, read_text, remove_path, replace_text
from sparrow.spark.runtime.progress import ProgressCallback, watch_job
from sparrow.spark.source.metadata import fetch_extents, open_metadata
from sparrow.spark.source.offset_resolution import format_queue_name
from sparrow.spark.source.options import SourceOptions
from sparrow.spark.source.schema import COLUMN_TYPES
from sparrow.wire.bodies import QueueRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POSITION_COLUMNS = ("topic", "broker", "queue_id", "queue_offset", "store_timestamp")
TABLE_COLUMNS = ("keys", "body", "tags", "msg_id", "properties", "born_timestamp", *POSITION_COLUMNS)
TOPIC_COLUMNS = ("keys", "body", "properties_raw", "flag", "sys_flag", "born_timestamp", *POSITION_COLUMNS)
KEY_COLUMNS = ("topic", "keys")
CURRENT_FILE, PLAN_FILE = "_current", "_planned"
_VERSIONS_KEPT = 2


class CompactJob(msgspec.Struct, frozen=True, kw_only=True):
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


class TableVersion(msgspec.Struct, frozen=True):
    """What `_current` and `_planned` say."""

    number: int
    next: dict[str, int]
    """topic/broker/queue -> the offset to be read next."""

    @property
    def folder(self) -> str:
        return f"v{self.number:08}"


class CompactResult(msgspec.Struct, frozen=True):
    read: int
    """Messages that came since the run before."""
    keys: int
    """In the table now; of a topic, messages written."""
    version: int


def run(spark: SparkSession, compact: CompactJob, *, on_progress: ProgressCallback) -> CompactResult:
    """Bring the table, or the topic, up to what the topics hold now."""
    current = _said(spark, join_path(compact.path, CURRENT_FILE)) or TableVersion(0, {})
    ranges, planned = _plan(spark, compact, current)
    read = sum(end - start for start, end in ranges.values())
    if not read:
        there = _known(spark, compact, current)
        return CompactResult(0, there.count() if there is not None else 0, current.number)
    news = read_new_messages(spark, compact, ranges)
    with watch_job(spark, on_progress, what="compact"):
        if compact.to_topic is None:
            keys = _write_table(spark, compact, news, current, planned)
        else:
            keys = _write_topic(compact, news, planned)
    replace_text(spark, join_path(compact.path, CURRENT_FILE), msgspec.json.encode(planned).decode())
    remove_path(spark, join_path(compact.path, PLAN_FILE))
    _sweep(spark, compact.path, planned.number)
    return CompactResult(read, keys, planned.number)


def read_table(spark: SparkSession, path: str) -> DataFrame:
    """The table as it is now."""
    current = _said(spark, join_path(path, CURRENT_FILE))
    if current is None or not path_exists(spark, join_path(path, current.folder)):
        raise Refused(f"there is no compacted table at {path}")
    return spark.read.parquet(join_path(path, current.folder))


def latest_by_key(messages: DataFrame) -> DataFrame:
    """One row for each key of each topic: the newest."""
    from pyspark.sql import functions as F

    columns = [name for name in messages.columns if name not in KEY_COLUMNS]
    in_queue = (
        messages.where(F.length("keys") > 0)
        .groupBy(*KEY_COLUMNS, "broker", "queue_id")
        .agg(F.max_by(F.struct(*columns), "queue_offset").alias("row"))
    )
    order = F.struct("row.store_timestamp", "row.queue_offset", "row.broker", "row.queue_id")
    newest = in_queue.groupBy(*KEY_COLUMNS).agg(F.max_by("row", order).alias("row"))
    return newest.select(*KEY_COLUMNS, "row.*").select(*messages.columns)


def drop_empty_bodies(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.where(F.length("body") > 0)


# -- reading ----------------------------------------------------------------------------------------------------------

RangesOfQueues = dict[QueueRef, tuple[int, int]]


def _plan(spark: SparkSession, compact: CompactJob, current: TableVersion) -> tuple[RangesOfQueues, TableVersion]:
    """What the next version is made of. A plan that was made before and not carried out is kept to."""
    which = {"subscribe": ",".join(compact.topics)} if compact.topics else {"subscribePattern": str(compact.pattern)}
    options = SourceOptions.parse({**which, "nameserver": compact.name_servers, **compact.options})
    extents = fetch_extents(options, open_metadata(options), is_fresh=True)
    ends = {format_queue_name(queue): extent.end for queue, extent in extents.items()}
    planned = _said(spark, join_path(compact.path, PLAN_FILE))
    if planned is None or planned.number != current.number + 1:
        planned = TableVersion(current.number + 1, current.next | ends)
        is_new = True
    else:
        is_new = False
    ranges = {}
    for queue, extent in extents.items():
        name = format_queue_name(queue)
        if name in planned.next:
            ranges[queue] = (current.next.get(name, extent.first), planned.next[name])
    if is_new and any(start < end for start, end in ranges.values()):
        replace_text(spark, join_path(compact.path, PLAN_FILE), msgspec.json.encode(planned).decode())
    return ranges, planned


def read_new_messages(spark: SparkSession, compact: CompactJob, ranges: RangesOfQueues) -> DataFrame:
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
        .schema(", ".join(f"{name} {COLUMN_TYPES[name]}" for name in (TOPIC_COLUMNS if is_copy else TABLE_COLUMNS)))
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


def _write_table(
    spark: SparkSession, compact: CompactJob, news: DataFrame, current: TableVersion, planned: TableVersion
) -> int:
    known = _known(spark, compact, current)
    rows = latest_by_key(news if known is None else known.unionByName(news))
    if compact.drop_empty:
        rows = drop_empty_bodies(rows)
    folder = join_path(compact.path, planned.folder)
    rows.write.mode("overwrite").option("compression", "zstd").parquet(folder)
    return spark.read.parquet(folder).count()


def _known(spark: SparkSession, compact: CompactJob, current: TableVersion) -> DataFrame | None:
    folder = join_path(compact.path, current.folder)
    return spark.read.parquet(folder) if current.number and path_exists(spark, folder) else None


def _write_topic(compact: CompactJob, news: DataFrame, planned: TableVersion) -> int:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    rows = latest_by_key(news)
    if compact.drop_empty:
        rows = drop_empty_bodies(rows)
    seen = Observation()
    key = derive_job_key("compact", (msgspec.structs.replace(compact, options={}), planned))
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
            **select_client_options(compact.options),
        )
        .save()
    )
    return int(seen.get["rows"])


def _said(spark: SparkSession, path: str) -> TableVersion | None:
    text = read_text(spark, path)
    try:
        return None if text is None else msgspec.json.decode(text, type=TableVersion)
    except msgspec.DecodeError as cause:
        raise Refused(f"{path} is not what a compaction leaves behind: {cause}") from cause


def _sweep(spark: SparkSession, path: str, number: int) -> None:
    """Versions that nobody reads any more, and those of runs that were killed."""
    kept = {TableVersion(number - back, {}).folder for back in range(_VERSIONS_KEPT)}
    for name in list_names(spark, path):
        if name.startswith("v") and name[1:].isdecimal() and name not in kept:
            remove_path(spark, join_path(path, name))
