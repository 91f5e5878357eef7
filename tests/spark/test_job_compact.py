"""Compaction keeps the latest message of each key: compared with a dictionary, in one run and in several."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.spark_jobs import append, create_topic, read_stored

from sparrow.model.errors import Refused
from sparrow.model.message import Draft
from sparrow.spark.jobs import compact
from sparrow.spark.jobs.compact import CompactJob
from sparrow.testing.platform import RunningPlatform, run_platform
from sparrow.wire import properties
from sparrow.wire.compression import COMPRESSED_FLAG

pytestmark = pytest.mark.xdist_group("spark")

QUEUES, KEYS = 3, 150


@pytest.fixture(scope="module")
def platform() -> Iterator[RunningPlatform]:
    with run_platform() as started:
        create_topic(started, "changes", QUEUES)
        yield started


def change(platform: RunningPlatform, seed: int, rows: int) -> dict[str, bytes]:
    """Append random changes of keys, each key in one queue, some as tombstones; return the last body of each key."""
    chosen = random.Random(seed)
    news: dict[str, bytes] = {}
    lots: dict[int, list[Draft]] = {}
    for number in range(rows):
        key = chosen.randrange(KEYS)
        body = b"" if chosen.random() < 0.2 else b"%d-%d" % (seed, number)
        said = {"KEYS": f"key-{key}"} if key else {}  # without a key it is ignored
        lots.setdefault(key % QUEUES, []).append(Draft(body=body, properties=properties.encode(said)))
        if key:
            news[f"key-{key}"] = body
    for queue_id, drafts in lots.items():
        append(platform, "changes", queue_id, drafts)
    return news


def quiet(_: object) -> None:
    pass


def bodies(spark: SparkSession, path: str) -> dict[str, bytes]:
    rows = compact.read_table(spark, path).select("keys", "body").collect()
    found = {row["keys"]: bytes(row["body"]) for row in rows}
    assert len(found) == len(rows), "a key must occur once"
    return found


@pytest.mark.thorough
def test_the_table_holds_the_latest_message_of_each_key_after_every_run(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    work = CompactJob(
        name_servers=platform.name_servers, path=f"{tmp_path}/table", topics=("changes",), drop_empty=True
    )
    with pytest.raises(Refused, match="no compacted table"):
        compact.read_table(spark, work.path)
    known = change(platform, 1, 2000)
    done = compact.run(spark, work, on_progress=quiet)
    assert (done.read, done.version) == (2000, 1)
    assert bodies(spark, work.path) == {key: body for key, body in known.items() if body}
    assert compact.run(spark, work, on_progress=quiet).read == 0

    # Killed after planning and after writing a part of the new table: the next run executes the same plan.
    known |= change(platform, 2, 500)
    current = compact._read_version(spark, f"{work.path}/_current")
    assert current is not None
    compact._plan(spark, work, current)
    (tmp_path / "table/v00000002").mkdir()
    (tmp_path / "table/v00000002/part-00000.parquet").write_bytes(b"half a file")
    later = change(platform, 4, 10)
    assert compact.run(spark, work, on_progress=quiet).read == 500
    assert bodies(spark, work.path) == {key: body for key, body in known.items() if body}
    known |= later
    assert compact.run(spark, work, on_progress=quiet).read == 10
    assert bodies(spark, work.path) == {key: body for key, body in known.items() if body}
    assert sorted(path.name for path in (tmp_path / "table").glob("v*")) == ["v00000002", "v00000003"]

    # To a topic, with its own progress: only changed keys, including tombstones.
    to_topic = CompactJob(
        name_servers=platform.name_servers, path=f"{tmp_path}/ck", topics=("changes",), to_topic="latest"
    )
    assert compact.run(spark, to_topic, on_progress=quiet).keys == len(known)
    news = change(platform, 3, 40)
    assert compact.run(spark, to_topic, on_progress=quiet).keys == len(news)
    found: dict[str, bytes] = {}
    for queue in read_stored(platform, "latest", 4).values():
        for message in queue:
            found[properties.decode(message.properties)["KEYS"]] = message.body
    assert found == known | news


@pytest.mark.thorough
def test_newer_means_higher_offset_within_a_queue_and_later_store_time_between_queues(spark: SparkSession) -> None:
    rows = [
        # the clock went back between these two: within one queue it does not matter
        ("t", "a", b"older", "b", 0, 1, "2026-01-01 00:00:09"),
        ("t", "a", b"newer", "b", 0, 2, "2026-01-01 00:00:05"),
        ("t", "b", b"older", "b", 0, 9, "2026-01-01 00:00:01"),
        ("t", "b", b"newer", "b", 1, 0, "2026-01-01 00:00:02"),
        ("t", "c", b"older", "b", 0, 3, "2026-01-01 00:00:03"),
        ("t", "c", b"newer", "b", 1, 4, "2026-01-01 00:00:03"),
        ("u", "c", b"of another topic", "b", 0, 0, "2026-01-01 00:00:00"),
        ("t", None, b"no one's", "b", 0, 7, "2026-01-01 00:00:09"),
        ("t", "", b"no one's", "b", 0, 8, "2026-01-01 00:00:09"),
    ]
    schema = "topic string, keys string, body binary, broker string, queue_id int, queue_offset bigint, at string"
    frame = spark.createDataFrame(rows, schema).selectExpr("*", "timestamp(at) as store_timestamp").drop("at")
    found = {(row["topic"], row["keys"]): bytes(row["body"]) for row in compact.latest_by_key(frame).collect()}
    assert found == {
        ("t", "a"): b"newer",
        ("t", "b"): b"newer",
        ("t", "c"): b"newer",
        ("u", "c"): b"of another topic",
    }


@pytest.mark.thorough
def test_a_latest_message_that_cannot_be_decoded_is_kept_as_null_and_is_no_tombstone(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    create_topic(platform, "broken", 1)
    drafts = [
        Draft(body=b"no zlib", sys_flag=COMPRESSED_FLAG, properties=properties.encode({"KEYS": "a"})),
        Draft(body=b"", properties=properties.encode({"KEYS": "b"})),
        Draft(body=b"1", properties=properties.encode({"KEYS": "c"})),
    ]
    append(platform, "broken", 0, drafts)
    work = CompactJob(name_servers=platform.name_servers, path=f"{tmp_path}/table", topics=("broken",), drop_empty=True)
    compact.run(spark, work, on_progress=quiet)
    rows = compact.read_table(spark, work.path).select("keys", "body").collect()
    assert {row["keys"]: row["body"] for row in rows} == {"a": None, "c": b"1"}
