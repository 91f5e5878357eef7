"""Training jobs for the class archive: Java records the classes that these jobs load.

They are typical for the first minute of a session: SQL with a shuffle, Parquet, Arrow to and from Python, a short
stream.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparrow.spark.runtime.session import JAVA_OPTIONS_KEY, join_java_options, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow
    from pyspark.sql import SparkSession

STREAM_TIMEOUT_S = 120


def run_training_jobs(java_options: Sequence[str]) -> None:
    """Run the jobs in a session with these Java options, and wait until Java has written the archive."""
    spark = spark_session(
        "class archive",
        master="local[2]",
        options={JAVA_OPTIONS_KEY: join_java_options(java_options), "spark.driver.memory": "1g"},
        use_class_archive=False,
    )
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java = gateway.proc
    with tempfile.TemporaryDirectory(prefix="sparrow-training-") as folder:
        _sql(spark, Path(folder))
        _arrow(spark)
        _stream(spark, Path(folder))
    spark.stop()
    java.stdin.close()  # makes Java exit; it writes the archive at its exit
    java.wait()


def _sql(spark: SparkSession, folder: Path) -> None:
    rows = spark.range(1000).selectExpr("id", "id % 7 AS k", "CAST(id AS STRING) AS text", "current_timestamp() AS at")
    rows.write.partitionBy("k").parquet(str(folder / "rows"))
    rows = spark.read.parquet(str(folder / "rows"))
    rows.createOrReplaceTempView("rows")
    spark.sql(
        "SELECT a.k, window(a.at, '1 minute') AS w, count(*) AS n, max(b.text) AS most FROM rows a"
        " JOIN rows b USING (id) WHERE a.text LIKE '1%' GROUP BY 1, 2 ORDER BY n LIMIT 5"
    ).collect()


def _same(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    yield from batches


def _arrow(spark: SparkSession) -> None:
    spark.range(100).mapInArrow(_same, "id long").toArrow()


def _stream(spark: SparkSession, folder: Path) -> None:
    source = spark.readStream.schema(spark.read.parquet(str(folder / "rows")).schema).parquet(str(folder / "rows"))
    counted = source.withWatermark("at", "1 minute").groupBy("k").count()
    query = (
        counted.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(STREAM_TIMEOUT_S)
