"""Statistics job: rates, sizes, latencies, hot keys, handlers and lag by minute, written to Parquet tables and a topic.

    PATH/messages  PATH/traces  PATH/lag        one table each, to which every run appends
    sparrow_stats                               the same rows as JSON with a `kind`; the key is the topic

With a time span the job runs once. With a checkpoint it runs three streams, which continue where they stopped. They
write a minute again as it fills up, to the topic exactly once for each batch. If a minute is in a table or topic more
than once, the last row is valid: see `measures.latest_measures`.

The end-to-end latency needs messages besides their traces, so only a run over a time span has it. A stream cannot know
how long a message will wait for its handler, and would have to keep all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from sparrow import clock
from sparrow.model.errors import Refused
from sparrow.model.protocol import TRACE_TOPIC
from sparrow.spark.jobs.stats import measures
from sparrow.spark.jobs.stats.lag import GroupLag, fetch_lag
from sparrow.spark.jobs.stats.measures import LAG_KIND, MESSAGES_KIND, MINUTE_S, TRACES_KIND
from sparrow.spark.jobs.time_span import JobTimeSpan, open_broker_metadata, read_time_span
from sparrow.spark.jobs.trace_records import TRACE_MESSAGE_SCHEMA, explode_records
from sparrow.spark.runtime.filesystem import join_path
from sparrow.spark.runtime.progress import JobProgress, ProgressCallback, follow_query, watch_job
from sparrow.spark.runtime.spark_errors import shorten_batch_errors, translate_spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STATS_TOPIC = "sparrow_stats"
WATERMARK_DELAY = "10 minutes"
"""Watermark delay: how long a stream waits for a queue whose messages are late."""
INTERVAL_MIN_S = 1
BIRTH_MARGIN_MS = 3_600_000
"""How far before the span messages are read whose handling may be in it."""
RECENT_ROWS_MAX = 20


class StatsJob(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the statistics job."""

    name_servers: str
    topics: tuple[str, ...]
    groups: tuple[str, ...] = ()
    """Groups whose lag is sampled; empty: all groups."""
    span: JobTimeSpan = JobTimeSpan()
    """Streams use only its start, and only at their first run."""
    traces: bool = True
    parquet: str | None = None
    topic: str | None = STATS_TOPIC
    hot_keys: int = 10
    checkpoint: str | None = None
    """The checkpoint of the streams; None: run once over the span."""
    interval_s: int | None = None
    """Interval of the streams' batches, until stopped; None: process what exists now, then end."""
    options: dict[str, str] = {}
    """Client options, `sparrow.*`."""

    def __post_init__(self) -> None:
        if not self.topics:
            raise Refused("no topic selected: name the topics to measure")
        if self.parquet is None and self.topic is None:
            raise Refused("no output: set a Parquet folder, a topic, or both")
        if self.interval_s is not None and self.checkpoint is None:
            raise Refused("a stream without a checkpoint would start over at every run: set a checkpoint")
        if self.interval_s is not None and self.interval_s < INTERVAL_MIN_S:
            raise Refused(f"the interval is too short: use {INTERVAL_MIN_S} s or more")
        if self.checkpoint is not None and self.span.until_ms is not None:
            raise Refused("a stream has no end: remove either the end of the span (until) or the checkpoint")


class StatsResult(msgspec.Struct, frozen=True):
    """Result of a statistics run."""

    rows: dict[str, int]
    """Rows written, by kind."""
    recent: tuple[dict[str, Any], ...] = ()
    """The last minutes of a span, by topic."""


def run(spark: SparkSession, stats: StatsJob, *, on_progress: ProgressCallback = lambda done: None) -> StatsResult:
    """Measure a time span, or run the streams."""
    out = StatsOutput(spark, stats)
    if stats.checkpoint is None:
        with watch_job(spark, on_progress, what="stats"):
            recent = _measure_span(spark, stats, out)
        return StatsResult(out.written, recent)
    with translate_spark_errors():
        queries = _start_streams(spark, stats, out)
    follow_queries(queries, on_progress)
    if stats.interval_s is None:
        with translate_spark_errors():
            out.write(LAG_KIND, _lag_frame(spark, stats))
    return StatsResult(out.written)


