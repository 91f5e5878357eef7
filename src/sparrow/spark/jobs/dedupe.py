"""Deduplication job: copy a topic or an archive without repeated messages.

1. Messages with the same value of `by` (by default the id) are repeats; the first one read is kept. Messages without a
   value are never repeats.
2. A repeat read within `within_ms` of the first message is dropped; a later one may pass.
3. Nothing is dropped for being late. Spark evicts state by a watermark and drops older rows; with a backlog, or after a
   broker was unavailable, those would be messages never seen before. So the event time of a message is its store time,
   but at most `within_ms` before its micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from sparrow.model.errors import Refused
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.spark.jobs.archive import PARTITION_COLUMNS, read_archive
from sparrow.spark.jobs.topic_streams import (
    FORWARDED_COLUMNS,
    check_topics,
    columns_in_sql,
    extract_property,
    read_stream,
    to_sink_rows,
    topic_sink_options,
    write_stream,
)
from sparrow.spark.runtime.progress import ProgressCallback, follow_query, watch_job
from sparrow.spark.runtime.spark_errors import translate_spark_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
_POSITION_COLUMNS = ("topic", "broker", "queue_id", "queue_offset")
_VALUE, _EVENT_TIME = "_same", "_counted"


class DedupeJob(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the deduplication job."""

    name_servers: str
    sources: tuple[str, ...]
    target: str
    checkpoint: str
    by: str = "msg_id"
    """SQL expression; messages with the same value are repeats of each other."""
    within_ms: int = 600_000
    in_order: bool = False
    """Keep the order of each key, at the cost of one more shuffle."""
    large_state: bool = False
    """Keep the state in RocksDB: half the speed, a seventh of the memory. For more than a few million messages."""
    group: str | None = None
    starting_offsets: str = "earliest"
    tags: str | None = None
    interval_s: float | None = None
    batch_rows_max: int = 1_000_000
    target_queues: int = 4
    target_name_servers: str | None = None
    """The name servers of the target topic; None: those of the source."""
    options: dict[str, str] = {}
    """Client options, `sparrow.*`."""
    target_options: dict[str, str] = {}
    """Client options that differ for the brokers of the target."""


class DedupeResult(msgspec.Struct, frozen=True):
    """Result of a deduplication run."""

    read: int
    dropped: int | None
    """None: Spark no longer has the numbers of all batches."""


def run(
    spark: SparkSession, arguments: DedupeJob, *, on_progress: ProgressCallback = lambda done: None
) -> DedupeResult:
    """Deduplicate what exists now or, with `interval_s`, run until stopped."""
    check_topics(arguments)
    with translate_spark_errors(), _state_store(spark, arguments.large_state):
        read = read_stream(
            spark,
            (*FORWARDED_COLUMNS, *_POSITION_COLUMNS, "store_timestamp", *columns_in_sql(arguments.by)),
            nameServers=arguments.name_servers,
            subscribe=",".join(arguments.sources),
            startingOffsets=arguments.starting_offsets,
            maxOffsetsPerTrigger=str(arguments.batch_rows_max),
            groupId=arguments.group,
            tags=arguments.tags,
            decompress=str("body" in columns_in_sql(arguments.by)).lower(),
            onUndecodable="raise",  # a copy needs the body
            **arguments.options,
        )
        once = dedupe_stream(read, by=arguments.by, within_ms=arguments.within_ms)
        query = write_stream(
            once if arguments.in_order else to_sink_rows(once),
            name=f"dedupe-{arguments.target}",
            checkpoint=arguments.checkpoint,
            interval_s=arguments.interval_s,
            options=topic_sink_options(arguments),
            arrange=sort_by_key if arguments.in_order else None,
        )
    done = follow_query(query, on_progress)
    return DedupeResult(done.rows, _dropped(query, done.rows))


