"""Declared pipelines run by real Spark: topics as sources, SQL steps, and topics, files and tables as sinks."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.consoles import running_console
from tests.support.json_output import decode_printed
from tests.support.wait import wait_until
from typer.testing import CliRunner

from sparrow.cli.main import app
from sparrow.client import Message, Producer
from sparrow.client.blocking import Admin
from sparrow.model.errors import Refused
from sparrow.spark.pipelines import load
from sparrow.spark.pipelines.runner import PipelineResult, run_pipeline, validate_pipeline
from sparrow.spark.pipelines.status import PipelineState, StatusFolder
from sparrow.testing.platform import RunningPlatform, run_platform

pytestmark = pytest.mark.xdist_group("spark")

CITIES = ("Oslo", "Lima", "Lagos")


@pytest.fixture
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


@pytest.mark.thorough
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
    assert run_file(spark, path).rows == 300
    with Admin(platform.name_servers) as admin:
        assert "hours" in admin.topics(), "the open window is no result yet, and the topic exists"
    assert run_file(spark, path).rows == 0


SUMS_TO_A_TOPIC = """
[[sinks]]
name = "topic"
from = "sums"
topic = "{topic}"
mode = "update"
"""


@pytest.mark.thorough
def test_the_command_prints_json_and_reports_its_state(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    path = pipeline_of(platform, tmp_path, SUMS_TO_A_TOPIC.format(topic="reported"))
    status = tmp_path / "status"
    done = CliRunner().invoke(app, ["pipeline", "run", str(path), "--status-folder", str(status), "--json"])
    assert done.exit_code == 0, done.output
    outcome = decode_printed("pipeline run", done.stdout)
    assert (outcome.pipeline, outcome.rows, outcome.sinks) == ("revenue", 300, 1)
    found = StatusFolder(status).read("revenue")
    assert found is not None
    assert (found.state, [query.rows for query in found.queries]) == (PipelineState.FINISHED, [300])
    assert sum(queue.offset for queue in found.queries[0].queues) == 300


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_console_starts_and_stops_a_declared_pipeline(platform: RunningPlatform, tmp_path: Path) -> None:
    """In a process of its own, on a Spark of its own."""
    folder = tmp_path / "pipelines"
    folder.mkdir()
    path = pipeline_of(platform, folder, SUMS_TO_A_TOPIC.format(topic="supervised"))
    path.write_text(path.read_text().replace('name = "revenue"\n', 'name = "revenue"\ntrigger = "1 second"\n', 1))
    with running_console(platform.name_servers, pipelines_folder=str(folder)) as console:
        route = "/api/v1/pipelines/revenue"

        def pipeline() -> Any:
            return console.get(route).raise_for_status().json()

        def rows() -> list[int]:
            return [query["rows"] for query in (pipeline()["run"] or {"queries": []})["queries"]]

        assert console.post(f"{route}/start").raise_for_status().json()["state"] == "starting"
        wait_until(lambda: rows() == [300] or pipeline()["state"] == "failed", within_s=480)
        found = pipeline()
        assert found["state"] != "failed", (found["error"], found["output"])
        assert (found["state"], found["is_own"], found["run"]["queries"][0]["lag"]) == ("running", True, 0)
        assert console.post(f"{route}/stop").raise_for_status().json()["state"] == "stopping"
        wait_until(lambda: pipeline()["state"] == "stopped", within_s=120)
