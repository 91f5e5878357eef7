"""Data sources of an audit: the sent, stored and handled ids, one row per id with count and time.

    sent      topic, msg_id, sent, tried, sent_at          traces of producers, or a table of ids
    stored    topic, msg_id, stored, stored_at             the topics themselves
    handled   group, msg_id, handled, handled_at           traces of consumers, or a table of ids

A failed send counts as `tried`, not as `sent`: it may be stored or not, and neither is a finding. The same holds for
half messages that were never committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from sparrow.client.trace_records import TracedMessageType
from sparrow.model.errors import Refused
from sparrow.model.transaction import TransactionState
from sparrow.spark.jobs.trace_records import END_TRANSACTION, PUB, SUB_AFTER
from sparrow.spark.source.schema import COLUMN_TYPES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FROM_TRACE, FROM_NOTHING, TOPIC_PREFIX = "trace", "none", "topic:"
"""Values for a source: the trace topic, no data, a topic of ids. Everything else is a path."""
MATCH_MSG_ID, MATCH_KEYS, MATCH_PROPERTY_PREFIX = "msg_id", "keys", "property:"
"""What identifies a message."""
_TIMES = ("time", "sent_at", "handled_at", "added", "born_timestamp", "store_timestamp")
"""Possible names of the time column of a table."""


# -- topics -----------------------------------------------------------------------------------------------------------


def stored_schema(match: str) -> str:
    """Return the schema that `stored_ids` needs."""
    column = "properties" if match.startswith(MATCH_PROPERTY_PREFIX) else match
    return ", ".join(f"{name} {COLUMN_TYPES[name]}" for name in ("topic", column, "store_timestamp"))


def with_match_id(messages: DataFrame, match: str) -> DataFrame:
    """Return messages with their match value as `msg_id`; null if they have none."""
    from pyspark.sql import functions as F

    key = (
        F.col("properties")[match.removeprefix(MATCH_PROPERTY_PREFIX)]
        if match.startswith(MATCH_PROPERTY_PREFIX)
        else F.col(match)
    )
    return messages.select("topic", F.nullif(key, F.lit("")).alias("msg_id"), F.col("store_timestamp").alias("time"))


def stored_ids(messages: DataFrame) -> DataFrame:
    """Count the messages of each id. Those without an id form one row per topic."""
    from pyspark.sql import functions as F

    return messages.groupBy("topic", "msg_id").agg(F.count("*").alias("stored"), F.min("time").alias("stored_at"))


# -- traces -----------------------------------------------------------------------------------------------------------


def sent_in_traces(traces: DataFrame, topics: Sequence[str], match: str, tags: Sequence[str] = ()) -> DataFrame:
    """Return the sent ids of these topics, from traces of producers."""
    from pyspark.sql import functions as F

    records = traces.where(F.col("record").isin(PUB, END_TRANSACTION) & F.col("topic").isin(*topics))
    if tags:
        records = records.where(F.col("tags").isin(*tags))
    # The Java client writes all ids of a batch into one record.
    records = records.withColumn("msg_id", F.explode(F.split(match, ",") if match == MATCH_MSG_ID else F.array(match)))
    is_whole = (F.col("record") == PUB) & F.col("is_success") & (F.col("kind") != int(TracedMessageType.HALF))
    is_committed = (F.col("record") == END_TRANSACTION) & (F.col("state") == TransactionState.COMMIT.value)
    return (
        records.where("msg_id != ''")
        .groupBy("topic", "msg_id")
        .agg(
            # Check-backs may commit a transaction several times.
            (F.count_if(is_whole) + F.max(is_committed.cast("bigint"))).alias("sent"),
            F.count("*").alias("tried"),
            F.min("time").alias("sent_at"),
        )
    )


def handled_in_traces(traces: DataFrame, groups: Sequence[str], match: str) -> DataFrame:
    """Count how often each message was handled successfully. A failed attempt is retried and does not count."""
    from pyspark.sql import functions as F

    ended = traces.where((F.col("record") == SUB_AFTER) & F.col("is_success") & F.col("group").isin(*groups))
    ended = ended.select("group", F.col(match).alias("msg_id"), F.coalesce("time", "stored").alias("time"))
    return _handled(ended.where("msg_id != ''"))


# -- tables and topics of ids -----------------------------------------------------------------------------------------


def read_id_table(spark: SparkSession, path: str) -> DataFrame:
    """Read a table by its file extension: CSV with a header, JSON lines, or Parquet."""
    match PurePosixPath(path).suffix.lower():
        case ".csv":
            return spark.read.csv(path, header=True)
        case ".json" | ".jsonl" | ".ndjson":
            return spark.read.json(path)
        case _:
            return spark.read.parquet(path)


def read_id_topic(messages: DataFrame) -> DataFrame:
    """Parse a topic whose bodies are ids, or JSON objects with `msg_id` and optionally `topic` and `group`."""
    from pyspark.sql import functions as F

    text = F.decode("body", "UTF-8")
    fields = {name: F.get_json_object(text, f"$.{name}") for name in ("msg_id", "topic", "group")}
    plain_id = F.when(~F.startswith(F.ltrim(text), F.lit("{")), F.trim(text))
    return messages.select(
        F.coalesce(plain_id, fields["msg_id"]).alias("msg_id"),
        fields["topic"].alias("topic"),
        fields["group"].alias("group"),
        F.col("store_timestamp").alias("time"),
    )


def sent_in_table(table: DataFrame, topics: Sequence[str], id_column: str) -> DataFrame:
    """Return the sent ids of these topics, from a table."""
    from pyspark.sql import functions as F

    ids = _ids(table, id_column, "topic", topics)
    counts = (F.count("*").alias("sent"), F.count("*").alias("tried"), F.min("time").alias("sent_at"))
    return ids.groupBy("topic", "msg_id").agg(*counts)


def handled_in_table(table: DataFrame, groups: Sequence[str], id_column: str) -> DataFrame:
    """Return the handled ids of these groups, from a table."""
    return _handled(_ids(table, id_column, "group", groups))


def _handled(ids: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return ids.groupBy("group", "msg_id").agg(F.count("*").alias("handled"), F.min("time").alias("handled_at"))


def _ids(table: DataFrame, id_column: str, by: str, names: Sequence[str]) -> DataFrame:
    """Return ids with a time and their topic or group: from a column, or the only one in `names`."""
    from pyspark.sql import functions as F

    columns = {name.lower(): name for name in table.columns}
    if id_column.lower() not in columns:
        raise Refused(
            f"the table of ids has no column {id_column!r}: set --id-column to one of {', '.join(table.columns)}"
        )
    owner: Column | None = table[columns[by]] if by in columns else None
    if len(names) == 1:
        owner = F.lit(names[0]) if owner is None else F.coalesce(owner, F.lit(names[0]))
    if owner is None:
        raise Refused(
            f"the table of ids has no column {by!r}, and there is more than one {by}: add the column, or audit one "
            f"{by} at a time"
        )
    timestamp = next(
        (_timestamp(table, columns[name]) for name in _TIMES if name in columns), F.lit(None).cast("timestamp")
    )
    ids = table.select(
        owner.alias(by),
        F.trim(table[columns[id_column.lower()]].cast("string")).alias("msg_id"),
        timestamp.alias("time"),
    )
    return ids.where(F.col(by).isin(*names) & (F.col("msg_id") != ""))


def _timestamp(table: DataFrame, name: str) -> Column:
    """Return a column as a timestamp; it may hold timestamps, milliseconds or text."""
    from pyspark.sql import functions as F

    column, kind = table[name], dict(table.dtypes)[name]
    if kind.startswith(("timestamp", "date")):
        return column.cast("timestamp")
    if kind == "string":
        return F.coalesce(F.timestamp_millis(column.try_cast("bigint")), column.try_cast("timestamp"))
    return F.timestamp_millis(column.cast("bigint"))
