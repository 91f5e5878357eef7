"""Compaction job: keep the latest message of each key, as a Parquet table or in a topic.

    PATH/_current        the current version, and the offsets up to which it was built
    PATH/_planned        the offsets up to which the next version goes, while it is built
    PATH/v00000012/      the table, in Parquet

1. Within a queue the message with the higher offset is newer; between queues the one stored later, then the one with
   the higher offset.
2. Each run reads only what arrived since the run before and merges it into a new version. `_current` is replaced
   atomically, so readers see the old or the new table. The previous version is kept for readers that have opened it.
3. Version and progress are in one file, so they always match: a killed run changes neither, and the next run repeats
   its work.
4. With a target topic, the latest message of each changed key is written to it. A plan is written once only.
5. Messages without keys are ignored.
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
    """Arguments of the compaction job."""

    name_servers: str
    path: str
    """The folder of the table; with `to_topic` it holds only the progress."""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    to_topic: str | None = None
    drop_empty: bool = False
    """Remove keys whose latest message has an empty body (a tombstone)."""
    options: dict[str, str] = {}

    def __post_init__(self) -> None:
        if bool(self.topics) == (self.pattern is not None):
            raise Refused("select the topics to compact by names or by a pattern, not by both")
        if self.to_topic in self.topics:
            raise Refused(f"topic {self.to_topic!r} cannot be compacted into itself: use another target topic")


class TableVersion(msgspec.Struct, frozen=True):
    """The content of `_current` and `_planned`."""

    number: int
    next: dict[str, int]
    """topic/broker/queue id -> the next offset to read."""

    @property
    def folder(self) -> str:
        """The folder of the version."""
        return f"v{self.number:08}"


class CompactResult(msgspec.Struct, frozen=True):
    """Result of a compaction run."""

    read: int
    """Messages that arrived since the run before."""
    keys: int
    """Keys in the table; with a target topic, messages written."""
    version: int


def run(spark: SparkSession, compact: CompactJob, *, on_progress: ProgressCallback) -> CompactResult:
    """Update the table or the topic with what has arrived."""
    current = _read_version(spark, join_path(compact.path, CURRENT_FILE)) or TableVersion(0, {})
    ranges, planned = _plan(spark, compact, current)
    read = sum(end - start for start, end in ranges.values())
    if not read:
        current_table = _current_table(spark, compact, current)
        return CompactResult(0, current_table.count() if current_table is not None else 0, current.number)
    new_messages = read_new_messages(spark, compact, ranges)
    with watch_job(spark, on_progress, what="compact"):
        if compact.to_topic is None:
            keys = _write_table(spark, compact, new_messages, current, planned)
        else:
            keys = _write_topic(compact, new_messages, planned)
    replace_text(spark, join_path(compact.path, CURRENT_FILE), msgspec.json.encode(planned).decode())
    remove_path(spark, join_path(compact.path, PLAN_FILE))
    _delete_old_versions(spark, compact.path, planned.number)
    return CompactResult(read, keys, planned.number)


def read_table(spark: SparkSession, path: str) -> DataFrame:
    """Return the current version of the table."""
    current = _read_version(spark, join_path(path, CURRENT_FILE))
    if current is None or not path_exists(spark, join_path(path, current.folder)):
        raise Refused(f"there is no compacted table in {path}")
    return spark.read.parquet(join_path(path, current.folder))


def latest_by_key(messages: DataFrame) -> DataFrame:
    """Return the latest message of each key and topic."""
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
    """Remove rows with an empty body. A body that could not be decoded is null, which is not empty."""
    from pyspark.sql import functions as F

    return rows.where(F.isnull("body") | (F.length("body") > 0))


# -- reading ----------------------------------------------------------------------------------------------------------

RangesOfQueues = dict[QueueRef, tuple[int, int]]


def _plan(spark: SparkSession, compact: CompactJob, current: TableVersion) -> tuple[RangesOfQueues, TableVersion]:
    """Plan the next version. A plan that was stored but not completed is used again."""
    which = {"subscribe": ",".join(compact.topics)} if compact.topics else {"subscribePattern": str(compact.pattern)}
    options = SourceOptions.parse({**which, "nameServers": compact.name_servers, **compact.options})
    extents = fetch_extents(options, open_metadata(options), is_fresh=True)
    ends = {format_queue_name(queue): extent.end for queue, extent in extents.items()}
    planned = _read_version(spark, join_path(compact.path, PLAN_FILE))
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
    """Return the messages that arrived since the run before."""
    assign: dict[str, dict[str, list[int]]] = {}
    starts: dict[str, dict[str, dict[str, int]]] = {}
    ends: dict[str, dict[str, dict[str, int]]] = {}
    for queue, (start, end) in ranges.items():
        assign.setdefault(queue.topic, {}).setdefault(queue.broker_name, []).append(queue.queue_id)
        for offsets, offset in ((starts, start), (ends, end)):
            offsets.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    is_copy = compact.to_topic is not None
    return (
        spark.read.format("sparrow")
        .schema(", ".join(f"{name} {COLUMN_TYPES[name]}" for name in (TOPIC_COLUMNS if is_copy else TABLE_COLUMNS)))
        .options(
            nameServers=compact.name_servers,
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
    spark: SparkSession, compact: CompactJob, new_messages: DataFrame, current: TableVersion, planned: TableVersion
) -> int:
    current_table = _current_table(spark, compact, current)
    rows = latest_by_key(new_messages if current_table is None else current_table.unionByName(new_messages))
    if compact.drop_empty:
        rows = drop_empty_bodies(rows)
    folder = join_path(compact.path, planned.folder)
    rows.write.mode("overwrite").option("compression", "zstd").parquet(folder)
    return spark.read.parquet(folder).count()


def _current_table(spark: SparkSession, compact: CompactJob, current: TableVersion) -> DataFrame | None:
    folder = join_path(compact.path, current.folder)
    return spark.read.parquet(folder) if current.number and path_exists(spark, folder) else None


def _write_topic(compact: CompactJob, new_messages: DataFrame, planned: TableVersion) -> int:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    rows = latest_by_key(new_messages)
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
            nameServers=compact.name_servers,
            topic=compact.to_topic,
            delivery="exactlyOnce",
            jobKey=key,
            **select_client_options(compact.options),
        )
        .save()
    )
    return int(seen.get["rows"])


def _read_version(spark: SparkSession, path: str) -> TableVersion | None:
    text = read_text(spark, path)
    try:
        return None if text is None else msgspec.json.decode(text, type=TableVersion)
    except msgspec.DecodeError as cause:
        raise Refused(f"{path} is not a file of a compaction job: {cause}. Use another folder") from cause


def _delete_old_versions(spark: SparkSession, path: str, number: int) -> None:
    """Delete old versions, and those of runs that were killed."""
    kept = {TableVersion(number - back, {}).folder for back in range(_VERSIONS_KEPT)}
    for name in list_names(spark, path):
        if name.startswith("v") and name[1:].isdecimal() and name not in kept:
            remove_path(spark, join_path(path, name))
