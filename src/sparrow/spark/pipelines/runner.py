"""Run or validate a pipeline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from sparrow.model.errors import Refused
from sparrow.spark.pipelines import sinks as pipelines_sinks
from sparrow.spark.pipelines.definition import Pipeline
from sparrow.spark.pipelines.frames import build_frames
from sparrow.spark.pipelines.reporter import StatusReporter
from sparrow.spark.runtime.progress import POLL_INTERVAL_S, JobProgress, ProgressCallback, query_lag, watch_job
from sparrow.spark.runtime.spark_errors import summarize_error, translate_spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class PipelineResult(msgspec.Struct, frozen=True):
    """Result of a pipeline run."""

    rows: int
    """Rows read by all streams; 0 without streams."""
    sinks: int


def run_pipeline(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    on_progress: ProgressCallback,
    reporter: StatusReporter | None = None,
) -> PipelineResult:
    """Run until everything is read, or until stopped. Ctrl-C stops the queries between two commits.

    `reporter` writes the state of the queries to files, and may ask for the end.
    """
    frames = build_frames(spark, pipeline)
    if reporter is not None:
        reporter.begin()
    bounded = [sink for sink in pipeline.sinks if not frames[sink.input].isStreaming]
    for sink in bounded:
        with watch_job(spark, on_progress, what=f"{pipeline.name}.{sink.name}"):
            pipelines_sinks.write_sink(frames[sink.input], pipeline, sink)
    with translate_spark_errors():
        queries = [
            pipelines_sinks.start_sink(frames[sink.input], pipeline, sink)
            for sink in pipeline.sinks
            if frames[sink.input].isStreaming
        ]
    rows = _follow_queries(queries, on_progress, reporter) if queries else 0
    return PipelineResult(rows, len(pipeline.sinks))


def _follow_queries(
    queries: list[StreamingQuery], on_progress: ProgressCallback, reporter: StatusReporter | None
) -> int:
    """Wait for several queries; stop all when one fails, or when the reporter is asked to stop."""
    states: dict[str, tuple[str, int, int | None]] = {query.id: ("", 0, None) for query in queries}
    try:
        with translate_spark_errors():
            while True:
                is_over = not any(query.isActive for query in queries)
                for query in queries:
                    if not query.isActive:
                        query.awaitTermination()  # raises the error of the query
                    batches = query.recentProgress
                    if reporter is not None:
                        reporter.report(query, batches)
                    for progress in batches:
                        at, rows, _ = states[query.id]
                        if progress.timestamp > at:
                            states[query.id] = (progress.timestamp, rows + progress.numInputRows, query_lag(progress))
                lags = [each[2] for each in states.values() if each[2] is not None]
                on_progress(JobProgress(rows=sum(each[1] for each in states.values()), lag=sum(lags) if lags else None))
                if is_over:
                    return sum(each[1] for each in states.values())
                if reporter is not None and reporter.is_stop_requested():
                    for query in queries:
                        query.stop()
                time.sleep(POLL_INTERVAL_S)
    except BaseException:
        for query in queries:
            query.stop()
        raise


def validate_pipeline(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    """Check names, columns and types of all parts, without reading rows or calling a broker."""
    from pyspark.errors import PySparkException

    frames = build_frames(spark, pipeline, is_empty=True)
    for sink in pipeline.sinks:
        try:
            frame = (
                pipelines_sinks.to_messages(frames[sink.input], sink) if sink.topic is not None else frames[sink.input]
            )
            for column in (*sink.partition_by, *sink.keys):
                if column not in frame.columns:
                    known = ", ".join(frame.columns)
                    raise Refused(
                        f"sink {sink.name!r} uses the column {column!r}, which does not exist. Columns: {known}"
                    )
        except PySparkException as cause:
            raise Refused(f"sink {sink.name!r}: {summarize_error(str(cause))}") from cause
    return frames
