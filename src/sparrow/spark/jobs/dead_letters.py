"""What groups gave up: counted by cause, and the chosen ones sent back to where they came from.

1. The report reads everything that is still there, and changes nothing.
2. Sending back is a stream with a checkpoint: each letter of a selection goes once, however often it is run, and those
   that die later go with the next run. The dead letters themselves stay where they are.
3. A letter goes back under its own id, with the properties it had when it was young, as `Admin.redrive` does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sparrow.client.retry import DELIVERY_STATE_PROPERTIES
from sparrow.model.errors import Refused
from sparrow.model.protocol import (
    DLQ_TOPIC_PREFIX,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SHARDING_KEY,
    RETRY_TOPIC_PREFIX,
)
from sparrow.spark.jobs.forward import (
    columns_in_sql,
    extract_property,
    read_stream,
    rows_written,
    topic_schema,
    write_stream,
)
from sparrow.spark.runtime.progress import ProgressCallback, follow_query, translate_spark_errors, watch_job
from sparrow.wire.properties import NAME_SEPARATOR, VALUE_SEPARATOR

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CAUSE_PROPERTIES = ("sp-error", "cap-exception", "ERROR", "EXCEPTION", "error", "exception")
"""Properties that may say why a message died. RocketMQ has none of its own: consumers add what they like."""
_ORIGINS = (PROPERTY_RETRY_TOPIC, "DLQ_ORIGIN_TOPIC", PROPERTY_REAL_TOPIC)
"""Properties that say which topic a dead letter was sent to; the first that does counts. The second is Apache's."""
_CAUSE_CHARS = 200
SAMPLE_IDS_MAX = 5
REPORT_LINES_MAX = 10_000
"""Of a report that is held in memory: causes are anybody's words."""
_NEEDS = ("topic", "tags", "msg_id", "properties", "store_timestamp", "queue_offset")
REDRIVEN_COLUMNS = ("body", "properties_raw", "flag", "keys", "msg_id")
"""What a letter goes back with; the last two only choose its queue."""
_BY = ("group", "origin", "tag", "cause", "hour")


class DeadLettersJob(msgspec.Struct, frozen=True, kw_only=True):
    name_servers: str
    group: str | None = None
    """None: of all groups."""
    where: str | None = None
    """SQL over the columns of `describe_letters`: only those."""
    causes: tuple[str, ...] = CAUSE_PROPERTIES
    json_file: str | None = None
    parquet: str | None = None
    options: dict[str, str] = {}
    """Of the client, `sparrow.*`."""


class DeadLetterCount(msgspec.Struct, frozen=True):
    """Letters that died alike."""

    group: str
    origin: str | None
    tag: str | None
    cause: str | None
    hour: datetime
    count: int
    first: datetime
    last: datetime
    samples: list[str]


class DeadLetterReport(msgspec.Struct, frozen=True):
    lines: list[DeadLetterCount]
    """Those with the most letters first."""
    letters: int
    without_origin: int
    """Letters that do not say which topic they were sent to: they cannot go back."""


class RedriveResult(msgspec.Struct, frozen=True):
    read: int
    sent: int | None
    """None: too many batches to know."""


def run(
    spark: SparkSession, arguments: DeadLettersJob, *, told: ProgressCallback = lambda done: None
) -> DeadLetterReport:
    """Count the dead letters."""
    with watch_job(spark, told, what="dead letters"):
        needs = topic_schema((*_NEEDS, *columns_in_sql(arguments.where)))
        read = spark.read.format("sparrow").schema(needs).options(**_source(arguments)).load()
        # What is counted is written, too.
        counts = count_letters(select_letters(read, arguments.where, arguments.causes)).persist()
        try:
            rows = counts.orderBy("count", ascending=False).limit(REPORT_LINES_MAX).collect()
            totals = counts.selectExpr("sum(count)", "sum(if(origin is null, count, 0))").first()
            if arguments.parquet is not None:
                counts.coalesce(1).write.parquet(arguments.parquet)
        finally:
            counts.unpersist()
    assert totals is not None, "an aggregate has a row"
    found = DeadLetterReport([DeadLetterCount(**row.asDict()) for row in rows], totals[0] or 0, totals[1] or 0)
    if arguments.json_file is not None:
        Path(arguments.json_file).write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    return found


