"""`sparrow pipeline deadletters`: the report counts the dead letters of groups, and a selection is redriven once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.json_output import decode_printed
from tests.support.wait import wait_until
from typer.testing import CliRunner

from sparrow.cli.main import app
from sparrow.client import Admin, Consumer, DeadLetter, Message, Producer
from sparrow.client.consume.retry import make_redriven_message as redriven_by_client
from sparrow.model.errors import Refused
from sparrow.model.message import StoredMessage
from sparrow.spark.jobs.dead_letters import DeadLettersJob, RedriveResult, describe_letters, redrive, run
from sparrow.testing.platform import RunningPlatform

pytestmark = pytest.mark.xdist_group("spark")


def bury(platform: RunningPlatform, group: str, *messages: Message) -> None:
    """Make a group dead-letter these messages of topic `orders`."""

    def refuse(message: StoredMessage) -> None:
        raise DeadLetter

    with Producer(platform.name_servers) as producer, Admin(platform.name_servers) as admin:
        before = len(admin.dead_letters(group))
        for message in messages:
            producer.send(message)
        with Consumer(platform.name_servers, group=group, consume_from="first") as consumer:
            consumer.subscribe("orders")
            consumer.start(refuse, workers=1)
            wait_until(lambda: len(admin.dead_letters(group)) >= before + len(messages))


def stored(platform: RunningPlatform, topic: str) -> list[StoredMessage]:
    with Consumer(platform.name_servers, group="onlookers") as consumer:
        rows = consumer.read_table(topic, columns=["msg_id", "queue_id", "queue_offset"]).to_pylist()
    with Admin(platform.name_servers) as admin:
        return [admin.find_by_id(row["msg_id"], topic=topic) for row in rows]


@pytest.mark.thorough
def test_a_selection_is_redriven_once_with_its_retry_state_reset(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    slow = Message("orders", "slow", tags="a", keys="k", properties={"ERROR": "Timeout: 3 s\nat shop.py"})
    slow.flag = 7
    bury(platform, "billing", slow, Message("orders", "wrong", tags="b", properties={"ERROR": "Wrong"}))
    with Admin(platform.name_servers) as admin:
        letters = {letter.body: letter for letter in admin.dead_letters("billing")}
    arguments = DeadLettersJob(name_servers=platform.name_servers, group="billing", where="cause = 'Timeout: 3 s'")
    checkpoint = str(tmp_path / "checkpoint")
    assert redrive(spark, arguments, checkpoint) == RedriveResult(2, 1)
    first, again = [message for message in stored(platform, "orders") if message.body == b"slow"]
    young = redriven_by_client(letters[b"slow"], "billing", to_group_only=False)
    given_by_broker = {"CLUSTER", "MSG_REGION", "TRACE_ON"}
    assert {name: text for name, text in again.properties.items() if name not in given_by_broker} == young.properties
    assert (again.topic, again.flag, again.reconsume_times) == ("orders", 7, 0)
    assert again.unique_key == first.unique_key

    assert redrive(spark, arguments, checkpoint).sent == 0, "the same selection must send nothing again"
    bury(platform, "billing", Message("orders", "slow too", properties={"ERROR": "Timeout: 3 s"}))
    # "slow" was redriven to the group above and dead-lettered again.
    with Admin(platform.name_servers) as admin:
        timeouts = [letter.body for letter in admin.dead_letters("billing") if letter.body.startswith(b"slow")]
    assert redrive(spark, arguments, checkpoint).sent == len(timeouts) - 1, "only newer dead letters may be sent"


@pytest.mark.thorough
def test_the_command_reports_by_group_topic_tag_cause_and_hour(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    bury(platform, "billing", *(Message("orders", f"{n}", tags="a", properties={"why": "no stock"}) for n in range(7)))
    with Producer(platform.name_servers) as producer:
        # Dead letters as Apache brokers of version 5 leave them, and one of unknown origin.
        said = {"DLQ_ORIGIN_TOPIC": "payments", "DLQ_ORIGIN_MESSAGE_ID": "0A", "ERROR": "declined"}
        producer.send(Message("%DLQ%cashier", "1", properties=said))
        producer.send(Message("%DLQ%cashier", "2"))
    out, folder = tmp_path / "report.json", tmp_path / "parquet"
    words = ["deadletters", "-n", platform.name_servers, "--cause", "why"]
    files = ["--json-file", str(out), "--parquet", str(folder)]
    done = CliRunner(env={"COLUMNS": "250"}).invoke(app, ["pipeline", *words, *files])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert (found["letters"], found["without_origin"]) == (9, 1)
    most = found["lines"][0]
    assert [most[name] for name in ("group", "origin", "tag", "cause")] == ["billing", "orders", "a", "no stock"]
    assert (most["count"], most["attempts"]) == (7, 1)
    assert {(each["group"], each["origin"], each["cause"]) for each in found["lines"][1:]} == {
        ("cashier", "payments", "declined"),
        ("cashier", None, None),
    }
    assert len(most["samples"]) == 5
    assert most["first"] <= most["last"]
    assert spark.read.parquet(str(folder)).selectExpr("sum(count)").first()[0] == 9
    assert "no stock" in done.stdout
    assert "1 dead letter without an original topic" in done.stdout

    printed = CliRunner().invoke(app, ["pipeline", *words, "--json"])
    outcome = decode_printed("pipeline deadletters", printed.stdout)
    assert (outcome.report.letters, outcome.sent) == (9, None)

    chosen = [*words[:3], "--where", "group = 'cashier'", "--redrive", "--checkpoint", str(tmp_path / "checkpoint")]
    assert CliRunner().invoke(app, ["pipeline", *chosen], input="n\n").exit_code == 1
    done = CliRunner().invoke(app, ["pipeline", *chosen, "--yes"])
    assert "1 sent" in done.stdout, done.output
    assert [message.body for message in stored(platform, "payments")] == [b"1"]


@pytest.mark.thorough
def test_the_cause_is_what_the_broker_stored_unless_another_property_is_named(spark: SparkSession) -> None:
    rows = [
        ({"DLQ_REASON": "no such customer", "ERROR": "older", "DLQ_ATTEMPT": "3", "DLQ_CONSUMER": "10.0.0.1@7"},),
        ({"DLQ_REASON": "'7'", "DLQ_ERROR_TYPE": "KeyError"},),
        ({"ERROR": "only this"},),
    ]
    letters = spark.createDataFrame(rows, "properties map<string, string>").selectExpr(
        "'%DLQ%g' AS topic", "properties", "timestamp '2026-05-01 10:20:00' AS store_timestamp"
    )
    found = [(row.cause, row.attempts, row.consumer) for row in describe_letters(letters).collect()]
    assert found == [("no such customer", 3, "10.0.0.1@7"), ("KeyError: '7'", None, None), ("only this", None, None)]
    chosen = describe_letters(letters, ("ERROR",)).collect()
    assert [row.cause for row in chosen] == ["older", None, "only this"]


@pytest.mark.thorough
def test_without_dead_letters_the_report_is_empty(spark: SparkSession, platform: RunningPlatform) -> None:
    found = run(spark, DeadLettersJob(name_servers=platform.name_servers, group="nobody"))
    assert (found.lines, found.letters) == ([], 0)
    with pytest.raises(Refused, match="use --group billing"):
        run(spark, DeadLettersJob(name_servers=platform.name_servers, group="%DLQ%billing"))
