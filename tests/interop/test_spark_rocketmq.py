"""Spark on Apache's brokers: batch and stream reads, writes, and reads of the brokers' files."""

import re
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.interop.fresh_topic import QUEUES, FreshTopic
from tests.interop.java import JavaClient
from tests.interop.mqadmin import Mqadmin
from tests.support.wait import wait_until

from sparrow.client import Admin
from sparrow.testing.platform import run_platform

COUNT = 500


def table_of(spark: SparkSession, fresh_topic: FreshTopic, **options: str) -> DataFrame:
    given = {"nameServers": fresh_topic.name_servers, "subscribe": fresh_topic.topic, **options}
    return spark.read.format("sparrow").options(**given).load()


async def filled(fresh_topic: FreshTopic) -> list[str]:
    bodies = [f"body-{number}" for number in range(COUNT)]
    await fresh_topic.send_all(bodies, keys="k", tags="t", city="Oslo")
    await fresh_topic.wait_until_readable(COUNT)
    return bodies


async def test_a_topic_of_apache_is_a_table_with_every_message_once(
    spark: SparkSession, fresh_topic: FreshTopic
) -> None:
    bodies = await filled(fresh_topic)
    rows = table_of(spark, fresh_topic).collect()
    assert sorted(bytes(row.body).decode() for row in rows) == sorted(bodies)
    assert {(row["keys"], row.tags, row.properties["city"]) for row in rows} == {("k", "t", "Oslo")}
    assert {row.queue_id for row in rows} == set(range(QUEUES))
    assert table_of(spark, fresh_topic, tags="other").count() == 0
    assert table_of(spark, fresh_topic, tags="t || other").count() == COUNT


async def test_mqadmin_shows_the_lag_of_a_stream_from_apache(
    spark: SparkSession, fresh_topic: FreshTopic, tmp_path: Path, apache_java: JavaClient
) -> None:
    bodies = await filled(fresh_topic)
    options = {"nameServers": fresh_topic.name_servers, "subscribe": fresh_topic.topic, "groupId": fresh_topic.group}
    stream = spark.readStream.format("sparrow").options(startingOffsets="earliest", maxOffsetsPerTrigger=200, **options)
    query = stream.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "state"))
    query.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()
    found = spark.read.parquet(str(tmp_path / "rows")).select("body").collect()
    assert sorted(bytes(row.body).decode() for row in found) == sorted(bodies)
    with Admin(fresh_topic.name_servers) as admin:
        wait_until(lambda: admin.progress(fresh_topic.group, fresh_topic.topic).lag == 0)
        assert {
            progress.committed for progress in admin.progress(fresh_topic.group, fresh_topic.topic).queues.values()
        } == {COUNT // QUEUES}
    printed = Mqadmin(apache_java).run("consumerProgress", "-g", fresh_topic.group)
    assert re.search(r"Diff Total: 0", printed), printed


async def test_rows_are_written_to_apache_and_exactly_once_is_refused(
    spark: SparkSession, fresh_topic: FreshTopic
) -> None:
    frame = spark.range(COUNT).selectExpr("concat('row-', id) AS body", "CAST(id % 7 AS string) AS keys", "'t' AS tags")
    options = {"nameServers": fresh_topic.name_servers, "topic": fresh_topic.topic}
    frame.write.format("sparrow").mode("append").options(**options, delivery="atLeastOnce").save()
    await fresh_topic.wait_until_readable(COUNT)
    rows = table_of(spark, fresh_topic).collect()
    assert sorted(bytes(row.body).decode() for row in rows) == sorted(f"row-{number}" for number in range(COUNT))
    queues_of = {}
    for row in rows:
        queues_of.setdefault(row["keys"], set()).add(row.queue_id)
    assert all(len(queues) == 1 for queues in queues_of.values()), "a key must have one queue"
    with pytest.raises(Exception, match="delivery=atLeastOnce"):
        frame.write.format("sparrow").mode("append").options(**options, delivery="exactlyOnce").save()
    assert table_of(spark, fresh_topic).count() == COUNT


async def test_the_files_of_apache_are_read_without_its_broker(
    spark: SparkSession, fresh_topic: FreshTopic, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bodies = await filled(fresh_topic)
    base = tmp_path_factory.getbasetemp()

    def store() -> Path | None:
        return next((path.parents[1] for path in base.glob(f"apache*/store/consumequeue/{fresh_topic.topic}")), None)

    wait_until(lambda: store() is not None)
    options = {"access": "files", "path": str(store()), "subscribe": fresh_topic.topic}

    def found() -> list[str]:
        rows = spark.read.format("sparrow").options(**options).schema("body string").load().collect()
        return sorted(row.body for row in rows)

    wait_until(lambda: found() == sorted(bodies))


async def test_a_topic_moves_from_apache_to_sparrow_exactly_once(
    spark: SparkSession, fresh_topic: FreshTopic, tmp_path: Path
) -> None:
    bodies = await filled(fresh_topic)
    with run_platform() as ours:
        with Admin(ours.name_servers) as admin:
            admin.create_topic("moved", queues=QUEUES)
        stream = spark.readStream.format("sparrow").options(
            nameServers=fresh_topic.name_servers,
            subscribe=fresh_topic.topic,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=100,
        )
        moved = stream.schema("body binary, keys string, tags string").load()
        writer = moved.writeStream.format("sparrow").options(nameServers=ours.name_servers, topic="moved")
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
        there = spark.read.format("sparrow").options(nameServers=ours.name_servers, subscribe="moved").load().collect()
        assert sorted(bytes(row.body).decode() for row in there) == sorted(bodies)
