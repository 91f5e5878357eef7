"""Batch scans of a topic against Spark's own Kafka connector on a real Kafka: same messages, machine and run.

Two million messages of 100 bytes with a key in eight queues. Spark's Kafka sink copies them from Sparrow's topic, so
that each partition has the messages of the same queue, in batches as large as the lots that filled the topic; Kafka's
JVM gets the flags of its own start script. Two cores for Spark, the servers and Python together; a server that is not
scanned is idle. Each time is the better of two rounds in which the competitors alternate, after a warm-up round.
Sparrow's messages also carry a tag and an id, which Kafka's do not.

At smoke scale, and if Java, Maven or its registry is missing, the bench measures Sparrow only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from _harness import ROOT, Row, folder_on_disk, is_smoke, report
from _spark_jars import CONNECTOR_VERSION, NoConnector, kafka_connector
from broker import broker
from spark import BATCH_ROWS, QUEUES, Lab, drain, fill, quickest
from sparrow.spark.runtime.session import spark_session

sys.path.append(str(ROOT))
from tests.support.message_brokers import MessageBroker, kafka_server

SMOKE = is_smoke()
ROWS = 20_000 if SMOKE else 2_000_000
TOPIC = "orders"
COLUMNS = {"key": "binary", "value": "binary", "partition": "int", "offset": "bigint", "timestamp": "timestamp"}
SCANS = {"scan": tuple(COLUMNS), "value only": ("value",)}
GOALS = {"scan": 2.0}
RECORD_BYTES = 130
"""A body, a key and what Kafka puts around them."""
JVM_FLAGS = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)
"""Those of Kafka's start script. The ones of the tests are for a quick start, and cost a busy server speed."""


# -- the two sides ----------------------------------------------------------------------------------------------------


def ours(lab: Lab, columns: tuple[str, ...]) -> DataFrame:
    schema = ", ".join(f"{name} {COLUMNS[name]}" for name in columns)
    return lab.topic(schema, topic=TOPIC, kafkaSchema="true")


def theirs(spark: SparkSession, kafka: MessageBroker, columns: tuple[str, ...]) -> DataFrame:
    options = {"kafka.bootstrap.servers": kafka.address, "subscribe": TOPIC}
    return spark.read.format("kafka").options(**options).load().select(*columns)


@contextmanager
def tuned_kafka(folder: Path) -> Iterator[MessageBroker]:
    """Run Kafka with the JVM flags of its own start script."""
    with kafka_server(folder, num_partitions=QUEUES, auto_create_topics_enable="true") as kafka:
        words = tuple(kafka.command)
        java = words.index("java")
        rest = tuple(word for word in words[java + 1 :] if not word.startswith(("-X", "-XX")))
        kafka.kill()
        kafka.command = (*words[: java + 1], *JVM_FLAGS, *rest)
        kafka.start()
        yield kafka


def copy(messages: DataFrame, kafka: MessageBroker) -> None:
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


# -- figures ----------------------------------------------------------------------------------------------------------


def measure_sparrow(lab: Lab) -> list[Row]:
    return [_rate(what, "Sparrow", quickest(drain(ours(lab, columns)))[0]) for what, columns in SCANS.items()]


def compare(lab: Lab, kafka: MessageBroker) -> list[Row]:
    copy(ours(lab, ("key", "value", "partition")), kafka)
    assert_same(ours(lab, tuple(COLUMNS)), theirs(lab.spark, kafka, tuple(COLUMNS)))
    rows = []
    for what, columns in SCANS.items():
        ours_s, theirs_s = quickest(drain(ours(lab, columns)), drain(theirs(lab.spark, kafka, columns)))
        name = f"Kafka by Spark's connector {CONNECTOR_VERSION}"
        rows += [
            _rate(what, "Sparrow", ours_s),
            _rate(what, name, theirs_s),
            Row(f"{what}: Sparrow / Kafka", theirs_s / ours_s, "ratio", GOALS.get(what)),
        ]
        _log(f"{what} done; load of the machine {os.getloadavg()[0]:.1f}")
    return rows


def _rate(what: str, whose: str, seconds: float) -> Row:
    return Row(f"{what}: {whose}, rows/s", ROWS / seconds, "1/s")


def _log(what: str) -> None:
    print(f"  {what}", file=sys.stderr)


def connector() -> list[Path]:
    """Return the jars of the connector; none if only Sparrow is measured."""
    if SMOKE:
        return []
    try:
        return kafka_connector()
    except NoConnector as reason:
        _log(f"without Kafka, only our own figures: {reason}")
        return []


def main() -> None:
    jars = connector()
    options = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"}
    if jars:
        options["spark.jars"] = ",".join(map(str, jars))
    with folder_on_disk() as scratch, broker(scratch / "data") as (_, _, name_servers):
        fill(name_servers, TOPIC, ROWS)
        spark = spark_session("bench", master="local[2]", options=options, quick_start=SMOKE)
        try:
            lab = Lab(spark, name_servers, scratch / "data", scratch)
            assert ours(lab, ("offset",)).count() == ROWS
            rows = []
            if jars:
                try:
                    with tuned_kafka(scratch) as kafka:
                        rows = compare(lab, kafka)
                except pytest.skip.Exception as reason:  # how the tests report that Kafka is not available
                    _log(f"without Kafka, only our own figures: {reason}")
            rows = rows or measure_sparrow(lab)
        finally:
            spark.stop()
    report("spark_kafka", rows)


if __name__ == "__main__":
    main()
