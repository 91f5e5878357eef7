"""Streams from topics to topics: reading and writing steps that the forward, dedupe and dead-letter jobs share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from sparrow.model.errors import Refused
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.spark.jobs.copy.message_copy import COPIED_COLUMNS
from sparrow.spark.jobs.target_cluster import is_same_cluster
from sparrow.spark.options import parse_client_options
from sparrow.spark.runtime.progress import JobProgress
from sparrow.spark.runtime.session import activate
from sparrow.spark.runtime.spark_errors import shorten_batch_errors
from sparrow.spark.source.schema import COLUMN_TYPES
from sparrow.wire.properties import NAME_SEPARATOR, VALUE_SEPARATOR

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


FORWARDED_COLUMNS = ("body", *COPIED_COLUMNS, "keys", "msg_id")
"""Columns that are read to copy a message; the last two only select the queue."""


INTERVAL_MIN_S = 1.0
"""Minimum interval of batches; a shorter one would only cause overhead."""


def to_sink_rows(messages: DataFrame, *, by: str | None = None) -> DataFrame:
    """Return messages with all columns to copy. `by`: SQL expression for the key that selects the queue."""
    from pyspark.sql import functions as f

    key = extract_property("properties_raw", PROPERTY_SHARDING_KEY) if by is None else f.expr(by).cast("string")
    return messages.select(*FORWARDED_COLUMNS, key.alias("sharding_key"))


def extract_property(raw: str, name: str) -> Column:
    """Extract one property from the property string; empty if it is not set."""
    from pyspark.sql import functions as f

    prefix = f"(?:^|{VALUE_SEPARATOR}){re.escape(name)}{NAME_SEPARATOR}"
    return f.regexp_extract(raw, f"{prefix}([^{VALUE_SEPARATOR}]*)", 1)


def columns_in_sql(*expressions: str | None) -> list[str]:
    """Return the columns of a topic that occur in the SQL; the others need not be read."""
    identifiers = {identifier for sql in expressions for identifier in re.findall(r"\w+", (sql or "").lower())}
    return [name for name in COLUMN_TYPES if name in identifiers]


def read_stream(spark: SparkSession, columns: Sequence[str], **options: str | None) -> DataFrame:
    """Read these columns of topics as a stream. Options that are None are not set."""
    given = {name: text for name, text in options.items() if text is not None}
    return spark.readStream.format("sparrow").schema(topic_schema(columns)).options(**given).load()


def topic_schema(columns: Sequence[str]) -> str:
    """Return the schema with these columns of a topic."""
    return ", ".join(f"`{name}` {COLUMN_TYPES[name]}" for name in dict.fromkeys(columns))


class TopicJob(Protocol):
    """Arguments of a job that copies topics to a topic."""

    @property
    def name_servers(self) -> str: ...
    @property
    def sources(self) -> tuple[str, ...]: ...
    @property
    def target(self) -> str: ...
    @property
    def target_queues(self) -> int: ...
    @property
    def target_name_servers(self) -> str | None: ...
    @property
    def options(self) -> dict[str, str]: ...
    @property
    def target_options(self) -> dict[str, str]: ...


def check_topics(arguments: TopicJob) -> None:
    """Raise `Refused` if there is no source, or if the target is also a source."""
    if not arguments.sources:
        raise Refused("no source topic: name at least one topic to read")
    if arguments.target in arguments.sources and is_same_cluster(
        arguments.target,
        parse_client_options(arguments.name_servers, arguments.options),
        parse_client_options(_target_name_servers(arguments), _target_options(arguments)),
    ):
        raise Refused(
            f"topic {arguments.target!r} is both source and target, so the job would never end: use another target "
            "topic, or the name servers of another cluster"
        )


def topic_sink_options(arguments: TopicJob) -> dict[str, str]:
    """Return the options for the sink."""
    return {
        "nameServers": _target_name_servers(arguments),
        "topic": arguments.target,
        "topicQueues": str(arguments.target_queues),
        **_target_options(arguments),
    }


def _target_name_servers(arguments: TopicJob) -> str:
    return arguments.target_name_servers or arguments.name_servers


def _target_options(arguments: TopicJob) -> dict[str, str]:
    return arguments.options | arguments.target_options


def write_stream(
    rows: DataFrame,
    *,
    name: str,
    checkpoint: str,
    interval_s: float | None,
    options: Mapping[str, str],
    arrange: Callable[[DataFrame], DataFrame] | None = None,
) -> StreamingQuery:
    """Write rows to topics exactly once, until all is read or, with `interval_s`, until stopped.

    `arrange` transforms each micro-batch before it is written: a stream cannot be sorted, a micro-batch can.
    """
    if interval_s is not None and interval_s < INTERVAL_MIN_S:
        raise Refused(f"the interval {interval_s} s is too short: use {INTERVAL_MIN_S} s or more")
    activate(rows.sparkSession)
    writer = rows.writeStream.queryName(name).option("checkpointLocation", checkpoint)
    if interval_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{interval_s} seconds")
    if arrange is None:
        return writer.format("sparrow").options(**options).start()

    def write(batch: DataFrame, _: int) -> None:
        arrange(batch).write.format("sparrow").mode("append").options(**options).save()

    return writer.foreachBatch(shorten_batch_errors(write)).start()


def rows_written(query: StreamingQuery, done: JobProgress) -> int | None:
    """Return how many rows a finished query has written; None if Spark does not know any more."""
    batches = query.recentProgress
    if sum(progress.numInputRows for progress in batches) != done.rows:
        return None
    counts = [progress.sink.numOutputRows for progress in batches if progress.numInputRows]
    return None if any(count < 0 for count in counts) else sum(counts)
