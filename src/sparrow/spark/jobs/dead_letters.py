"""Dead-letter job: report dead letters by group, topic, cause and hour, and redrive a selection of them.

1. The report reads all dead letters and changes nothing.
2. Redriving is a stream with a checkpoint: each letter of a selection is sent once, however often the job runs, and
   later letters are sent by the next run. The dead letters stay in their topic.
3. A letter is sent to its original topic with its original id and properties, as `Admin.redrive` does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sparrow.client.consume.retry import DELIVERY_STATE_PROPERTIES
from sparrow.model.errors import Refused
from sparrow.model.protocol import (
    DLQ_TOPIC_PREFIX,
    PROPERTY_DLQ_ATTEMPT,
    PROPERTY_DLQ_CONSUMER,
    PROPERTY_DLQ_ERROR_TYPE,
    PROPERTY_DLQ_REASON,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SHARDING_KEY,
    RETRY_TOPIC_PREFIX,
)
from sparrow.spark.jobs.topic_streams import (
    columns_in_sql,
    extract_property,
    read_stream,
    rows_written,
    topic_schema,
    write_stream,
)
from sparrow.spark.runtime.progress import ProgressCallback, follow_query, watch_job
from sparrow.spark.runtime.spark_errors import translate_spark_errors
from sparrow.wire.properties import NAME_SEPARATOR, VALUE_SEPARATOR

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CAUSE_PROPERTIES = (
    PROPERTY_DLQ_REASON,
    *("sp-error", "cap-exception", "ERROR", "EXCEPTION", "error", "exception"),
)
"""Properties that may contain the cause: the one of Sparrow's broker, then those that other consumers add."""
_ORIGIN_PROPERTIES = (PROPERTY_RETRY_TOPIC, "DLQ_ORIGIN_TOPIC", PROPERTY_REAL_TOPIC)
"""Properties with the original topic; the first one that is set is used. The second is set by Apache RocketMQ."""
_CAUSE_CHARS = 200
SAMPLE_IDS_MAX = 5
REPORT_LINES_MAX = 10_000
"""Maximum lines of a report, which is held in memory: causes are free text."""
_REPORT_COLUMNS = ("topic", "tags", "msg_id", "properties", "store_timestamp", "queue_offset")
REDRIVEN_COLUMNS = ("body", "properties_raw", "flag", "keys", "msg_id")
"""Columns of a redriven message; the last two only select the queue."""
_REPORT_KEYS = ("group", "origin", "tag", "cause", "hour")


