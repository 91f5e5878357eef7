"""A scan of a topic, of a Kafka topic or of Parquet files with Spark; every row is made and dropped."""

from __future__ import annotations

import time

from bench._spark_lab import BATCH_ROWS, drain
from bench.versus.peers.kafka import Kafka
from bench.versus.rounds import Figures
from bench.versus.workload import ROWS
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

TOPIC = "orders"
RECORD_BYTES = 130
"""A body, a key and what Kafka puts around them."""
KAFKA_COLUMNS = {"key": "binary", "value": "binary", "partition": "int", "offset": "bigint", "timestamp": "timestamp"}


def scan(frame: DataFrame, rows: int) -> Figures:
    begun = time.perf_counter()
    drain(frame)()
    return {ROWS: rows / (time.perf_counter() - begun)}


def copy_to_kafka(messages: DataFrame, kafka: Kafka) -> None:
    """Copy key, value and partition, in batches as large as those that filled Sparrow's topic."""
    options = {
        "kafka.bootstrap.servers": kafka.address,
        "topic": TOPIC,
        "kafka.batch.size": str(BATCH_ROWS * RECORD_BYTES),
        "kafka.linger.ms": "100",
    }
    messages.write.format("kafka").options(**options).save()


def assert_same(left: DataFrame, right: DataFrame) -> None:
    """Assert that both sides have every key and body once, in the same partition."""

    def fingerprint(frame: DataFrame) -> list[tuple[int, ...]]:
        content = f.xxhash64("key", "value").bitwiseAND(0xFFFFFFFF)
        counted = frame.groupBy("partition").agg(f.count("value"), f.sum(content), f.max("offset"))
        return sorted(tuple(row) for row in counted.collect())

    assert fingerprint(left) == fingerprint(right), "Kafka and Sparrow must have the same messages"
