"""The metrics of streaming queries."""

from pathlib import Path

import pytest
from tests.support.scrapes import parse

from sparrow.spark import QueryMetrics
from sparrow.telemetry.exposition import render

pytestmark = pytest.mark.thorough


def test_batches_and_rows_of_a_query_are_counted_once(spark, tmp_path: Path) -> None:
    metrics = QueryMetrics(spark)
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = (
        stream.writeStream.format("noop")
        .queryName("counted")
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        while not query.recentProgress:
            query.awaitTermination(1)
        metrics.read()
        metrics.read()  # the same batches again
        found = parse("".join(render(metrics.families())))
        batches = found.value("sparrow_spark_batches_total", query="counted")
        assert batches >= 1
        assert found.value("sparrow_spark_batch_seconds_count", query="counted") == batches
        assert found.value("sparrow_spark_rows_total", query="counted") % 10 == 0
        assert found.value("sparrow_spark_query_active", query="counted") == 1
    finally:
        query.stop()
    metrics.read()
    assert parse("".join(render(metrics.families()))).value("sparrow_spark_query_active", query="counted") == 0
