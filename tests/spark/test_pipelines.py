"""Declared pipelines run by real Spark: topics as sources, SQL steps, and topics, files and tables as sinks."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparrow.client import Message, Producer
from sparrow.client.blocking import Admin
from sparrow.model.errors import Refused
from sparrow.spark.pipelines import load
from sparrow.spark.pipelines.runner import PipelineResult, run_pipeline, validate_pipeline
from sparrow.testing.platform import RunningPlatform, run_platform

pytestmark = pytest.mark.xdist_group("spark")

CITIES = ("Oslo", "Lima", "Lagos")


@pytest.fixture(scope="module")
def platform() -> Iterator[RunningPlatform]:
    with run_platform() as started:
        with Producer(started.name_servers) as producer:
            for number in range(300):
                body = json.dumps({"city": CITIES[number % 3], "cents": number})
                producer.send(Message("orders", body, keys=f"order-{number}"))
        yield started


def pipeline_of(platform: RunningPlatform, folder: Path, sinks: str, *, sql: str | None = None) -> Path:
    text = f"""
[pipeline]
name = "revenue"
name_servers = "{platform.name_servers}"
checkpoint = "{folder}/state"

[[sources]]
name = "orders"
topic = "orders"
columns = "body string, keys string, queue_id int"
json = "city string, cents bigint"
options = {{ startingOffsets = "earliest", groupId = "revenue" }}

[[steps]]
name = "dear"
sql = "SELECT city, keys, cents FROM orders WHERE cents >= 100"

[[steps]]
name = "sums"
sql = "{sql or "SELECT city, sum(cents) AS cents, count(*) AS orders FROM dear GROUP BY city"}"
{sinks}
"""
    path = folder / "pipeline.toml"
    path.write_text(text)
    return path


def run_file(spark: SparkSession, path: Path) -> PipelineResult:
    return run_pipeline(spark, load(path), on_progress=lambda done: None)


def rows_of(spark: SparkSession, platform: RunningPlatform, topic: str) -> list[dict[str, object]]:
    reader = spark.read.format("sparrow").options(nameServers=platform.name_servers, subscribe=topic)
    found = reader.schema("body string, keys string").load().collect()
    return [{**json.loads(row.body), "keys": row["keys"]} for row in found]


@pytest.mark.thorough
def test_sql_over_a_topic_is_written_to_a_topic_a_table_and_files(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    sinks = f"""
[[sinks]]
name = "topic"
from = "sums"
topic = "sums"
key = "city"
mode = "update"

[[sinks]]
name = "table"
from = "sums"
sql = "sqlite:///{tmp_path}/results.db"
table = "sums"
keys = ["city"]
mode = "update"

[[sinks]]
name = "files"
from = "dear"
parquet = "{tmp_path}/dear"
partition_by = ["city"]
"""
    path = pipeline_of(platform, tmp_path, sinks)
    assert run_file(spark, path).rows == 900
    expected = {city: sum(n for n in range(100, 300) if CITIES[n % 3] == city) for city in CITIES}
    assert {row["keys"]: row["cents"] for row in rows_of(spark, platform, "sums")} == expected
    with sqlite3.connect(tmp_path / "results.db") as database:
        assert dict(database.execute("SELECT city, cents FROM sums")) == expected
    assert spark.read.parquet(f"{tmp_path}/dear").count() == 200

    # A second run finds nothing new; after more orders, a run replaces the table's rows.
    assert run_file(spark, path).rows == 0
    with Producer(platform.name_servers) as producer:
        producer.send(Message("orders", json.dumps({"city": "Oslo", "cents": 1000})))
    run_file(spark, path)
    with sqlite3.connect(tmp_path / "results.db") as database:
        assert dict(database.execute("SELECT city, cents FROM sums")) == {**expected, "Oslo": expected["Oslo"] + 1000}


@pytest.mark.thorough
def test_a_replayed_batch_changes_a_table_once(spark: SparkSession, platform: RunningPlatform, tmp_path: Path) -> None:
    sinks = f"""
[[sinks]]
name = "table"
from = "dear"
sql = "sqlite:///{tmp_path}/results.db"
table = "dear"
"""
    path = pipeline_of(platform, tmp_path, sinks)
    run_file(spark, path)
    commits = tmp_path / "state" / "table" / "commits"
    for name in ("0", ".0.crc"):
        (commits / name).unlink()
    run_file(spark, path)
    with sqlite3.connect(tmp_path / "results.db") as database:
        ((count, distinct),) = database.execute("SELECT count(*), count(DISTINCT keys) FROM dear")
    assert count - distinct <= 1  # the one order without a key, from another test
    assert distinct == 200


def test_validate_needs_no_broker_and_reports_invalid_columns(spark: SparkSession, tmp_path: Path) -> None:
    sinks = '[[sinks]]\nname = "out"\nfrom = "sums"\ntopic = "sums"\nmode = "update"\n'

    class Nowhere:
        name_servers = "127.0.0.1:1"

    frames = validate_pipeline(spark, load(pipeline_of(Nowhere(), tmp_path, sinks)))  # type: ignore[arg-type]
    assert frames["sums"].columns == ["city", "cents", "orders"]
    wrong = pipeline_of(Nowhere(), tmp_path, sinks, sql="SELECT citty FROM dear")  # type: ignore[arg-type]
    with pytest.raises(Refused, match=r"step 'sums'.*citty"):
        validate_pipeline(spark, load(wrong))


def test_a_pipeline_of_windows_that_starts_without_results_writes_to_its_new_topic(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    sql = "SELECT window.start AS since, count(*) AS orders FROM orders GROUP BY window(store_timestamp, '1 hour')"
    sinks = '[[sinks]]\nname = "hours"\nfrom = "sums"\ntopic = "hours"\nmode = "append"\n'
    path = pipeline_of(platform, tmp_path, sinks, sql=sql)
    path.write_text(
        path.read_text()
        .replace("queue_id int", "store_timestamp timestamp")
        .replace("[[steps]]", 'watermark = { store_timestamp = "1 second" }\n\n[[steps]]', 1)
    )
    validate_pipeline(spark, load(path))
    assert run_file(spark, path).rows >= 300, "other tests add orders"
    with Admin(platform.name_servers) as admin:
        assert "hours" in admin.topics(), "the open window is no result yet, and the topic exists"
    assert run_file(spark, path).rows == 0
