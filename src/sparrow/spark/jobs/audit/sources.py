"""Who says what was sent, what is stored and what was handled: a row an id, with how often and since when.

    sent      topic, msg_id, sent, tried, sent_at          traces of producers, or a table of ids
    stored    topic, msg_id, stored, stored_at             the topics themselves
    handled   group, msg_id, handled, handled_at           traces of consumers, or a table of ids

A send that failed was `tried` and not `sent`: it may be stored or not, and neither is a mistake. The same holds for
half of a transaction that was never committed.
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

TRACE, NONE, TOPIC = "trace", "none", "topic:"
"""Words for a side: the trace topic, nobody knows, a topic of ids. Everything else is a path."""
ID, KEYS, PROPERTY = "msg_id", "keys", "property:"
"""What a message is known by."""
_TIMES = ("time", "sent_at", "handled_at", "added", "born_timestamp", "store_timestamp")
"""Names of a table's column of times."""


# -- the topics -------------------------------------------------------------------------------------------------------


def stored_schema(match: str) -> str:
    """The columns of a topic that `stored_ids` wants."""
    column = "properties" if match.startswith(PROPERTY) else match
    return ", ".join(f"{name} {COLUMN_TYPES[name]}" for name in ("topic", column, "store_timestamp"))


def with_match_id(messages: DataFrame, match: str) -> DataFrame:
    """Messages with what they are known by as `msg_id`; null: nobody can tell them apart."""
    from pyspark.sql import functions as F

    key = F.col("properties")[match.removeprefix(PROPERTY)] if match.startswith(PROPERTY) else F.col(match)
    return messages.select("topic", F.nullif(key, F.lit("")).alias("msg_id"), F.col("store_timestamp").alias("time"))


def stored_ids(messages: DataFrame) -> DataFrame:
    """Messages without an id are one row of their topic."""
    from pyspark.sql import functions as F

    return messages.groupBy("topic", "msg_id").agg(F.count("*").alias("stored"), F.min("time").alias("stored_at"))


# -- traces -----------------------------------------------------------------------------------------------------------


def sent_in_traces(traces: DataFrame, topics: Sequence[str], match: str, tags: Sequence[str] = ()) -> DataFrame:
    from pyspark.sql import functions as F

    about = traces.where(F.col("record").isin(PUB, END_TRANSACTION) & F.col("topic").isin(*topics))
    if tags:
        about = about.where(F.col("tags").isin(*tags))
    # Java's trace of a batch names all its ids in one record.
    about = about.withColumn("msg_id", F.explode(F.split(match, ",") if match == ID else F.array(match)))
    is_whole = (F.col("record") == PUB) & F.col("is_success") & (F.col("kind") != int(TracedMessageType.HALF))
    is_committed = (F.col("record") == END_TRANSACTION) & (F.col("state") == TransactionState.COMMIT.value)
    return (
        about.where("msg_id != ''")
        .groupBy("topic", "msg_id")
        .agg(
            # Checks may commit a transaction again and again.
            (F.count_if(is_whole) + F.max(is_committed.cast("bigint"))).alias("sent"),
            F.count("*").alias("tried"),
            F.min("time").alias("sent_at"),
        )
    )


def handled_in_traces(traces: DataFrame, groups: Sequence[str], match: str) -> DataFrame:
    """How often handlers were done with a message; those that failed are to try again, which is no second time."""
    from pyspark.sql import functions as F

    ended = traces.where((F.col("record") == SUB_AFTER) & F.col("is_success") & F.col("group").isin(*groups))
    ended = ended.select("group", F.col(match).alias("msg_id"), F.coalesce("time", "stored").alias("time"))
    return _handled(ended.where("msg_id != ''"))


# -- tables and topics of ids -----------------------------------------------------------------------------------------


def read_id_table(spark: SparkSession, path: str) -> DataFrame:
    """By its name: CSV with a header, JSON lines, or Parquet."""
    match PurePosixPath(path).suffix.lower():
        case ".csv":
            return spark.read.csv(path, header=True)
        case ".json" | ".jsonl" | ".ndjson":
            return spark.read.json(path)
        case _:
            return spark.read.parquet(path)


def read_id_topic(messages: DataFrame) -> DataFrame:
    """A topic whose bodies are ids, or JSON objects with `msg_id`, and perhaps `topic` and `group`."""
    from pyspark.sql import functions as F

    text = F.decode("body", "UTF-8")
    said = {name: F.get_json_object(text, f"$.{name}") for name in ("msg_id", "topic", "group")}
    plain = F.when(~F.startswith(F.ltrim(text), F.lit("{")), F.trim(text))
    return messages.select(
        F.coalesce(plain, said["msg_id"]).alias("msg_id"),
        said["topic"].alias("topic"),
        said["group"].alias("group"),
        F.col("store_timestamp").alias("time"),
    )


def sent_in_table(table: DataFrame, topics: Sequence[str], id_column: str) -> DataFrame:
    from pyspark.sql import functions as F

    ids = _ids(table, id_column, "topic", topics)
    counts = (F.count("*").alias("sent"), F.count("*").alias("tried"), F.min("time").alias("sent_at"))
    return ids.groupBy("topic", "msg_id").agg(*counts)


def handled_in_table(table: DataFrame, groups: Sequence[str], id_column: str) -> DataFrame:
    return _handled(_ids(table, id_column, "group", groups))


def _handled(ids: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return ids.groupBy("group", "msg_id").agg(F.count("*").alias("handled"), F.min("time").alias("handled_at"))


def _ids(table: DataFrame, id_column: str, by: str, names: Sequence[str]) -> DataFrame:
    """Ids with a time, and the topic or the group they are of: as a column says, or the only one there is."""
    from pyspark.sql import functions as F

    there = {name.lower(): name for name in table.columns}
    if id_column.lower() not in there:
        raise Refused(f"the table of ids has no column {id_column!r}; it has {', '.join(table.columns)}")
    owner: Column | None = table[there[by]] if by in there else None
    if len(names) == 1:
        owner = F.lit(names[0]) if owner is None else F.coalesce(owner, F.lit(names[0]))
    if owner is None:
        raise Refused(f"the table of ids has no column {by!r}, and there is more than one {by} it could be of")
    moment = next((_moment(table, there[name]) for name in _TIMES if name in there), F.lit(None).cast("timestamp"))
    ids = table.select(
        owner.alias(by), F.trim(table[there[id_column.lower()]].cast("string")).alias("msg_id"), moment.alias("time")
    )
    return ids.where(F.col(by).isin(*names) & (F.col("msg_id") != ""))


def _moment(table: DataFrame, name: str) -> Column:
    """A time, whether it is one, milliseconds, or words."""
    from pyspark.sql import functions as F

    column, kind = table[name], dict(table.dtypes)[name]
    if kind.startswith(("timestamp", "date")):
        return column.cast("timestamp")
    if kind == "string":
        return F.coalesce(F.timestamp_millis(column.try_cast("bigint")), column.try_cast("timestamp"))
    return F.timestamp_millis(column.cast("bigint"))
