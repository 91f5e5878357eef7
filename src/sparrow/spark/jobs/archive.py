"""Archive job: write topics to Parquet files by topic, day and hour of store time, complete to the byte.

    PATH/topic=orders/date=2026-01-31/hour=12/part-....zstd.parquet

1. Bodies are written as stored, compressed or not, with the system flag; properties as the string in the record.
   `restore` writes the same messages from them.
2. Exactly once: Spark's file sink records the files of each batch in `PATH/_spark_metadata`. Readers that use this
   record, such as Spark, never see a file of a failed batch.
3. Progress is in the checkpoint, by default `PATH/_checkpoint`. An archive belongs to one checkpoint: the file sink
   skips batches by number, so another checkpoint would lose messages. The job refuses it.
4. The job commits its progress to a consumer group after the files are written, so `retention_group` can name this
   group.
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

ARCHIVE_GROUP = "sparrow_archive"
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
"""Columns that are folder names and not in the files."""
ARCHIVE_SCHEMA = ARCHIVED_SCHEMA + ", date date, hour int"
"""The schema of an archive. Pass it to readers, or Spark infers an integer from a topic named 2024."""


class ArchiveJob(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the archive job."""

    name_servers: str
    path: str
    """A folder, or any URL that Spark can write to: `s3a://...`, `hdfs://...`."""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression that whole topic names match; an alternative to `topics`."""
    group: str = ARCHIVE_GROUP
    starting_offsets: str = "earliest"
    """Where the first run starts: `earliest`, `latest`, or offsets as in the source option."""
    checkpoint: str | None = None
    interval_ms: int | None = None
    """Interval of batches; None: archive what exists now, then end."""
    batch_rows_max: int = 1_000_000
    options: dict[str, str] = {}
    """More options for the source, such as `sparrow.accessKey`."""

    def __post_init__(self) -> None:
        if bool(self.topics) == (self.pattern is not None):
            raise Refused("select the topics to archive by names or by a pattern, not by both")
        if self.interval_ms is not None and self.interval_ms < INTERVAL_MIN_MS:
            raise Refused(
                "the interval is below 1 second, which would write a file for almost every message: use 1 second or "
                "more"
            )

    @property
    def checkpoint_path(self) -> str:
        """The checkpoint, by default in the folder of the archive."""
        return self.checkpoint or join_path(self.path, "_checkpoint")


class ArchiveResult(msgspec.Struct, frozen=True):
    """Result of an archive run."""

    rows: int
    """Rows written in this run."""
    lag: int
    """Messages that arrived during the run and are not archived."""


def run(spark: SparkSession, archive: ArchiveJob, *, on_progress: ProgressCallback) -> ArchiveResult:
    """Archive what exists now, or, with `interval_ms`, run until the query is stopped."""
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
    if archive.interval_ms is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{archive.interval_ms} milliseconds")
    done = follow_query(writer.start(), on_progress)
    return ArchiveResult(done.rows, done.lag or 0)


def read_topics(spark: SparkSession, archive: ArchiveJob) -> DataFrame:
    """Return a stream of the topics with all parts of the records."""
    which = {"subscribe": ",".join(archive.topics)} if archive.topics else {"subscribePattern": archive.pattern}
    return (
        spark.readStream.format("sparrow")
        .schema(ARCHIVED_SCHEMA)
        .options(
            **which,
            nameServers=archive.name_servers,
            startingOffsets=archive.starting_offsets,
            groupId=archive.group,
            maxOffsetsPerTrigger=archive.batch_rows_max,
            decompress="false",
            **archive.options,
        )
        .load()
    )


def add_partition_columns(stored: DataFrame) -> DataFrame:
    """Add day and hour of the store time, in UTC independent of the session's time zone."""
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
    """Return an archive as a table."""
    if not path_exists(spark, path):
        raise Refused(f"archive {path} does not exist")
    return spark.read.schema(ARCHIVE_SCHEMA).parquet(path)


def _check_checkpoint(spark: SparkSession, archive: ArchiveJob) -> None:
    has_files = path_exists(spark, join_path(archive.path, "_spark_metadata"))
    if has_files and not checkpoint_exists(spark, archive.checkpoint_path):
        raise Refused(
            f"the archive {archive.path} exists, but the checkpoint {archive.checkpoint_path} is empty: use the "
            "checkpoint the archive was written with, or archive to another folder"
        )