class StatsOutput:
    """Writes rows to the tables and the topic. Spark calls it in one thread for each stream."""

    def __init__(self, spark: SparkSession, stats: StatsJob) -> None:
        self._spark, self._stats = spark, stats
        self.written: dict[str, int] = {}

    def write(self, kind: str, found: DataFrame, *, shown_max: int = 0) -> list[dict[str, Any]]:
        """Write rows, and return the newest of them."""
        from pyspark.sql import functions as F

        stats = self._stats
        rows = found.withColumn("measured", F.timestamp_millis(F.lit(clock.now_ms()))).persist()
        try:
            count = rows.count()
            self.written[kind] = self.written.get(kind, 0) + count
            if not count:
                return []
            if stats.parquet is not None:
                # After a failure rows may be written twice, which is harmless: see `latest_measures`.
                rows.coalesce(1).write.mode("append").parquet(join_path(stats.parquet, kind))
            if stats.topic is not None:
                options = {"nameServers": stats.name_servers, "topic": stats.topic, "sinkName": f"stats-{kind}"}
                writer = measures.to_messages(rows, kind).write.format("sparrow").mode("append")
                writer.options(**options, **stats.options).save()
            if not shown_max:
                return []
            newest = rows.withColumn("window_ms", F.unix_millis("window")).drop("window", "measured")
            shown = newest.orderBy(F.desc("window_ms"), "topic").limit(shown_max).collect()
            return [row.asDict(recursive=True) for row in shown]
        finally:
            rows.unpersist()


# -- a time span ------------------------------------------------------------------------------------------------------


def _measure_span(spark: SparkSession, stats: StatsJob, out: StatsOutput) -> tuple[dict[str, Any], ...]:
    def read(topics: Sequence[str], schema: str, span: JobTimeSpan) -> DataFrame:
        options = {"decompress": "false", **stats.options}
        return read_time_span(spark, span, topics, schema, name_servers=stats.name_servers, options=options)

    found = measures.measure_messages(read(stats.topics, measures.MESSAGE_SCHEMA, stats.span), hot_keys=stats.hot_keys)
    recent = out.write(MESSAGES_KIND, found, shown_max=RECENT_ROWS_MAX)
    if stats.traces and TRACE_TOPIC in open_broker_metadata(stats.name_servers, stats.options).topics():
        traces = explode_records(
            read_time_span(
                spark,
                stats.span,
                [TRACE_TOPIC],
                TRACE_MESSAGE_SCHEMA,
                name_servers=stats.name_servers,
                options=stats.options,
            )
        )
        about = read(stats.topics, measures.BIRTH_SCHEMA, stats.span.extend(before_ms=BIRTH_MARGIN_MS))
        calls = measures.publish_calls(traces, stats.topics).unionByName(measures.consume_calls(traces, about))
        out.write(TRACES_KIND, _fill_topics(spark, stats, measures.measure_calls(calls)))
    out.write(LAG_KIND, _lag_frame(spark, stats))
    return tuple(recent)


# -- streams ----------------------------------------------------------------------------------------------------------


