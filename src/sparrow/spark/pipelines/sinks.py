"""Write the results of a pipeline to its sinks."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from sparrow.model.errors import Refused
from sparrow.spark.pipelines.database_sink import TableWriter
from sparrow.spark.pipelines.definition import Pipeline, Sink
from sparrow.spark.pipelines.frames import option_strings
from sparrow.spark.runtime.session import activate
from sparrow.spark.runtime.spark_errors import shorten_batch_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_MESSAGE_COLUMNS = frozenset(
    {"body", "topic", "queue_id", "keys", "tags", "properties", "msg_id", "sharding_key", "born_timestamp"}
)


def to_messages(frame: DataFrame, sink: Sink) -> DataFrame:
    """Convert rows to messages: rows without a body become JSON; `key` sets the keys."""
    from pyspark.sql import functions as f

    if sink.key is not None:
        frame = frame.withColumn("keys", f.expr(f"CAST(({sink.key}) AS string)"))
    if "body" in frame.columns or "value" in frame.columns:
        return frame
    row_columns = [name for name in frame.columns if name not in _MESSAGE_COLUMNS]
    if not row_columns:
        raise Refused(f"sink {sink.name!r} has no columns for the message body")
    others = [name for name in frame.columns if name in _MESSAGE_COLUMNS]
    return frame.select(f.to_json(f.struct(*row_columns)).alias("body"), *others)


def write_sink(frame: DataFrame, pipeline: Pipeline, sink: Sink) -> None:
    """Write a bounded result."""
    if sink.sql is not None:
        TableWriter(sink, scope=pipeline.name).write_all(frame)
        return
    if sink.console:
        frame.show(int(sink.options.get("numRows", 20)), truncate=False)
        return
    _save(_prepare(frame, sink), pipeline, sink)


def _save(frame: DataFrame, pipeline: Pipeline, sink: Sink) -> None:
    mode = "overwrite" if sink.mode == "complete" and sink.topic is None else "append"
    writer = frame.write.mode(mode).options(**_options(pipeline, sink))
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    writer.format(_format(sink)).save(sink.parquet or sink.delta)


def start_sink(frame: DataFrame, pipeline: Pipeline, sink: Sink) -> StreamingQuery:
    """Start a streaming query that writes to the sink."""
    activate(frame.sparkSession)
    frame = _prepare(frame, sink)
    writer = frame.writeStream.queryName(f"{pipeline.name}.{sink.name}").outputMode(sink.mode)
    if pipeline.checkpoint is not None:
        writer = writer.option("checkpointLocation", f"{pipeline.checkpoint}/{sink.name}")
    if pipeline.trigger == "available-now":
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=pipeline.trigger)
    if sink.sql is not None:
        return writer.foreachBatch(shorten_batch_errors(TableWriter(sink, scope=pipeline.name).write_batch)).start()
    if sink.topic is not None and sink.mode != "append":
        # Spark lets Python sinks append only. A batch write within foreachBatch is exactly-once too: it uses the query
        # id and the batch number.
        return writer.foreachBatch(shorten_batch_errors(lambda batch, _: _save(batch, pipeline, sink))).start()
    writer = writer.options(**_options(pipeline, sink)).format(_format(sink))
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    return writer.start(sink.parquet or sink.delta)


def _prepare(frame: DataFrame, sink: Sink) -> DataFrame:
    return to_messages(frame, sink) if sink.topic is not None else frame


def _format(sink: Sink) -> str:
    if sink.topic is not None:
        return "sparrow"
    if sink.delta is not None:
        if find_spec("delta") is None:
            raise Refused(f"sink {sink.name!r} needs Delta Lake: run `pip install delta-spark`, or use parquet")
        return "delta"
    return "console" if sink.console else "parquet"


def _options(pipeline: Pipeline, sink: Sink) -> dict[str, str]:
    options = option_strings(sink.options)
    if sink.topic is not None:
        options |= {"nameServers": pipeline.name_servers_of(sink), "topic": sink.topic}
        options.setdefault("sinkName", sink.name)
    return options
