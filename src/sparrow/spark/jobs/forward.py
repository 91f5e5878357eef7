"""Forward job: copy a backlog to another topic, usually one with more queues or on other brokers, exactly once.

1. One task reads a source queue from start to end, and the key of a message alone selects its target queue. So messages
   with the same key keep their order, if their producers sent them to one queue.
2. Body, id, properties, flags and time of birth of a message are copied. Offset and store time are new.
3. Progress is in the checkpoint. It is also committed to a group of the source's cluster, so that the lag is visible.
4. The target may be in another cluster. Its brokers keep the ledger, so that each batch is written once.
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
    """Arguments of the forward job."""

    name_servers: str
    sources: tuple[str, ...]
    target: str
    checkpoint: str
    group: str | None = None
    """The consumer group to which progress is committed."""
    starting_offsets: str = "earliest"
    """Where the first run starts: `earliest`, `latest`, `group:NAME`, or JSON."""
    where: str | None = None
    """SQL filter over the columns of the source."""
    tags: str | None = None
    by: str | None = None
    """SQL expression for the key that selects the queue; by default the sharding key, then the keys."""
    interval_s: float | None = None
    """Interval of batches, until stopped; None: forward what exists now, then end."""
    batch_rows_max: int = 1_000_000
    target_queues: int = 16
    """Queues on each broker, if the target topic is created."""
    target_name_servers: str | None = None
    """The name servers of the target topic; None: those of the source."""
    options: dict[str, str] = {}
    """Client options, `sparrow.*`."""
    target_options: dict[str, str] = {}
    """Client options that differ for the brokers of the target."""


class ForwardResult(msgspec.Struct, frozen=True):
    """Result of a forward run."""

    read: int
    written: int | None
    """None: Spark no longer has the numbers of all batches."""


def run(
    spark: SparkSession, arguments: ForwardJob, *, on_progress: ProgressCallback = lambda done: None
) -> ForwardResult:
    """Forward what exists now or, with `interval_s`, run until stopped."""
    check_topics(arguments)
    with translate_spark_errors():
        read = read_stream(
            spark,
            (*FORWARDED_COLUMNS, *columns_in_sql(arguments.where, arguments.by)),
            nameServers=arguments.name_servers,
            subscribe=",".join(arguments.sources),
            startingOffsets=arguments.starting_offsets,
            maxOffsetsPerTrigger=str(arguments.batch_rows_max),
            # One task per queue, whatever its length: two tasks would write concurrently.
            maxRecordsPerPartition="0",
            targetRowsPerTask="0",
            groupId=arguments.group,
            tags=arguments.tags,
            decompress=str("body" in columns_in_sql(arguments.where, arguments.by)).lower(),
            onUndecodable="raise",  # a copy needs the body
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
    """Return messages as rows for the target topic."""
    return to_sink_rows(messages if where is None else messages.where(where), by=by)