def _start_streams(spark: SparkSession, stats: StatsJob, out: StatsOutput) -> list[StreamingQuery]:
    """Start the streams. If one fails to start, stop the others."""
    queries: list[StreamingQuery] = []

    def start(kind: str, rows: DataFrame, written: Callable[[DataFrame], DataFrame]) -> None:
        def write(batch: DataFrame, _: int) -> None:
            out.write(kind, written(batch))

        writer = rows.writeStream.queryName(f"stats of {kind}").outputMode("update" if kind != LAG_KIND else "append")
        writer = writer.option("checkpointLocation", join_path(stats.checkpoint or "", kind))
        if stats.interval_s is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{stats.interval_s} seconds")
        queries.append(writer.foreachBatch(shorten_batch_errors(write)).start())

    try:
        messages = _read_stream(spark, stats, stats.topics, measures.MESSAGE_SCHEMA, decompress="false")
        messages = messages.withWatermark("store_timestamp", WATERMARK_DELAY)
        found = measures.measure_messages(messages, hot_keys=stats.hot_keys)
        start(MESSAGES_KIND, found, lambda batch: batch)
        if stats.traces:
            traces = explode_records(
                _read_stream(spark, stats, [TRACE_TOPIC], TRACE_MESSAGE_SCHEMA, topicMissing="wait")
            )
            traces = traces.withWatermark("stored", WATERMARK_DELAY)
            calls = measures.publish_calls(traces, stats.topics).unionByName(measures.consume_calls(traces))
            found = measures.measure_calls(calls)
            start(TRACES_KIND, found, lambda batch: _fill_topics(spark, stats, batch))
        if stats.interval_s is not None:
            # Lag changes even if nothing is sent, so this stream is driven by a clock.
            ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
            start(LAG_KIND, ticks, lambda batch: _lag_frame(spark, stats))
    except BaseException:
        for query in queries:
            query.stop()
        raise
    return queries


def _read_stream(spark: SparkSession, stats: StatsJob, topics: Sequence[str], schema: str, **more: str) -> DataFrame:
    """Read all that exists in one batch: with several, a queue with a newer backlog would make others appear late."""
    options = {"nameServers": stats.name_servers, "subscribe": ",".join(topics), "maxOffsetsPerTrigger": "0", **more}
    if stats.span.since_ms is not None:
        options |= {
            "startingTimestamp": str(stats.span.since_ms),
            "startingOffsetsByTimestampStrategy": "latest",
        }
    else:
        options["startingOffsets"] = "latest" if stats.interval_s is not None else "earliest"
    return spark.readStream.format("sparrow").schema(schema).options(**options, **stats.options).load()


def follow_queries(queries: Sequence[StreamingQuery], on_progress: ProgressCallback) -> None:
    """Wait until all queries have ended. If one fails, or on an interrupt, stop the others."""
    parts = [JobProgress() for _ in queries]

    def follow_one(index: int) -> None:
        def tell(done: JobProgress) -> None:
            parts[index] = done
            on_progress(JobProgress(rows=sum(part.rows for part in parts), lag=sum(part.lag or 0 for part in parts)))

        follow_query(queries[index], tell)

    with ThreadPoolExecutor(len(queries), "sparrow-stats") as pool:
        try:
            following = [pool.submit(follow_one, index) for index in range(len(queries))]
            wait(following, return_when=FIRST_EXCEPTION)
        finally:
            for query in queries:
                query.stop()
    for each in following:
        each.result()


# -- broker calls of the driver ---------------------------------------------------------------------------------------


def _fetch_lag(stats: StatsJob) -> list[GroupLag]:
    return fetch_lag(stats.name_servers, stats.options, stats.groups, clock.now_ms())


def _lag_frame(spark: SparkSession, stats: StatsJob) -> DataFrame:
    minute = _to_datetime(clock.now_ms() // (MINUTE_S * 1000) * MINUTE_S * 1000)
    rows = [(minute, *lag) for lag in _fetch_lag(stats) if lag.topic in stats.topics]
    return spark.createDataFrame(rows, measures.LAG_SCHEMA)


def _fill_topics(spark: SparkSession, stats: StatsJob, found: DataFrame) -> DataFrame:
    """Fill in the topic that the group of a consumer reads."""
    every = fetch_lag(stats.name_servers, stats.options, (), clock.now_ms())
    read = spark.createDataFrame([(lag.group, lag.topic) for lag in every], "`group` string, topic string")
    return measures.fill_topics(found, read, stats.topics)


def _to_datetime(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
