"""DataFrames of the sources and steps of a pipeline, each registered as a temporary view."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sparrow.model.errors import Refused
from sparrow.spark.pipelines.definition import Pipeline, Source, Step
from sparrow.spark.runtime.spark_errors import summarize_error
from sparrow.spark.source.schema import default_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def option_strings(options: Mapping[str, str | int | bool]) -> dict[str, str]:
    """Return options as strings, as Spark expects them."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def build_frames(spark: SparkSession, pipeline: Pipeline, *, is_empty: bool = False) -> dict[str, DataFrame]:
    """Return the frame of every source and step, by name. `is_empty`: without rows and broker calls, for validation."""
    from pyspark.errors import PySparkException

    frames: dict[str, DataFrame] = {}
    for source in pipeline.sources:
        frame = _empty_frame(spark, source) if is_empty else _read(spark, pipeline, source)
        frames[source.name] = _add_json_and_watermark(frame, source)
        frames[source.name].createOrReplaceTempView(source.name)
    for step in pipeline.steps:
        try:
            frames[step.name] = _run_step(spark, step, frames)
        except PySparkException as cause:
            raise Refused(f"step {step.name!r}: {summarize_error(str(cause))}") from cause
        frames[step.name].createOrReplaceTempView(step.name)
    return frames


def _read(spark: SparkSession, pipeline: Pipeline, source: Source) -> DataFrame:
    reader = (spark.readStream if source.stream else spark.read).options(**option_strings(source.options))
    if source.columns is not None:
        reader = reader.schema(source.columns)
    if source.parquet is not None:
        return reader.parquet(source.parquet)
    reader = reader.format("sparrow").option("nameServers", pipeline.name_servers_of(source))
    chosen = ("subscribe", source.topic) if source.topic else ("subscribePattern", source.pattern)
    return reader.option(*chosen).load()


def _empty_frame(spark: SparkSession, source: Source) -> DataFrame:
    if source.parquet is not None and source.columns is None:
        return spark.read.options(**option_strings(source.options)).parquet(source.parquet).limit(0)
    is_kafka = str(source.options.get("kafkaSchema", "")).lower() == "true"
    return spark.createDataFrame([], source.columns or default_ddl(kafka=is_kafka, headers=True))


def _add_json_and_watermark(frame: DataFrame, source: Source) -> DataFrame:
    """Add the columns of the JSON body, and the watermark."""
    if source.json is not None:
        from pyspark.sql import functions as f

        body = next((name for name in ("body", "value") if name in frame.columns), None)
        if body is None:
            raise Refused(f"source {source.name!r} parses JSON, but its columns do not include body: add it to columns")
        parsed = frame.withColumn("__json", f.from_json(f.col(body).cast("string"), source.json))
        frame = parsed.select(*(name for name in parsed.columns if name != "__json"), "__json.*")
    for column, delay in source.watermark.items():
        if column not in frame.columns:
            raise Refused(f"source {source.name!r}: the watermark column {column!r} does not exist")
        frame = frame.withWatermark(column, delay)
    return frame


def _run_step(spark: SparkSession, step: Step, frames: Mapping[str, DataFrame]) -> DataFrame:
    if step.sql is not None:
        return spark.sql(step.sql)
    assert step.call is not None, "check_pipeline allows steps with sql or call only"
    wanted = list(inspect.signature(step.call).parameters)
    missing = [name for name in wanted if name not in frames]
    if missing:
        raise Refused(
            f"step {step.name!r} has the parameter {missing[0]!r}, but no source or earlier step has this name"
        )
    return step.call(*(frames[name] for name in wanted))  # type: ignore[no-any-return]