def redrive(
    spark: SparkSession, arguments: DeadLettersJob, checkpoint: str, *, told: ProgressCallback = lambda done: None
) -> RedriveResult:
    """Send what the arguments select back to its topics, except what was sent with this checkpoint before."""
    with translate_spark_errors():
        read = read_stream(
            spark,
            (*_NEEDS, *REDRIVEN_COLUMNS, *columns_in_sql(arguments.where)),
            startingOffsets="earliest",
            maxRecordsPerPartition="0",  # letters of one group in the order in which they died
            **_source(arguments),
        )
        query = write_stream(
            to_original_messages(select_letters(read, arguments.where, arguments.causes)),
            name=f"redrive-{arguments.group or 'all'}",
            checkpoint=checkpoint,
            every_s=None,
            options={"nameserver": arguments.name_servers, **arguments.options},
        )
    done = follow_query(query, told)
    return RedriveResult(done.rows, rows_written(query, done))


def _source(arguments: DeadLettersJob) -> dict[str, str]:
    # By a pattern in any case: the topic is made with a group's first dead letter, and there may be none.
    group = ".*" if arguments.group is None else re.escape(arguments.group)
    if arguments.group is not None and arguments.group.startswith(DLQ_TOPIC_PREFIX):
        raise Refused(
            f"{arguments.group!r} is a topic; say the group, {arguments.group.removeprefix(DLQ_TOPIC_PREFIX)!r}"
        )
    return {
        "nameserver": arguments.name_servers,
        "subscribePattern": re.escape(DLQ_TOPIC_PREFIX) + group,
        **arguments.options,
    }


# -- what is done with them -------------------------------------------------------------------------------------------


def select_letters(dead: DataFrame, where: str | None = None, causes: Sequence[str] = CAUSE_PROPERTIES) -> DataFrame:
    """The letters that are meant; `where` may speak of what `describe_letters` adds."""
    found = describe_letters(dead, causes)
    return found if where is None else found.where(where)


def describe_letters(dead: DataFrame, causes: Sequence[str] = CAUSE_PROPERTIES) -> DataFrame:
    """Messages of dead-letter topics, with `group`, `origin` (the topic they were sent to), `cause` and `hour`."""
    from pyspark.sql import functions as f

    said = f.col("properties")
    origin = f.coalesce(*(f.nullif(said[name], f.lit("")) for name in _ORIGINS))
    cause = f.coalesce(*(f.nullif(said[name], f.lit("")) for name in causes)) if causes else f.lit(None)
    return (
        dead.withColumn("group", f.substr("topic", f.lit(len(DLQ_TOPIC_PREFIX) + 1)))
        .withColumn("origin", f.when(~origin.startswith(RETRY_TOPIC_PREFIX), origin))
        .withColumn("cause", f.substring_index(cause.cast("string"), "\n", 1).substr(1, _CAUSE_CHARS))
        .withColumn("hour", f.date_trunc("hour", "store_timestamp"))
    )


def count_letters(letters: DataFrame) -> DataFrame:
    """How many died of what, when the first and the last did, and some of their ids."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    named = letters.withColumn("tag", f.col("tags"))
    newest = Window.partitionBy(*_BY).orderBy(f.desc("store_timestamp"), f.desc("queue_offset"))
    sample = f.when(f.col("_rank") <= SAMPLE_IDS_MAX, f.coalesce("msg_id", "properties.ORIGIN_MESSAGE_ID"))
    return (
        named.withColumn("_rank", f.row_number().over(newest))
        .groupBy(*_BY)
        .agg(
            f.count("*").alias("count"),
            f.min("store_timestamp").alias("first"),
            f.max("store_timestamp").alias("last"),
            f.collect_list(sample).alias("samples"),
        )
    )


def to_original_messages(letters: DataFrame) -> DataFrame:
    """Letters as rows for their own topics. Those that do not know theirs are left where they are."""
    from pyspark.sql import functions as f

    known = letters.where("origin IS NOT NULL").withColumn("topic", f.col("origin"))
    young = known.withColumn("properties_raw", remove_properties("properties_raw", sorted(DELIVERY_STATE_PROPERTIES)))
    return young.select(
        *REDRIVEN_COLUMNS, "topic", extract_property("properties_raw", PROPERTY_SHARDING_KEY).alias("sharding_key")
    )


def remove_properties(raw: str, names: Sequence[str]) -> Column:
    """The column of all properties, as a record has them, less some."""
    from pyspark.sql import functions as f

    any_of = "|".join(map(re.escape, names))
    return f.regexp_replace(
        raw, f"(?<=^|{VALUE_SEPARATOR})(?:{any_of}){NAME_SEPARATOR}[^{VALUE_SEPARATOR}]*(?:{VALUE_SEPARATOR}|$)", ""
    )
