"""Measures of messages and traces by minute: functions on DataFrames, for tables and streams.

    messages   topic                       rates, sizes, latency from birth to store, retries, hot keys
    traces     side topic group code       published | consumed: counts, error share, cost, end-to-end latency
    lag        topic group                 messages not consumed yet, and their age

1. Minutes are minutes of store time. Clocks of clients differ, and one that is ahead would make a stream drop other
   messages.
2. A minute can be measured again, by a stream or by another run. The row with the latest `measured` is valid
   (`latest_measures`).
3. Percentiles are accurate to a thousandth of the rows. Hot keys are estimates, accurate for really frequent keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparrow.client.trace_records import ConsumeReturnType
from sparrow.spark.jobs.trace_records import PUB, SUB_AFTER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE, MINUTE_S = "1 minute", 60
MESSAGES_KIND, TRACES_KIND, LAG_KIND = "messages", "traces", "lag"
KEY_COLUMNS = {
    MESSAGES_KIND: ("window", "topic"),
    TRACES_KIND: ("window", "side", "topic", "group", "code"),
    LAG_KIND: ("window", "topic", "group"),
}
"""The key columns of a measure."""
ALL_CODES = "all"
"""The code of rows that summarise all codes."""
PUBLISHED_SIDE, CONSUMED_SIDE = "published", "consumed"
MESSAGE_SCHEMA = (
    "topic string, body binary, keys string, store_timestamp timestamp, born_timestamp timestamp, reconsume_times int"
)
BIRTH_SCHEMA = "topic string, msg_id string, born_timestamp timestamp"
LAG_SCHEMA = "window timestamp, topic string, `group` string, lag bigint, behind_ms bigint, per_second double"
_PERCENTS = (50, 95, 99)
_ACCURACY = 1_000
_HOT_KEY_CANDIDATES = 1_000
"""Number of candidates for hot keys. A key of at least 1 % of the messages is always found."""


def measure_messages(messages: DataFrame, *, hot_keys: int) -> DataFrame:
    """Measure messages with the schema `MESSAGE_SCHEMA`."""
    from pyspark.sql import functions as F

    latency = F.greatest(F.unix_millis("store_timestamp") - F.unix_millis("born_timestamp"), F.lit(0))
    rows = messages.select(
        "topic",
        "store_timestamp",
        F.octet_length("body").cast("bigint").alias("size"),
        latency.alias("latency_ms"),
        (F.col("reconsume_times") > 0).alias("is_retry"),
        F.nullif(F.substring_index("keys", " ", 1), F.lit("")).alias("key"),
    )
    found = rows.groupBy(F.window("store_timestamp", MINUTE), "topic").agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.count_if("is_retry").alias("retried"),
        _percentiles("size"),
        F.max("size").alias("size_max"),
        _percentiles("latency_ms"),
        F.max("latency_ms").alias("latency_ms_max"),
        F.expr(
            f"approx_top_k(key, {hot_keys}, {max(_HOT_KEY_CANDIDATES, hot_keys)}) filter (where key is not null)"
        ).alias("hot"),
    )
    return found.select(
        F.col("window.start").alias("window"),
        "topic",
        "messages",
        (F.col("messages") / MINUTE_S).alias("per_second"),
        "bytes",
        (F.col("bytes") / MINUTE_S).alias("bytes_per_second"),
        "retried",
        *_percentile_columns("size"),
        "size_max",
        *_percentile_columns("latency_ms"),
        "latency_ms_max",
        F.col("hot").cast("array<struct<key:string,count:bigint>>").alias("hot_keys"),
    )


def publish_calls(traces: DataFrame, topics: Sequence[str]) -> DataFrame:
    """Return send records as rows for `measure_calls`."""
    from pyspark.sql import functions as F

    return traces.where((F.col("record") == PUB) & F.col("topic").isin(*topics)).select(
        "stored",
        F.lit(PUBLISHED_SIDE).alias("side"),
        "topic",
        "group",
        F.when(F.col("is_success"), F.lit("success")).otherwise(F.lit("failed")).alias("code"),
        "is_success",
        "cost_ms",
        "body_bytes",
        F.lit(None).cast("bigint").alias("end_to_end_ms"),
    )


def consume_calls(traces: DataFrame, about: DataFrame | None = None) -> DataFrame:
    """Return records of handler calls as rows for `measure_calls`.

    Traces of consumers contain neither topic nor time of birth. `about` (with the schema `BIRTH_SCHEMA`) supplies both;
    without it they are null.
    """
    from pyspark.sql import functions as F

    ended = traces.where(F.col("record") == SUB_AFTER).drop("topic")
    if about is None:
        ended = ended.withColumns({"topic": _null("string"), "born": _null("timestamp")})
    else:
        known = about.groupBy("msg_id").agg(F.min("topic").alias("topic"), F.min("born_timestamp").alias("born"))
        ended = ended.join(known, "msg_id", "left")
    code_name = F.element_at(
        F.array(*(F.lit(each.name.lower()) for each in ConsumeReturnType)), F.col("code").cast("int") + 1
    )
    end_to_end = F.unix_millis(F.coalesce("time", "stored")) - F.unix_millis("born")
    return ended.select(
        "stored",
        F.lit(CONSUMED_SIDE).alias("side"),
        "topic",
        "group",
        code_name.alias("code"),
        "is_success",
        "cost_ms",
        F.lit(None).cast("bigint").alias("body_bytes"),
        F.when(F.col("is_success"), F.greatest(end_to_end, F.lit(0))).alias("end_to_end_ms"),
    )


def measure_calls(calls: DataFrame) -> DataFrame:
    """Measure rows of `publish_calls` and `consume_calls`, for each code and for all codes."""
    from pyspark.sql import functions as F

    found = (
        calls.withColumn("code", F.explode(F.array("code", F.lit(ALL_CODES))))
        .groupBy(F.window("stored", MINUTE), "side", "topic", "group", "code")
        .agg(
            F.count("*").alias("messages"),
            F.count_if(~F.col("is_success")).alias("errors"),
            F.sum("body_bytes").alias("bytes"),
            _percentiles("cost_ms"),
            F.max("cost_ms").alias("cost_ms_max"),
            _percentiles("end_to_end_ms"),
            F.max("end_to_end_ms").alias("end_to_end_ms_max"),
        )
    )
    return found.select(
        F.col("window.start").alias("window"),
        *("side", "topic", "group", "code", "messages", "errors"),
        (F.col("errors") / F.col("messages")).alias("error_share"),
        "bytes",
        *_percentile_columns("cost_ms"),
        "cost_ms_max",
        *_percentile_columns("end_to_end_ms"),
        "end_to_end_ms_max",
    )


def fill_topics(measures: DataFrame, topics_of_groups: DataFrame, topics: Sequence[str]) -> DataFrame:
    """Keep measures of these topics, and fill in missing topics.

    A measure without a topic gets the topic that its group reads. If the group reads several, the topic stays null.
    """
    from pyspark.sql import functions as F

    read = topics_of_groups.groupBy("group").agg(F.collect_set("topic").alias("_read"))
    found = measures.join(F.broadcast(read), "group", "left")
    resolved = F.coalesce("topic", F.when(F.size("_read") == 1, F.col("_read")[0]))
    is_ours = F.arrays_overlap("_read", F.array(*map(F.lit, topics)))
    found = found.withColumn("topic", resolved).where(
        F.col("topic").isin(*topics) | (F.col("topic").isNull() & is_ours)
    )
    return found.select(*measures.columns)


def latest_measures(measures: DataFrame, kind: str) -> DataFrame:
    """Keep the latest row of each measure."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rank = F.row_number().over(Window.partitionBy(*KEY_COLUMNS[kind]).orderBy(F.desc("measured")))
    return measures.withColumn("_place", rank).where("_place = 1").drop("_place")


def to_messages(measures: DataFrame, kind: str) -> DataFrame:
    """Convert rows to messages: JSON with times in milliseconds, and the topic as the key."""
    from pyspark.sql import functions as F

    columns = [
        F.unix_millis(name).alias(f"{name}_ms") if type_ == "timestamp" else F.col(name)
        for name, type_ in measures.dtypes
    ]
    body = F.to_json(F.struct(F.lit(kind).alias("kind"), *columns))
    return measures.select(body.alias("body"), F.col("topic").alias("keys"), F.lit(kind).alias("tags"))


def _percentiles(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.percentile_approx(name, [each / 100 for each in _PERCENTS], _ACCURACY).alias(name)


def _percentile_columns(name: str) -> list[Column]:
    """Return one column per percentile."""
    from pyspark.sql import functions as F

    return [F.col(name)[rank].alias(f"{name}_p{percent}") for rank, percent in enumerate(_PERCENTS)]


def _null(kind: str) -> Column:
    from pyspark.sql import functions as F

    return F.lit(None).cast(kind)
