"""Scans with Spark: Sparrow's topic, the same messages in Kafka by Spark's own connector, and in Parquet files.

Messages of 100 bytes with a key in eight queues. Spark's Kafka sink copies them from Sparrow's topic, so that each
partition has the messages of the same queue. Sparrow's messages also carry a tag and an id, which Kafka's do not. Two
cores are for Spark, the servers and Python together; a server that is not scanned is idle.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyspark
from bench._spark_lab import QUEUES, SLIM, Lab, fill
from bench.versus.peers.kafka import Kafka
from bench.versus.peers.peer import PeerMissing
from bench.versus.peers.sparrow import Sparrow
from bench.versus.run import Run
from bench.versus.spark_jars import CONNECTOR_VERSION, kafka_connector
from bench.versus.workload import ROWS, SPARROW, Goal, Workload
from bench.versus.workloads.spark_scan import KAFKA_COLUMNS, TOPIC, assert_same, copy_to_kafka, scan
from pyspark.sql import DataFrame

from sparrow.spark.runtime.session import spark_session

NAME = "Spark"
CONNECTOR, PARQUET = "Kafka by Spark's connector", "Parquet"
KAFKA_SCANS = {"Kafka's five columns": tuple(KAFKA_COLUMNS), "value only": ("value",)}
PARQUET_SCANS: dict[str, tuple[str | None, float]] = {"all columns": (None, 0.65), "six columns": (SLIM, 0.5)}
"""The schema of a scan, all columns if None, and its goal against Parquet."""


def compare(run: Run) -> None:
    rows = run.scale.messages * 5
    jars = _connector(run)
    options = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"}
    if jars:
        options["spark.jars"] = ",".join(map(str, jars))
    wanted = [Sparrow(), Kafka(partitions=QUEUES)] if jars else [Sparrow()]
    with run.started(*wanted) as peers:
        fill(peers[0].address, TOPIC, rows)
        spark = spark_session("versus", master="local[2]", options=options, quick_start=run.scale.is_smoke)
        run.describe(NAME, f"PySpark {pyspark.__version__}, local[2]; {QUEUES} queues")
        try:
            lab = Lab(spark, peers[0].address, peers[0].folder / "data", run.new_folder())
            assert lab.topic("queue_id int").count() == rows
            kafka = next((peer for peer in peers if isinstance(peer, Kafka)), None)
            _compare_with_connector(run, lab, kafka, rows)
            _compare_with_parquet(run, lab, rows)
        finally:
            spark.stop()


def _connector(run: Run) -> list[Path]:
    """Return the jars of the connector; none where they cannot be had."""
    try:
        return kafka_connector(is_fetch_allowed=not run.scale.is_smoke)
    except PeerMissing as reason:
        run.report_missing(CONNECTOR, str(reason))
        return []


def _compare_with_connector(run: Run, lab: Lab, kafka: Kafka | None, rows: int) -> None:
    def ours(columns: tuple[str, ...]) -> DataFrame:
        return lab.topic(", ".join(f"{name} {KAFKA_COLUMNS[name]}" for name in columns), TOPIC, kafkaSchema="true")

    def theirs(kafka: Kafka, columns: tuple[str, ...]) -> DataFrame:
        options = {"kafka.bootstrap.servers": kafka.address, "subscribe": TOPIC}
        return lab.spark.read.format("kafka").options(**options).load().select(*columns)

    if kafka is not None:
        run.describe(CONNECTOR, f"spark-sql-kafka {CONNECTOR_VERSION}")
        copy_to_kafka(ours(("key", "value", "partition")), kafka)
        assert_same(ours(tuple(KAFKA_COLUMNS)), theirs(kafka, tuple(KAFKA_COLUMNS)))
    for name, columns in KAFKA_SCANS.items():
        sides = {SPARROW: partial(scan, ours(columns), rows)}
        if kafka is not None:
            sides[CONNECTOR] = partial(scan, theirs(kafka, columns), rows)
        run.measure(NAME, Workload(f"scan of {rows:,} rows by pulls, {name}", sides, [Goal(ROWS, CONNECTOR, 2.5)]))


def _compare_with_parquet(run: Run, lab: Lab, rows: int) -> None:
    for name, (schema, goal) in PARQUET_SCANS.items():
        path = str(lab.folder / name.replace(" ", "-"))
        lab.files(schema).write.option("compression", "zstd").parquet(path)
        sides = {
            SPARROW: partial(scan, lab.files(schema), rows),
            PARQUET: partial(scan, lab.spark.read.parquet(path), rows),
        }
        run.measure(NAME, Workload(f"scan of {rows:,} rows in files, {name}", sides, [Goal(ROWS, PARQUET, goal)]))
