"""A declared pipeline at work, or looked at before it works."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from sparrow.model.errors import Refused
from sparrow.spark.pipelines import sinks as pipelines_sinks
from sparrow.spark.pipelines.definition import Pipeline
from sparrow.spark.pipelines.frames import build
from sparrow.spark.runtime.progress import LOOK_S, Done, Told, behind_of, failing_in_a_sentence, sentence_of, watch_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Ran(msgspec.Struct, frozen=True):
    rows: int
    """Read by all streams together; 0 where nothing is a stream."""
    sinks: int


def run(spark: SparkSession, pipeline: Pipeline, *, told: Told) -> Ran:
    """Until all is read, or for ever; Ctrl-C stops the queries between two batches' commits."""
    frames = build(spark, pipeline)
    bounded = [sink for sink in pipeline.sinks if not frames[sink.input].isStreaming]
    for sink in bounded:
        with watch_job(spark, told, what=f"{pipeline.name}.{sink.name}"):
            pipelines_sinks.write(frames[sink.input], pipeline, sink)
    with failing_in_a_sentence():
        queries = [
            pipelines_sinks.start(frames[sink.input], pipeline, sink)
            for sink in pipeline.sinks
            if frames[sink.input].isStreaming
        ]
    rows = _follow(queries, told) if queries else 0
    return Ran(rows, len(pipeline.sinks))


def _follow(queries: list[StreamingQuery], told: Told) -> int:
    """Several queries at once; the first that fails ends them all."""
    heard: dict[str, tuple[str, int, int | None]] = {query.id: ("", 0, None) for query in queries}
    try:
        with failing_in_a_sentence():
            while True:
                is_over = not any(query.isActive for query in queries)
                for query in queries:
                    if not query.isActive:
                        query.awaitTermination()  # raises what it died of
                    for progress in query.recentProgress:
                        at, rows, _ = heard[query.id]
                        if progress.timestamp > at:
                            heard[query.id] = (progress.timestamp, rows + progress.numInputRows, behind_of(progress))
                behind = [each[2] for each in heard.values() if each[2] is not None]
                told(Done(rows=sum(each[1] for each in heard.values()), behind=sum(behind) if behind else None))
                if is_over:
                    return sum(each[1] for each in heard.values())
                time.sleep(LOOK_S)
    except BaseException:
        for query in queries:
            query.stop()
        raise


def validate(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    """Whether all parts fit: names, columns and types. Nobody is asked for rows, and no broker need run."""
    from pyspark.errors import PySparkException

    frames = build(spark, pipeline, is_empty=True)
    for sink in pipeline.sinks:
        try:
            frame = (
                pipelines_sinks.messages_of(frames[sink.input], sink) if sink.topic is not None else frames[sink.input]
            )
            for column in (*sink.partition_by, *sink.keys):
                if column not in frame.columns:
                    known = ", ".join(frame.columns)
                    raise Refused(f"sink {sink.name!r} names the column {column!r}; there are {known}")
        except PySparkException as cause:
            raise Refused(f"sink {sink.name!r}: {sentence_of(str(cause))}") from cause
    return frames
