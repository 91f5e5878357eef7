"""Messages that came twice, once: a topic to another one without the repeats, or an archive without them.

1. Of messages that are the same by `by` (their id, unless told) the first that is read goes on. Those that `by` says
   nothing about are never repeats.
2. A repeat that is read within the time of its first message is dropped; one that comes later may go on.
3. Nothing is dropped because it is late. Spark forgets by a watermark, and throws away what is older than that: with a
   backlog, or a broker that was away, that would be messages nobody has seen. So the time that counts is a message's
   store time, but never further back than the time `within` before its micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from sparrow.model.errors import Refused
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.spark.jobs.archive import PARTITION_COLUMNS, read_archive
from sparrow.spark.jobs.forward import (
    FORWARDED_COLUMNS,
    check_topics,
    columns_in_sql,
    extract_property,
    read_stream,
    to_sink_rows,
    topic_sink_options,
    write_stream,
)
from sparrow.spark.runtime.progress import ProgressCallback, follow_query, translate_spark_errors, watch_job

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
_PLACE = ("topic", "broker", "queue_id", "queue_offset")
_SAME, _COUNTED = "_same", "_counted"


class DedupeJob(msgspec.Struct, frozen=True, kw_only=True):
    name_servers: str
    sources: tuple[str, ...]
    target: str
    checkpoint: str
    by: str = "msg_id"
    """SQL: messages for which it gives the same are the same. A column, or any expression of columns."""
    within_ms: int = 600_000
    in_order: bool = False
    """Keep the order of each key, which costs one more shuffle."""
    large_state: bool = False
    """Keep what was seen in RocksDB: half as quick, a seventh of the memory. For more than some millions."""
    group: str | None = None
    starting: str = "earliest"
    tags: str | None = None
    every_s: float | None = None
    rows_a_batch: int = 1_000_000
    target_queues: int = 4
    options: dict[str, str] = {}
    """Of the client, `sparrow.*`."""


class DedupeResult(msgspec.Struct, frozen=True):
    read: int
    dropped: int | None
    """None: too many batches to know."""


def run(spark: SparkSession, arguments: DedupeJob, *, told: ProgressCallback = lambda done: None) -> DedupeResult:
    """Dedupe what there is; with `every_s`, whatever comes."""
    check_topics(arguments.sources, arguments.target)
    with translate_spark_errors(), _state_store(spark, arguments.large_state):
        read = read_stream(
            spark,
            (*FORWARDED_COLUMNS, *_PLACE, "store_timestamp", *columns_in_sql(arguments.by)),
            nameserver=arguments.name_servers,
            subscribe=",".join(arguments.sources),
            startingOffsets=arguments.starting,
            maxOffsetsPerTrigger=str(arguments.rows_a_batch),
            groupId=arguments.group,
            tags=arguments.tags,
            decompress=str("body" in columns_in_sql(arguments.by)).lower(),
            **arguments.options,
        )
        once = dedupe_stream(read, by=arguments.by, within_ms=arguments.within_ms)
        query = write_stream(
            once if arguments.in_order else to_sink_rows(once),
            name=f"dedupe-{arguments.target}",
            checkpoint=arguments.checkpoint,
            every_s=arguments.every_s,
            options=topic_sink_options(arguments),
            arranged=sort_by_key if arguments.in_order else None,
        )
    done = follow_query(query, told)
    return DedupeResult(done.rows, _dropped(query, done.rows))


def run_archive(
    spark: SparkSession, path: str, to: str, *, by: str = "msg_id", told: ProgressCallback = lambda done: None
) -> DedupeResult:
    """An archive to a new one, without its repeats."""
    stored = read_archive(spark, path)
    with watch_job(spark, told, what="dedupe"):
        dedupe_table(stored, by=by).repartition(*PARTITION_COLUMNS).sortWithinPartitions(*_PLACE).write.partitionBy(
            *PARTITION_COLUMNS
        ).option("compression", "zstd").parquet(to)
        read = stored.count()
        kept = read_archive(spark, to).count()
    return DedupeResult(read, read - kept)


def dedupe_stream(messages: DataFrame, *, by: str = "msg_id", within_ms: int = 600_000) -> DataFrame:
    """A stream without the repeats that are read within the time. Has all columns of the messages."""
    from pyspark.sql import functions as f

    if within_ms < 1_000:
        raise Refused(f"repeats within {within_ms} ms cannot be told: say 1s or more")
    now = f.current_timestamp()  # of the micro-batch, and the same when it is done again
    oldest = now - f.expr(f"INTERVAL {within_ms} MILLISECOND")
    counted = f.least(f.greatest("store_timestamp", oldest), now)
    # A second more than that: then no row lies on the edge of the watermark of the batch before.
    return (
        messages.withColumn(_SAME, _same(by, messages))
        .withColumn(_COUNTED, counted)
        .withWatermark(_COUNTED, f"{within_ms + 1_000} milliseconds")
        .dropDuplicatesWithinWatermark([_SAME])
        .drop(_SAME, _COUNTED)
    )


def dedupe_table(messages: DataFrame, *, by: str = "msg_id") -> DataFrame:
    """A table, of an archive say, without any repeats: of each the one that was stored first."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    known = [f.col(name) for name in ("store_timestamp", *_PLACE) if name in messages.columns]
    first = Window.partitionBy(_SAME).orderBy(*known or [f.lit(0)])
    return (
        messages.withColumn(_SAME, _same(by, messages))
        .withColumn(_COUNTED, f.row_number().over(first))
        .where(f.col(_COUNTED) == 1)
        .drop(_SAME, _COUNTED)
    )


def sort_by_key(batch: DataFrame) -> DataFrame:
    """Rows for the sink, those with one key in the order of their queue."""
    from pyspark.sql import functions as f

    keys = (extract_property("properties_raw", PROPERTY_SHARDING_KEY), f.col("keys"))
    key = f.coalesce(*(f.nullif(each, f.lit("")) for each in keys), f.col("msg_id"))
    return to_sink_rows(batch.repartition(key).sortWithinPartitions(*_PLACE))


def _same(by: str, messages: DataFrame) -> Column:
    from pyspark.sql import functions as f

    # Where it says nothing, the place does: no two messages have the same.
    place = [name for name in _PLACE if name in messages.columns]
    unlike_all = f.concat_ws("/", *place) if "queue_offset" in place else f.uuid()
    said = f.expr(by).cast("string")
    return f.when(said.isNull() | (said == ""), f.concat(f.lit("at "), unlike_all)).otherwise(
        f.concat(f.lit("is "), said)
    )


@contextmanager
def _state_store(spark: SparkSession, is_large: bool) -> Iterator[None]:
    """A query keeps the settings of the moment at which it starts."""
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
    remembered = query.recentProgress
    if sum(progress.numInputRows for progress in remembered) != rows:
        return None
    operators = [operator for progress in remembered for operator in progress.stateOperators]
    late = sum(operator.numRowsDroppedByWatermark for operator in operators)
    assert late == 0, f"{late} rows were taken for late ones"
    return sum(int(operator.customMetrics.get("numDroppedDuplicateRows", 0)) for operator in operators)
