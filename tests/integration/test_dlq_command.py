"""`sparrow dlq`: dead letters on the command line, without Spark."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.support.wait import wait_until
from typer.testing import CliRunner, Result

from sparrow.cli.main import app
from sparrow.client import Admin, Consumer, DeadLetter, Message, Producer
from sparrow.model.errors import Refused
from sparrow.model.message import StoredMessage
from sparrow.model.topic import Group
from sparrow.testing.platform import RunningPlatform, run_platform


@pytest.fixture(scope="module")
def platform() -> Iterator[RunningPlatform]:
    def refuse(message: StoredMessage) -> None:
        if message.body == b"unknown":
            raise DeadLetter("no such customer")
        int(message.body)

    with run_platform() as started:
        with Producer(started.name_servers) as producer, Admin(started.name_servers) as admin:
            admin.create_group(Group(name="shipping"))
            with Consumer(started.name_servers, group="billing", retries_max=0) as consumer:
                for count, body in enumerate(("unknown", "12a"), start=1):
                    producer.send(Message("orders", body, keys=f"key-{body}"))
                    if count == 1:
                        consumer.subscribe("orders")
                        consumer.start(refuse, workers=1)
                    wait_until(lambda count=count: len(admin.dead_letters("billing")) == count)  # type: ignore[misc]
        yield started


def dlq(platform: RunningPlatform, *words: str, answer: str | None = None) -> Result:
    env = {"COLUMNS": "250", "SPARROW_NAME_SERVERS": platform.name_servers}
    return CliRunner(env=env).invoke(app, ["dlq", *words], input=answer)


def test_groups_are_listed_with_their_newest_reason(platform: RunningPlatform) -> None:
    done = dlq(platform, "list")
    assert done.exit_code == 0, done.output
    for text in ("billing", "2", "orders", "ValueError", "invalid literal for int()"):
        assert text in done.output
    (row,) = json.loads(dlq(platform, "list", "--json").output)
    newest = row["newest"]
    assert (row["group"], row["letters"], newest["topic"], newest["attempts"]) == ("billing", 2, "orders", 1)
    assert newest["cause"].startswith("ValueError: invalid literal for int()")


def test_letters_of_a_group_are_listed_newest_first_and_limited(platform: RunningPlatform) -> None:
    rows = json.loads(dlq(platform, "list", "billing", "--json").output)
    assert [(row["group"], row["keys"], row["error"], row["attempts"]) for row in rows] == [
        ("billing", ["key-12a"], "ValueError", 1),
        ("billing", ["key-unknown"], None, 1),
    ]
    assert rows[1]["cause"] == "no such customer"
    shown = dlq(platform, "list", "billing").output
    for text in ("topic", "attempts", "cause", "orders", "no such customer"):
        assert text in shown
    assert rows[1]["reason"] == "no such customer"
    assert rows[0]["consumer"]
    (newest,) = json.loads(dlq(platform, "list", "billing", "--limit", "1", "--json").output)
    assert newest == rows[0]
    assert "Group shipping has no dead letters." in dlq(platform, "list", "shipping").output
    unknown = dlq(platform, "list", "biling").exception
    assert isinstance(unknown, Refused)
    assert str(unknown) == "group 'biling' does not exist: did you mean 'billing'?"
    wrong = dlq(platform, "list", "%DLQ%billing").exception
    assert isinstance(wrong, Refused)
    assert "use billing" in str(wrong)


def test_a_letter_is_shown_with_its_traceback_and_body(platform: RunningPlatform) -> None:
    rows = json.loads(dlq(platform, "list", "billing", "--json").output)
    shown = dlq(platform, "show", "billing", rows[0]["id"]).output
    for text in (
        "group: billing",
        "error: ValueError",
        "attempts: 1",
        "topic: orders",
        "in refuse",
        "int(message.body)",
        "\n12a\n",
    ):
        assert text in shown, shown
    missing = dlq(platform, "show", "billing", "none").exception
    assert str(missing) == "there is no dead letter 'none': group 'billing' has none with this id, or no longer"


def test_letters_are_redriven_by_id(platform: RunningPlatform) -> None:
    rows = json.loads(dlq(platform, "list", "billing", "--json").output)
    words = ["redrive", "billing", "--id", rows[1]["id"], "--to-group-only"]
    assert dlq(platform, *words, answer="n\n").exit_code == 1
    assert "1 dead letters of group billing sent again" in dlq(platform, *words, "--yes").output
    assert dlq(platform, "redrive", "billing").exit_code == 2


def test_the_list_needs_neither_spark_nor_arrow_nor_much_time(platform: RunningPlatform) -> None:
    code = "import sys; from sparrow.cli.main import app; app(sys.argv[1:], standalone_mode=False); "
    code += "print('LOADED', *(name for name in ('pyspark', 'pyarrow', 'numpy') if name in sys.modules))"
    words = ["dlq", "list", "--name-servers", platform.name_servers]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "billing" in done.stdout
    assert done.stdout.splitlines()[-1] == "LOADED"
    # CPU time, because the machine may be busy; on a free one it takes 0.7 s altogether.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
