"""A backlog to another topic, usually one with more queues: exactly once, and in order for each key.

1. A source queue is read by one task, from its beginning to its end, and a row's key alone says to which queue it goes.
   So messages with one key stay in order, as long as their producers sent them to one queue.
2. A message stays what it is: body, id, properties, flags, time of birth. Its offset and store time are new.
3. Progress is in the checkpoint; a group shows it, so that its lag is seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from sparrow.model.errors import Refused
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.spark.jobs.copy.message_copy import COPIED_COLUMNS
from sparrow.spark.runtime.progress import (
    JobProgress,
    ProgressCallback,
    follow_query,
    shorten_batch_errors,
    translate_spark_errors,
)
from sparrow.spark.source.schema import COLUMN_TYPES
from sparrow.wire.properties import NAME_SEPARATOR, VALUE_SEPARATOR

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORWARDED_COLUMNS = ("body", *COPIED_COLUMNS, "keys", "msg_id")
"""What is read of a message to write it again; the last two only choose its queue."""
INTERVAL_MIN_S = 1.0
"""A stream that looks more often is busy with looking."""


class ForwardJob(msgspec.Struct, frozen=True, kw_only=True):
    name_servers: str
    sources: tuple[str, ...]
    target: str
    checkpoint: str
    group: str | None = None
    """Shows how far the job is."""
    starting: str = "earliest"
    """Of the first run: `earliest`, `latest`, `group:NAME`, or JSON."""
    where: str | None = None
    """SQL over the source's columns; what does not fit stays behind."""
    tags: str | None = None
    by: str | None = None
    """SQL for the key that keeps its order, in place of the sharding key or else the keys."""
    every_s: float | None = None
    """Go on for ever, and look so often; None: up to what is there now."""
    rows_a_batch: int = 1_000_000
    target_queues: int = 16
    """On each broker, of a target that is not there yet."""
    options: dict[str, str] = {}
    """Of the client, `sparrow.*`."""


class ForwardResult(msgspec.Struct, frozen=True):
    read: int
    written: int | None
    """None: too many batches to know."""


def run(spark: SparkSession, arguments: ForwardJob, *, told: ProgressCallback = lambda done: None) -> ForwardResult:
    """Forward what there is; with `every_s`, whatever comes."""
    check_topics(arguments.sources, arguments.target)
    with translate_spark_errors():
        read = read_stream(
            spark,
            (*FORWARDED_COLUMNS, *columns_in_sql(arguments.where, arguments.by)),
            nameserver=arguments.name_servers,
            subscribe=",".join(arguments.sources),
            startingOffsets=arguments.starting,
            maxOffsetsPerTrigger=str(arguments.rows_a_batch),
            # One task a queue, whatever its length: two would be written side by side.
            maxRecordsPerPartition="0",
            targetRowsPerTask="0",
            groupId=arguments.group,
            tags=arguments.tags,
            decompress=str("body" in columns_in_sql(arguments.where, arguments.by)).lower(),
            **arguments.options,
        )
        query = write_stream(
            to_forwarded_rows(read, where=arguments.where, by=arguments.by),
            name=f"forward-{arguments.target}",
            checkpoint=arguments.checkpoint,
            every_s=arguments.every_s,
            options=topic_sink_options(arguments),
        )
    done = follow_query(query, told)
    return ForwardResult(done.rows, rows_written(query, done))


def check_topics(sources: Sequence[str], target: str) -> None:
    if not sources:
        raise Refused("say which topics to read")
    if target in sources:
        raise Refused(f"topic {target!r} cannot be read and written by one job: it would never end")


def to_forwarded_rows(messages: DataFrame, *, where: str | None = None, by: str | None = None) -> DataFrame:
    """Messages of a topic as rows for another one."""
    return to_sink_rows(messages if where is None else messages.where(where), by=by)


def to_sink_rows(messages: DataFrame, *, by: str | None = None) -> DataFrame:
    """All that a message is, as a sink takes it. `by`: SQL for the key that chooses its queue."""
    from pyspark.sql import functions as f

    key = extract_property("properties_raw", PROPERTY_SHARDING_KEY) if by is None else f.expr(by).cast("string")
    return messages.select(*FORWARDED_COLUMNS, key.alias("sharding_key"))


def extract_property(raw: str, name: str) -> Column:
    """One property, of the column with all of them as a record has them; empty if there is none."""
    from pyspark.sql import functions as f

    begun = f"(?:^|{VALUE_SEPARATOR}){re.escape(name)}{NAME_SEPARATOR}"
    return f.regexp_extract(raw, f"{begun}([^{VALUE_SEPARATOR}]*)", 1)


# -- streams of messages ----------------------------------------------------------------------------------------------


def columns_in_sql(*expressions: str | None) -> list[str]:
    """Columns of a topic that SQL may speak of: what it does not, need not be read."""
    words = {word for sql in expressions for word in re.findall(r"\w+", (sql or "").lower())}
    return [name for name in COLUMN_TYPES if name in words]


def read_stream(spark: SparkSession, columns: Sequence[str], **options: str | None) -> DataFrame:
    """These columns of topics, as a stream; an option that is None is not set."""
    said = {name: text for name, text in options.items() if text is not None}
    return spark.readStream.format("sparrow").schema(topic_schema(columns)).options(**said).load()


def topic_schema(columns: Sequence[str]) -> str:
    """A schema of these columns of a topic."""
    return ", ".join(f"`{name}` {COLUMN_TYPES[name]}" for name in dict.fromkeys(columns))


class TopicJob(Protocol):
    """Arguments of a job that writes a topic."""

    @property
    def name_servers(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def target_queues(self) -> int: ...
    @property
    def options(self) -> dict[str, str]: ...


def topic_sink_options(arguments: TopicJob) -> dict[str, str]:
    """For the sink."""
    return {
        "nameserver": arguments.name_servers,
        "topic": arguments.target,
        "topicQueues": str(arguments.target_queues),
        **arguments.options,
    }


def write_stream(
    rows: DataFrame,
    *,
    name: str,
    checkpoint: str,
    every_s: float | None,
    options: Mapping[str, str],
    arranged: Callable[[DataFrame], DataFrame] | None = None,
) -> StreamingQuery:
    """Rows to topics, exactly once, until there is no more or (`every_s`) for ever.

    `arranged`: what is done with each micro-batch before it is written; a stream cannot be sorted, its batches can.
    """
    if every_s is not None and every_s < INTERVAL_MIN_S:
        raise Refused(f"a stream that looks every {every_s} s would do little else: say {INTERVAL_MIN_S} s or more")
    writer = rows.writeStream.queryName(name).option("checkpointLocation", checkpoint)
    if every_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{every_s} seconds")
    if arranged is None:
        return writer.format("sparrow").options(**options).start()

    def write(batch: DataFrame, _: int) -> None:
        arranged(batch).write.format("sparrow").mode("append").options(**options).save()

    return writer.foreachBatch(shorten_batch_errors(write)).start()


def rows_written(query: StreamingQuery, done: JobProgress) -> int | None:
    """How many rows a query that has ended gave its sink; None: Spark does not remember, or never knew."""
    remembered = query.recentProgress
    if sum(progress.numInputRows for progress in remembered) != done.rows:
        return None
    counts = [progress.sink.numOutputRows for progress in remembered if progress.numInputRows]
    return None if any(count < 0 for count in counts) else sum(counts)
