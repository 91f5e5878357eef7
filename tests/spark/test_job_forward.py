"""`sparrow pipeline forward`: move a backlog to a topic with more queues, once and with each key in order."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from sparrow.cli.main import app
from sparrow.client import Admin, Consumer, Message, Producer
from sparrow.client.produce.queue_selection import by_hash
from sparrow.model.errors import Refused, SparrowError
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.spark.jobs.forward import ForwardJob, run
from sparrow.spark.jobs.topic_streams import columns_in_sql
from sparrow.testing.platform import RunningPlatform, run_platform
from sparrow.wire.properties import VALUE_SEPARATOR

pytestmark = pytest.mark.xdist_group("spark")

KEYS = [f"key-{number}" for number in range(5)]


def send(platform: RunningPlatform, numbers: Iterable[int]) -> None:
    """Send to the queue of the key, as an ordered producer does; every other message has its key as sharding key."""
    with Producer(platform.name_servers) as producer:
        for number in numbers:
            key = KEYS[number % len(KEYS)]
            said = {PROPERTY_SHARDING_KEY: key} if number % 2 else {"KEYS": key}
            message = Message(
                "orders", f"{number}", tags="odd" if number % 2 else "even", properties={"city": "Oslo", **said}
            )
            message.flag = number
            producer.send(message, selector=by_hash(key))


def table(platform: RunningPlatform, topic: str) -> pa.Table:
    columns = ["queue_id", "queue_offset", "body", "properties_raw", "flag", "born_timestamp"]
    with Consumer(platform.name_servers, group="readers") as consumer:
        return consumer.read_table(topic, columns=columns)


def contents(platform: RunningPlatform, topic: str) -> list[dict[str, object]]:
    """Return all columns that a forward preserves, sorted by body."""
    rows = table(platform, topic).drop_columns(["queue_id", "queue_offset"]).to_pylist()
    for row in rows:
        row["properties_raw"] = row["properties_raw"].rstrip(VALUE_SEPARATOR)  # the last terminator may be left out
    return sorted(rows, key=lambda row: int(row["body"]))


def in_order(platform: RunningPlatform, topic: str, *, of: Iterable[int]) -> dict[int, list[list[int]]]:
    """Return the numbers of each key in each queue that holds any."""
    wanted = set(of)
    found: dict[int, dict[int, list[int]]] = {}
    for row in table(platform, topic).to_pylist():
        number = int(row["body"])
        if number in wanted:
            # Sharding key or keys: the same text selects the same queue.
            found.setdefault(number % len(KEYS), {}).setdefault(row["queue_id"], []).append(number)
    return {key: list(queues.values()) for key, queues in found.items()}


@pytest.mark.thorough
def test_a_backlog_moves_to_a_wider_topic_once_and_in_order(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    with Admin(platform.name_servers) as admin:
        admin.create_topic("orders", queues=3)
        send(platform, range(60))
        arguments = ForwardJob(
            name_servers=platform.name_servers,
            sources=("orders",),
            target="wide",
            checkpoint=str(tmp_path / "checkpoint"),
            group="mover",
            batch_rows_max=40,
            target_queues=8,
        )
        done = run(spark, arguments)
        assert (done.read, done.written) == (60, 60)
        assert contents(platform, "wide") == contents(platform, "orders")
        one_queue_each = {key: [[n for n in range(60) if n % len(KEYS) == key]] for key in range(len(KEYS))}
        assert in_order(platform, "wide", of=range(60)) == one_queue_each
        assert admin.progress("mover").lag == 0
        assert len(admin.route("wide").write_queues) == 8

        send(platform, range(60, 70))
        assert run(spark, arguments).written == 10, "the job must continue where it stopped"
        assert contents(platform, "wide") == contents(platform, "orders")


@pytest.mark.thorough
def test_the_command_forwards_only_messages_that_pass_the_filter(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    send(platform, range(20))
    words = ["orders", "--to", "few", "-n", platform.name_servers, "--tags", "odd"]
    words += ["--where", "cast(cast(body as string) as int) < 10"]
    done = CliRunner().invoke(app, ["pipeline", "forward", *words, "--checkpoint", str(tmp_path / "checkpoint")])
    assert done.exit_code == 0, done.output
    assert [int(row["body"]) for row in contents(platform, "few")] == [1, 3, 5, 7, 9]
    assert "5 written to few" in done.output


@pytest.mark.thorough
def test_a_backlog_moves_to_a_topic_of_the_same_name_in_another_cluster_once_and_in_order(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    with run_platform() as other:
        send(platform, range(30))
        words = ["orders", "--to", "orders", "-n", platform.name_servers, "--to-name-servers", other.name_servers]
        words += ["--queues", "6", "--group", "mover", "--checkpoint", str(tmp_path / "checkpoint")]
        done = CliRunner().invoke(app, ["pipeline", "forward", *words])
        assert done.exit_code == 0, done.output
        assert f"30 written to orders at {other.name_servers}" in done.output
        assert contents(other, "orders") == contents(platform, "orders")
        one_queue_each = {key: [[n for n in range(30) if n % len(KEYS) == key]] for key in range(len(KEYS))}
        assert in_order(other, "orders", of=range(30)) == one_queue_each
        with Admin(platform.name_servers) as admin:
            assert admin.progress("mover").lag == 0, "the group is in the cluster of the source"

        send(platform, range(30, 40))
        done = CliRunner().invoke(app, ["pipeline", "forward", *words])
        assert "10 messages read, 10 written" in done.output, done.output
        assert contents(other, "orders") == contents(platform, "orders")

        port = platform.name_servers.rpartition(":")[2]
        words[words.index("--to-name-servers") + 1] = f"localhost:{port}"
        refused = CliRunner().invoke(app, ["pipeline", "forward", *words])
        assert isinstance(refused.exception, Refused), "localhost is the same cluster"
        assert "never end" in str(refused.exception)


@pytest.mark.thorough
def test_an_invalid_forward_job_is_refused_with_a_sentence(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    def arguments(**changes: object) -> ForwardJob:
        usual = {"sources": ("orders",), "target": "wide", "checkpoint": str(tmp_path / "checkpoint")}
        return ForwardJob(name_servers=platform.name_servers, **{**usual, **changes})  # type: ignore[arg-type]

    send(platform, range(1))
    with pytest.raises(Refused, match="never end"):
        run(spark, arguments(target="orders"))
    with pytest.raises(Refused, match=r"interval 0\.2 s"):
        run(spark, arguments(interval_s=0.2))
    with pytest.raises(SparrowError, match="colour"):
        run(spark, arguments(where="colour = 'red'"))


def test_only_columns_used_in_the_sql_are_read() -> None:
    assert columns_in_sql("properties['body_of'] = 'x' AND Tags IN ('a')", None) == ["tags", "properties"]
    assert columns_in_sql(None) == []