def run_archive(
    spark: SparkSession, path: str, to: str, *, by: str = "msg_id", on_progress: ProgressCallback = lambda done: None
) -> DedupeResult:
    """Copy an archive to a new one without repeats."""
    stored = read_archive(spark, path)
    with watch_job(spark, on_progress, what="dedupe"):
        dedupe_table(stored, by=by).repartition(*PARTITION_COLUMNS).sortWithinPartitions(
            *_POSITION_COLUMNS
        ).write.partitionBy(*PARTITION_COLUMNS).option("compression", "zstd").parquet(to)
        read = stored.count()
        kept = read_archive(spark, to).count()
    return DedupeResult(read, read - kept)


def dedupe_stream(messages: DataFrame, *, by: str = "msg_id", within_ms: int = 600_000) -> DataFrame:
    """Drop repeats within the time from a stream. All columns are kept."""
    from pyspark.sql import functions as f

    if within_ms < 1_000:
        raise Refused(f"the time {within_ms} ms is too short to detect repeats: use 1s or more")
    now = f.current_timestamp()  # the time of the micro-batch; a replay gets the same
    oldest = now - f.expr(f"INTERVAL {within_ms} MILLISECOND")
    event_time = f.least(f.greatest("store_timestamp", oldest), now)
    # One second more, so that no row lies on the edge of the previous batch's watermark.
    return (
        messages.withColumn(_VALUE, _dedupe_value(by, messages))
        .withColumn(_EVENT_TIME, event_time)
        .withWatermark(_EVENT_TIME, f"{within_ms + 1_000} milliseconds")
        .dropDuplicatesWithinWatermark([_VALUE])
        .drop(_VALUE, _EVENT_TIME)
    )


def dedupe_table(messages: DataFrame, *, by: str = "msg_id") -> DataFrame:
    """Drop all repeats from a table, such as an archive; the message stored first is kept."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    known = [f.col(name) for name in ("store_timestamp", *_POSITION_COLUMNS) if name in messages.columns]
    first = Window.partitionBy(_VALUE).orderBy(*known or [f.lit(0)])
    return (
        messages.withColumn(_VALUE, _dedupe_value(by, messages))
        .withColumn(_EVENT_TIME, f.row_number().over(first))
        .where(f.col(_EVENT_TIME) == 1)
        .drop(_VALUE, _EVENT_TIME)
    )


def sort_by_key(batch: DataFrame) -> DataFrame:
    """Return rows for the sink, sorted by position within each key."""
    from pyspark.sql import functions as f

    keys = (extract_property("properties_raw", PROPERTY_SHARDING_KEY), f.col("keys"))
    key = f.coalesce(*(f.nullif(each, f.lit("")) for each in keys), f.col("msg_id"))
    return to_sink_rows(batch.repartition(key).sortWithinPartitions(*_POSITION_COLUMNS))


def _dedupe_value(by: str, messages: DataFrame) -> Column:
    from pyspark.sql import functions as f

    # A message without a value gets its position as the value, which is unique.
    position = [name for name in _POSITION_COLUMNS if name in messages.columns]
    position_value = f.concat_ws("/", *position) if "queue_offset" in position else f.uuid()
    value = f.expr(by).cast("string")
    return f.when(value.isNull() | (value == ""), f.concat(f.lit("at "), position_value)).otherwise(
        f.concat(f.lit("is "), value)
    )


@contextmanager
def _state_store(spark: SparkSession, is_large: bool) -> Iterator[None]:
    """Set the state store provider while a query starts; the query keeps it."""
    before = spark.conf.get(_STATE_STORE, None)
    if is_large:
        spark.conf.set(_STATE_STORE, ROCKSDB_PROVIDER)
    try:
        yield
    finally:
        if is_large:
            _reset(spark, before)


def _reset(spark: SparkSession, before: str | None) -> None:
    if before is None:
        spark.conf.unset(_STATE_STORE)
    else:
        spark.conf.set(_STATE_STORE, before)


def _dropped(query: StreamingQuery, rows: int) -> int | None:
    batches = query.recentProgress
    if sum(progress.numInputRows for progress in batches) != rows:
        return None
    operators = [operator for progress in batches for operator in progress.stateOperators]
    late = sum(operator.numRowsDroppedByWatermark for operator in operators)
    assert late == 0, f"{late} rows were dropped by the watermark"
    return sum(int(operator.customMetrics.get("numDroppedDuplicateRows", 0)) for operator in operators)
