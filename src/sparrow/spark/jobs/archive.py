"""Topics to Parquet, by topic, day and hour of store time: what brokers delete can be had back, every byte of it.

    PATH/topic=orders/date=2026-01-31/hour=12/part-....zstd.parquet

1. Bodies are kept as they are stored, compressed ones too, with the sys flag that says so; properties as the one string
   that they are in a record. `restore` makes the same messages of them.
2. Exactly once: Spark's file sink notes the files of each batch in `PATH/_spark_metadata`. Readers that know of that
   (Spark does) never see a file of a batch that failed.
3. Progress is in the checkpoint, `PATH/_checkpoint` unless told otherwise. An archive and its checkpoint belong
   together: the sink skips batches by their number, so another checkpoint would lose messages, and is refused.
4. The group shows how far the archive is. Its offsets follow the files, so `retention_group` may name it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sparrow.model.errors import Refused
from sparrow.spark.runtime.filesystem import checkpoint_exists, join_path, path_exists
from sparrow.spark.runtime.progress import ProgressCallback, follow_query
from sparrow.spark.source.schema import COLUMN_TYPES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP = "sparrow_archive"
INTERVAL_MIN_MS = 1_000
ARCHIVED_COLUMNS = (
    "body",
    "keys",
    "tags",
    "msg_id",
    "properties_raw",
    "topic",
    "broker",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "store_timestamp",
    "born_timestamp",
    "born_host",
    "reconsume_times",
    "flag",
    "sys_flag",
)
ARCHIVED_SCHEMA = ", ".join(f"{name} {COLUMN_TYPES[name]}" for name in ARCHIVED_COLUMNS)
PARTITION_COLUMNS = ("topic", "date", "hour")
"""Columns that are names of folders, not in the files."""
SCHEMA = ARCHIVED_SCHEMA + ", date date, hour int"
"""Of an archive. Whoever reads one should say it, or Spark takes a topic named 2024 for a number."""


class ArchiveJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to archive, and where."""

    name_servers: str
    path: str
    """A folder, or whatever Spark can write to: `s3a://...`, `hdfs://...`."""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """Instead of topics: those whose whole names match."""
    group: str = GROUP
    starting: str = "earliest"
    """Of the first run: `earliest`, `latest`, or offsets as the source takes them."""
    checkpoint: str | None = None
    every_ms: int | None = None
    """None: what is there now, and then it ends."""
    rows_a_batch: int = 1_000_000
    options: dict[str, str] = {}
    """More for the source: `sparrow.accessKey` and the like."""

    def __post_init__(self) -> None:
        if bool(self.topics) == (self.pattern is not None):
            raise Refused("say which topics to archive: their names, or a pattern, and not both")
        if self.every_ms is not None and self.every_ms < INTERVAL_MIN_MS:
            raise Refused("an archive is written at most once a second: smaller batches make a file for every message")

    @property
    def checkpoint_path(self) -> str:
        return self.checkpoint or join_path(self.path, "_checkpoint")


class ArchiveResult(msgspec.Struct, frozen=True):
    rows: int
    """Written in this run."""
    behind: int
    """What came in while it ran."""


def run(spark: SparkSession, archive: ArchiveJob, *, told: ProgressCallback) -> ArchiveResult:
    """Archive until everything that is there now is, or (`every_ms`) until the query is stopped."""
    _check_checkpoint(spark, archive)
    writer = (
        add_partition_columns(read_topics(spark, archive))
        .writeStream.format("parquet")
        .queryName(f"archive of {archive.path}")
        .partitionBy(*PARTITION_COLUMNS)
        .option("compression", "zstd")
        .option("path", archive.path)
        .option("checkpointLocation", archive.checkpoint_path)
    )
    if archive.every_ms is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{archive.every_ms} milliseconds")
    done = follow_query(writer.start(), told)
    return ArchiveResult(done.rows, done.behind or 0)


def read_topics(spark: SparkSession, archive: ArchiveJob) -> DataFrame:
    """The topics as a stream of everything that a record says."""
    which = {"subscribe": ",".join(archive.topics)} if archive.topics else {"subscribePattern": archive.pattern}
    return (
        spark.readStream.format("sparrow")
        .schema(ARCHIVED_SCHEMA)
        .options(
            **which,
            nameserver=archive.name_servers,
            startingOffsets=archive.starting,
            groupId=archive.group,
            maxOffsetsPerTrigger=archive.rows_a_batch,
            decompress="false",
            **archive.options,
        )
        .load()
    )


def add_partition_columns(stored: DataFrame) -> DataFrame:
    """With the day and the hour of store time, in UTC whatever the session's zone is."""
    from pyspark.sql import functions as F

    ms = F.unix_millis("store_timestamp")
    days = F.floor(ms / F.lit(86_400_000)).cast("int")
    return stored.withColumns(
        {
            "date": F.date_add(F.to_date(F.lit("1970-01-01")), days),
            "hour": F.pmod(F.floor(ms / F.lit(3_600_000)), F.lit(24)).cast("int"),
        }
    )


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """An archive as a table."""
    if not path_exists(spark, path):
        raise Refused(f"there is no archive at {path}")
    return spark.read.schema(SCHEMA).parquet(path)


def _check_checkpoint(spark: SparkSession, archive: ArchiveJob) -> None:
    has_files = path_exists(spark, join_path(archive.path, "_spark_metadata"))
    if has_files and not checkpoint_exists(spark, archive.checkpoint_path):
        raise Refused(
            f"the archive {archive.path} was written with another checkpoint than {archive.checkpoint_path}, which "
            f"knows nothing: name the old one, or archive to another folder"
        )
