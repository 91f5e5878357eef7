"""`sparrow pipeline dedupe`: it drops repeated messages and no others."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from sparrow.cli.main import app
from sparrow.client import Admin, Consumer, Message, Producer
from sparrow.client.produce.queue_selection import by_hash
from sparrow.model.errors import Refused
from sparrow.spark.jobs.archive import ARCHIVE_SCHEMA
from sparrow.spark.jobs.dedupe import ROCKSDB_PROVIDER, DedupeJob, dedupe_stream, run, run_archive
from sparrow.testing.platform import RunningPlatform

pytestmark = pytest.mark.xdist_group("spark")


def send(platform: RunningPlatform, bodies: Iterable[tuple[str, str | None]]) -> None:
    """Send bodies with their order numbers, all of one customer."""
    with Producer(platform.name_servers) as producer:
        for body, order in bodies:
            said = {} if order is None else {"order": order}
            producer.send(Message("orders", body, keys="customer", properties=said), selector=by_hash("customer"))


def bodies(platform: RunningPlatform, topic: str) -> list[str]:
    """Return the bodies in queue order."""
    with Consumer(platform.name_servers, group="readers") as consumer:
        rows = consumer.read_table(topic, columns=["queue_id", "queue_offset", "body"]).to_pylist()
    assert len({row["queue_id"] for row in rows}) == 1, "a key must have one queue"
    return [row["body"].decode() for row in rows]


@pytest.mark.thorough
def test_repeats_are_dropped_across_batches_and_runs_and_the_rest_keeps_its_order(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    with Admin(platform.name_servers) as admin:
        admin.create_topic("orders", queues=2)
    send(platform, [(f"a{number}", str(number)) for number in range(30)])
    send(platform, [("no number", None), ("no number", None)])
    send(platform, [(f"b{number}", str(number)) for number in range(20, 35)])
    arguments = DedupeJob(
        name_servers=platform.name_servers,
        sources=("orders",),
        target="once",
        checkpoint=str(tmp_path / "checkpoint"),
        by="properties['order']",
        in_order=True,
        large_state=True,
        batch_rows_max=20,
    )
    done = run(spark, arguments)
    assert (done.read, done.dropped) == (47, 10)
    kept = [f"a{number}" for number in range(30)] + ["no number"] * 2 + [f"b{number}" for number in range(30, 35)]
    assert bodies(platform, "once") == kept
    assert spark.conf.get("spark.sql.streaming.stateStore.providerClass") != ROCKSDB_PROVIDER, (
        "the option must apply to one query only"
    )

    send(platform, [("c0", "0"), ("c99", "99")])
    assert run(spark, arguments).dropped == 1
    assert bodies(platform, "once") == [*kept, "c99"]


@pytest.mark.thorough
def test_old_rows_are_not_dropped_as_late(spark: SparkSession, tmp_path: Path) -> None:
    """A plain watermark on the store time would drop rows of a second batch that are older than the first batch."""
    now = datetime.now(UTC)
    shape = "msg_id string, topic string, broker string, queue_id int, queue_offset bigint, store_timestamp timestamp"
    source = tmp_path / "source"
    batches = [[("new", now), ("new", now)], [("old", now - timedelta(days=3))], [("older", now - timedelta(days=9))]]
    for number, rows in enumerate(batches):
        table = [(msg_id, "t", "b", number, offset, at) for offset, (msg_id, at) in enumerate(rows)]
        spark.createDataFrame(table, shape).coalesce(1).write.mode("append").json(str(source))
    read = spark.readStream.schema(shape).option("maxFilesPerTrigger", 1).json(str(source))
    query = (
        dedupe_stream(read, within_ms=60_000)
        .writeStream.format("memory")
        .queryName("never_late")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(query.recentProgress) >= len(batches)
    assert sorted(row.msg_id for row in spark.table("never_late").collect()) == ["new", "old", "older"]


@pytest.mark.thorough
def test_an_archive_keeps_the_first_message_of_each_id(spark: SparkSession, tmp_path: Path) -> None:
    def row(msg_id: str | None, offset: int, minute: int) -> dict[str, object]:
        at = datetime(2026, 1, 31, 12, minute, tzinfo=UTC)
        place = {"topic": "orders", "broker": "b", "queue_id": 0, "queue_offset": offset}
        folder = {"date": at.date(), "hour": at.hour}
        return {"body": b"%d" % offset, "msg_id": msg_id, "store_timestamp": at, **place, **folder}

    rows = [row("one", 1, 9), row("one", 0, 5), row("two", 2, 9), row(None, 3, 9), row(None, 4, 9)]
    fields = spark.createDataFrame([], ARCHIVE_SCHEMA).schema
    table = spark.createDataFrame([tuple(each.get(name) for name in fields.names) for each in rows], fields)
    table.write.partitionBy("topic", "date", "hour").parquet(str(tmp_path / "twice"))
    done = run_archive(spark, str(tmp_path / "twice"), str(tmp_path / "once"))
    assert (done.read, done.dropped) == (5, 1)
    kept = spark.read.schema(ARCHIVE_SCHEMA).parquet(str(tmp_path / "once")).collect()
    assert sorted((each.queue_offset, each.topic, each.hour) for each in kept) == [
        (offset, "orders", 12) for offset in (0, 2, 3, 4)
    ]


@pytest.mark.thorough
def test_the_command_prints_the_number_of_dropped_messages(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    send(platform, [("a", "1"), ("b", "1"), ("c", "2")])
    words = ["dedupe", "orders", "--to", "once", "-n", platform.name_servers, "--by", "properties['order']"]
    done = CliRunner().invoke(app, ["pipeline", *words, "--checkpoint", str(tmp_path / "checkpoint")])
    assert done.exit_code == 0, done.output
    assert "3 messages read, 1 repeats dropped" in done.output
    assert len(bodies(platform, "once")) == 2


@pytest.mark.thorough
def test_invalid_arguments_are_refused(spark: SparkSession) -> None:
    arguments = DedupeJob(name_servers="127.0.0.1:1", sources=("orders",), target="orders", checkpoint="nowhere")
    with pytest.raises(Refused, match="never end"):
        run(spark, arguments)
    assert CliRunner().invoke(app, ["pipeline", "dedupe", "--to", "once"]).exit_code == 2
