"""A backlog to another topic, usually one with more queues: exactly once, and in order for each key.

1. A source queue is read by one task, from its beginning to its end, and a row's key alone says to which queue it goes.
   So messages with one key stay in order, as long as their producers sent them to one queue.
2. A message stays what it is: body, id, properties, flags, time of birth. Its offset and store time are new.
3. Progress is in the checkpoint; a group shows it, so that its lag is seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sparrow.spark.jobs.topic_streams import (
    FORWARDED_COLUMNS,
    check_topics,
    columns_in_sql,
    read_stream,
    rows_written,
    to_sink_rows,
    topic_sink_options,
    write_stream,
)
from sparrow.spark.runtime.progress import ProgressCallback, follow_query
from sparrow.spark.runtime.spark_errors import translate_spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ForwardJob(msgspec.Struct, frozen=True, kw_only=True):
    name_servers: str
    sources: tuple[str, ...]
    target: str
    checkpoint: str
    group: str | None = None
    """Shows how far the job is."""
    starting_offsets: str = "earliest"
    """Of the first run: `earliest`, `latest`, `group:NAME`, or JSON."""
    where: str | None = None
    """SQL over the source's columns; what does not fit stays behind."""
    tags: str | None = None
    by: str | None = None
    """SQL for the key that keeps its order, in place of the sharding key or else the keys."""
    interval_s: float | None = None
    """Go on for ever, and look so often; None: up to what is there now."""
    batch_rows_max: int = 1_000_000
    target_queues: int = 16
    """On each broker, of a target that is not there yet."""
    options: dict[str, str] = {}
    """Of the client, `sparrow.*`."""


class ForwardResult(msgspec.Struct, frozen=True):
    read: int
    written: int | None
    """None: too many batches to know."""


def run(
    spark: SparkSession, arguments: ForwardJob, *, on_progress: ProgressCallback = lambda done: None
) -> ForwardResult:
    """Forward what there is; with `every_s`, whatever comes."""
    check_topics(arguments.sources, arguments.target)
    with translate_spark_errors():
        read = read_stream(
            spark,
            (*FORWARDED_COLUMNS, *columns_in_sql(arguments.where, arguments.by)),
            nameserver=arguments.name_servers,
            subscribe=",".join(arguments.sources),
            startingOffsets=arguments.starting_offsets,
            maxOffsetsPerTrigger=str(arguments.batch_rows_max),
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
            interval_s=arguments.interval_s,
            options=topic_sink_options(arguments),
        )
    done = follow_query(query, on_progress)
    return ForwardResult(done.rows, rows_written(query, done))


def to_forwarded_rows(messages: DataFrame, *, where: str | None = None, by: str | None = None) -> DataFrame:
    """Messages of a topic as rows for another one."""
    return to_sink_rows(messages if where is None else messages.where(where), by=by)


# -- streams of messages ----------------------------------------------------------------------------------------------
