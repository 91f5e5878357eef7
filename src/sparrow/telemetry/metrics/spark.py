"""The metrics of streaming queries: jobs, pipelines and your own."""

from __future__ import annotations

from sparrow.telemetry.metric import Metric

BATCH_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)

BATCHES = Metric("sparrow_spark_batches_total", "counter", "Batches that a query has finished.", ("query",), "batches")
ROWS = Metric("sparrow_spark_rows_total", "counter", "Rows that a query has read.", ("query",), "rows")
BATCH_SECONDS = Metric(
    "sparrow_spark_batch_seconds", "histogram", "How long batches took.", ("query",), "seconds", BATCH_BOUNDS_S
)
LAG = Metric(
    "sparrow_spark_lag_messages",
    "gauge",
    "Messages that a query has not read, at its last batch.",
    ("query",),
    "messages",
)
ACTIVE = Metric("sparrow_spark_query_active", "gauge", "1: the query runs; 0: it ended or failed.", ("query",))

SPARK_METRICS = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