class DeadLettersJob(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the dead-letter job."""

    name_servers: str
    group: str | None = None
    """None: all groups."""
    where: str | None = None
    """SQL filter over the columns of `describe_letters`."""
    causes: tuple[str, ...] = CAUSE_PROPERTIES
    json_file: str | None = None
    parquet: str | None = None
    options: dict[str, str] = {}
    """Client options, `sparrow.*`."""


class DeadLetterCount(msgspec.Struct, frozen=True):
    """A line of the report: the dead letters with the same group, topic, tag, cause and hour."""

    group: str
    origin: str | None
    tag: str | None
    cause: str | None
    hour: datetime
    count: int
    attempts: int | None
    """The most attempts that were made with one of them; None if no letter says."""
    first: datetime
    last: datetime
    samples: list[str]


class DeadLetterReport(msgspec.Struct, frozen=True):
    """Dead letters by group, topic, tag, cause and hour."""

    lines: list[DeadLetterCount]
    """Lines in descending order of their count."""
    letters: int
    without_origin: int
    """Letters without an original topic, which cannot be redriven."""


class RedriveResult(msgspec.Struct, frozen=True):
    """Result of a redrive."""

    read: int
    sent: int | None
    """None: Spark no longer has the numbers of all batches."""


def run(
    spark: SparkSession, arguments: DeadLettersJob, *, on_progress: ProgressCallback = lambda done: None
) -> DeadLetterReport:
    """Report the dead letters."""
    with watch_job(spark, on_progress, what="dead letters"):
        needs = topic_schema((*_REPORT_COLUMNS, *columns_in_sql(arguments.where)))
        read = spark.read.format("sparrow").schema(needs).options(**_source_options(arguments)).load()
        # The frame is both collected and written to Parquet.
        counts = count_letters(select_letters(read, arguments.where, arguments.causes)).persist()
        try:
            rows = counts.orderBy("count", ascending=False).limit(REPORT_LINES_MAX).collect()
            totals = counts.selectExpr("sum(count)", "sum(if(origin is null, count, 0))").first()
            if arguments.parquet is not None:
                counts.coalesce(1).write.parquet(arguments.parquet)
        finally:
            counts.unpersist()
    assert totals is not None, "an aggregate has one row"
    found = DeadLetterReport([DeadLetterCount(**row.asDict()) for row in rows], totals[0] or 0, totals[1] or 0)
    if arguments.json_file is not None:
        Path(arguments.json_file).write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    return found


def redrive(
    spark: SparkSession,
    arguments: DeadLettersJob,
    checkpoint: str,
    *,
    on_progress: ProgressCallback = lambda done: None,
) -> RedriveResult:
    """Send the selected letters to their original topics, except those sent with this checkpoint before."""
    with translate_spark_errors():
        read = read_stream(
            spark,
            (*_REPORT_COLUMNS, *REDRIVEN_COLUMNS, *columns_in_sql(arguments.where)),
            startingOffsets="earliest",
            maxRecordsPerPartition="0",  # keeps the order of the letters of a group
            onUndecodable="raise",  # a copy needs the body
            **_source_options(arguments),
        )
        query = write_stream(
            to_original_messages(select_letters(read, arguments.where, arguments.causes)),
            name=f"redrive-{arguments.group or 'all'}",
            checkpoint=checkpoint,
            interval_s=None,
            options={"nameServers": arguments.name_servers, **arguments.options},
        )
    done = follow_query(query, on_progress)
    return RedriveResult(done.rows, rows_written(query, done))


def _source_options(arguments: DeadLettersJob) -> dict[str, str]:
    # A pattern even for one group: its dead-letter topic exists only after the first dead letter.
    group = ".*" if arguments.group is None else re.escape(arguments.group)
    if arguments.group is not None and arguments.group.startswith(DLQ_TOPIC_PREFIX):
        raise Refused(
            f"{arguments.group!r} is a topic, not a group: use --group {arguments.group.removeprefix(DLQ_TOPIC_PREFIX)}"
        )
    return {
        "nameServers": arguments.name_servers,
        "subscribePattern": re.escape(DLQ_TOPIC_PREFIX) + group,
        **arguments.options,
    }


# -- steps ------------------------------------------------------------------------------------------------------------


def select_letters(dead: DataFrame, where: str | None = None, causes: Sequence[str] = CAUSE_PROPERTIES) -> DataFrame:
    """Return the selected letters; `where` can use the columns that `describe_letters` adds."""
    found = describe_letters(dead, causes)
    return found if where is None else found.where(where)


def describe_letters(dead: DataFrame, causes: Sequence[str] = CAUSE_PROPERTIES) -> DataFrame:
    """Add the columns `group`, `origin` (the original topic), `cause`, `consumer`, `attempts` and `hour`."""
    from pyspark.sql import functions as f

    properties = f.col("properties")
    origin = f.coalesce(*(f.nullif(properties[name], f.lit("")) for name in _ORIGIN_PROPERTIES))
    reason = f.concat_ws(": ", properties[PROPERTY_DLQ_ERROR_TYPE], properties[PROPERTY_DLQ_REASON])
    found = [reason if name == PROPERTY_DLQ_REASON else properties[name] for name in causes]
    cause = f.coalesce(*(f.nullif(each, f.lit("")) for each in found)) if found else f.lit(None)
    return (
        dead.withColumn("group", f.substr("topic", f.lit(len(DLQ_TOPIC_PREFIX) + 1)))
        .withColumn("origin", f.when(~origin.startswith(RETRY_TOPIC_PREFIX), origin))
        .withColumn("cause", f.substring_index(cause.cast("string"), "\n", 1).substr(1, _CAUSE_CHARS))
        .withColumn("consumer", properties[PROPERTY_DLQ_CONSUMER])
        .withColumn("attempts", properties[PROPERTY_DLQ_ATTEMPT].cast("int"))
        .withColumn("hour", f.date_trunc("hour", "store_timestamp"))
    )


def count_letters(letters: DataFrame) -> DataFrame:
    """Count letters by group, topic, tag, cause and hour, with first and last time and some ids."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    named = letters.withColumn("tag", f.col("tags"))
    newest = Window.partitionBy(*_REPORT_KEYS).orderBy(f.desc("store_timestamp"), f.desc("queue_offset"))
    sample = f.when(f.col("_rank") <= SAMPLE_IDS_MAX, f.coalesce("msg_id", "properties.ORIGIN_MESSAGE_ID"))
    return (
        named.withColumn("_rank", f.row_number().over(newest))
        .groupBy(*_REPORT_KEYS)
        .agg(
            f.count("*").alias("count"),
            f.max("attempts").alias("attempts"),
            f.min("store_timestamp").alias("first"),
            f.max("store_timestamp").alias("last"),
            f.collect_list(sample).alias("samples"),
        )
    )


def to_original_messages(letters: DataFrame) -> DataFrame:
    """Return the letters as rows for their original topics. Letters without an original topic are left out."""
    from pyspark.sql import functions as f

    known = letters.where("origin IS NOT NULL").withColumn("topic", f.col("origin"))
    restored = known.withColumn(
        "properties_raw", remove_properties("properties_raw", sorted(DELIVERY_STATE_PROPERTIES))
    )
    return restored.select(
        *REDRIVEN_COLUMNS, "topic", extract_property("properties_raw", PROPERTY_SHARDING_KEY).alias("sharding_key")
    )


def remove_properties(raw: str, names: Sequence[str]) -> Column:
    """Return the property string without these properties."""
    from pyspark.sql import functions as f

    any_of = "|".join(map(re.escape, names))
    return f.regexp_replace(
        raw, f"(?<=^|{VALUE_SEPARATOR})(?:{any_of}){NAME_SEPARATOR}[^{VALUE_SEPARATOR}]*(?:{VALUE_SEPARATOR}|$)", ""
    )
