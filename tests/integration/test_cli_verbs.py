"""The verbs of `sparrow` for topics, groups and messages, against a platform on the log store and one on a database.

What `--json` prints is decoded as the documented type, and must be exactly that: no field more, none less.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.json_output import decode_printed
from tests.support.wait import wait_until
from typer.testing import CliRunner, Result

from sparrow import Admin, Consumer, DeadLetter, Message, Producer, StoredMessage
from sparrow.cli.exit_codes import ExitCode, exit_code_of
from sparrow.cli.main import app
from sparrow.model.transaction import TransactionState
from sparrow.testing.platform import RunningPlatform, run_platform

HOSTILE = "\x1b[31mred\x1b[0m [bold]bold[/bold]"


class Shop:
    """A platform with a topic, a group that has read it, and a dead letter."""

    def __init__(self, platform: RunningPlatform) -> None:
        self.platform = platform

    def run(self, *words: str, answer: str | bytes | None = None) -> Result:
        """Call the program in this process."""
        env = {"SPARROW_NAME_SERVERS": self.platform.name_servers, "COLUMNS": "200"}
        return CliRunner(env=env).invoke(app, list(words), input=answer)

    def json(self, *words: str, kind: str | None = None, code: int = 0) -> Any:
        """Run a command with --json; return what it prints, decoded as its documented type."""
        command = kind or " ".join(words[:2])
        done = self.run(*words, "--json")
        assert done.exit_code == code, (done.output, done.exception)
        return decode_printed(command, done.stdout)

    def error(self, *words: str) -> tuple[str, int]:
        """Return the error of a command, and the exit code that the program leaves with."""
        done = self.run(*words)
        assert done.exception is not None
        if isinstance(done.exception, SystemExit):
            return done.stderr, done.exit_code
        return str(done.exception), exit_code_of(done.exception)

    def program(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the real program."""
        command = [sys.executable, "-m", "sparrow", *words, "--name-servers", self.platform.name_servers]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)

    def program_to(self, output: int, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the real program with its output to a file descriptor."""
        command = [sys.executable, "-m", "sparrow", *words, "--name-servers", self.platform.name_servers]
        return subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("log", marks=pytest.mark.xdist_group("cli log")),
        pytest.param("sqlite", marks=[pytest.mark.xdist_group("cli sqlite"), pytest.mark.thorough]),
    ],
)
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    store = None if request.param == "log" else f"sqlite:///{tmp_path_factory.mktemp('store') / 'messages.db'}"

    def handle(message: StoredMessage) -> None:
        if message.body == b"bad":
            raise DeadLetter("no such customer")

    with run_platform(store=store) as platform:
        with Admin(platform.name_servers) as admin, Producer(platform.name_servers) as producer:
            admin.create_topic("orders", 2)
            admin.create_topic("alarms", 1, has_lanes=True)
            for number in range(10):
                producer.send(Message("orders", json.dumps({"number": number}), keys=f"order-{number}", tags="paid"))
            producer.send(Message("orders", "bad", keys="worst"))
            producer.send(Message("orders", bytes(range(256)), keys="bytes"))
            producer.send(Message("orders", HOSTILE, keys="hostile", properties={"city": "Oslo"}))
            with Consumer(platform.name_servers, group="billing", consume_from="first", retries_max=0) as consumer:
                consumer.subscribe("orders")
                consumer.start(handle)
                wait_until(lambda: len(admin.dead_letters("billing")) == 1)
                wait_until(lambda: admin.progress("billing", "orders").lag == 0)
        yield Shop(platform)


# -- topics -----------------------------------------------------------------------------------------------------------


def test_topics_are_listed_and_shown(shop: Shop) -> None:
    topics = {topic.name: topic for topic in shop.json("topic", "list")}
    assert {"orders", "alarms"} <= topics.keys()
    assert not any(name.startswith("%") for name in topics)
    assert (topics["orders"].queues, topics["orders"].messages, topics["alarms"].has_lanes) == (2, 13, True)
    assert "%DLQ%billing" in {topic.name for topic in shop.json("topic", "list", "--all")}
    found = shop.json("topic", "show", "orders")
    assert sum(queue.messages for queue in found.queues) == 13
    assert "billing" in found.groups
    assert {queue.lane for queue in shop.json("topic", "show", "alarms").queues} == {"high", "middle", "low"}
    rows = shop.run("topic", "list").stdout.splitlines()
    assert rows[0].split("\t")[:4] == ["topic", "kind", "queues", "messages"], "tabs where no terminal reads"
    assert shop.error("topic", "show", "nothing")[1] == ExitCode.NOT_FOUND


def test_topic_is_created_changed_and_deleted(shop: Shop) -> None:
    assert shop.json("topic", "create", "fresh", "--queues", "3").queues == 3
    sentence, code = shop.error("topic", "create", "fresh")
    assert ("exists already" in sentence, code) == (True, ExitCode.FAILED)
    changed = shop.json("topic", "update", "fresh", "--permission", "r")
    assert (changed.queues, changed.is_readable, changed.is_writable) == (3, True, False)
    assert shop.run("topic", "update", "fresh").exit_code == ExitCode.USAGE
    shop.run("send", "fresh2", "x")
    assert shop.json("topic", "delete", "fresh", "--dry-run").topic == "fresh"
    refused = shop.run("topic", "delete", "fresh", answer="n\n")
    assert (refused.exit_code, "This deletes topic fresh" in refused.stderr) == (1, True)
    assert shop.run("topic", "delete", "fresh", answer="").exit_code == 1, "no answer is no"
    assert "fresh" in {topic.name for topic in shop.json("topic", "list")}
    shop.json("topic", "delete", "fresh", "--yes")
    assert "fresh" not in {topic.name for topic in shop.json("topic", "list")}


# -- groups -----------------------------------------------------------------------------------------------------------


def test_groups_are_listed_and_shown(shop: Shop) -> None:
    (billing,) = (group for group in shop.json("group", "list") if group.name == "billing")
    assert (billing.lag, billing.dead_letters, billing.topics) == (0, 1, ("orders",))
    found = shop.json("group", "show", "billing")
    assert sum(queue.committed for queue in found.topics[0].queues) == 13
    assert shop.error("group", "show", "biling") == ("group 'biling' does not exist: did you mean 'billing'?", 3)


def test_reset_shows_what_it_would_do_and_then_does_it(shop: Shop) -> None:
    plan = shop.json("group", "reset", "billing", "orders", "--to", "first", "--dry-run")
    assert (plan.again, plan.skipped) == (13, 0)
    assert shop.json("group", "show", "billing").lag == 0, "a dry run changes nothing"
    shown = shop.run("group", "reset", "billing", "orders", "--to", "first", answer="n\n")
    assert (shown.exit_code, "13 messages are delivered again, 0 are skipped" in shown.stdout) == (1, True)
    assert shop.json("group", "reset", "billing", "orders", "--to", "1d", "--yes").again == 13
    assert shop.json("group", "show", "billing").lag == 13
    late = shop.run("group", "show", "billing", "--max-lag", "12")
    assert (late.exit_code, "more than 12" in late.stderr) == (1, True)
    queue = next(each for each in shop.json("group", "show", "billing").topics[0].queues if each.end > 2)
    place = ("--broker", queue.broker, "--queue", str(queue.queue_id))
    one = shop.json("group", "reset", "billing", "orders", "--offset", "2", *place, "--expect", "0", "--yes")
    assert (one.again, one.skipped) == (0, 2)
    sentence, _ = shop.error("group", "reset", "billing", "orders", "--offset", "1", *place, "--expect", "0", "--yes")
    assert "the state has changed" in sentence
    assert shop.json("group", "reset", "billing", "orders", "--to", "last", "--yes").skipped == 11
    assert shop.run("group", "reset", "billing", "orders").exit_code == ExitCode.USAGE
    assert shop.run("group", "reset", "billing", "orders", "--to", "yesterday").exit_code == ExitCode.USAGE


def test_group_is_deleted(shop: Shop) -> None:
    with Consumer(shop.platform.name_servers, group="short-lived") as consumer:
        consumer.subscribe("orders")
        consumer.poll(timeout_ms=100)
        wait_until(lambda: "short-lived" in {group.name for group in shop.json("group", "list")})
        sentence, code = shop.error("group", "delete", "short-lived", "--yes")
        assert ("members of group 'short-lived' are online" in sentence, code) == (True, ExitCode.FAILED)
    wait_until(lambda: not shop.json("group", "show", "short-lived").members)
    assert shop.json("group", "delete", "short-lived", "--yes").group == "short-lived"


# -- messages ---------------------------------------------------------------------------------------------------------


def test_messages_are_found_by_key_time_tag_and_text(shop: Shop) -> None:
    (line,) = shop.json("message", "find", "orders", "--key", "order-7").messages
    assert (json.loads(line.body), line.tags, line.keys) == ({"number": 7}, "paid", ["order-7"])
    assert shop.json("message", "get", line.message_id, "--topic", "orders").body == line.body
    recent = shop.json("message", "find", "orders", "--from", "1h", "--tag", "paid", "--limit", "1000")
    assert (len(recent.messages), recent.complete) == (10, True)
    assert [each.keys for each in shop.json("message", "find", "orders", "--text", "Oslo", code=3).messages] == []
    (found,) = shop.json("message", "find", "orders", "--text", "[bold]").messages
    assert found.properties == {"city": "Oslo"}
    assert shop.run("message", "find", "orders", "--key", "none").exit_code == ExitCode.NOT_FOUND
    assert shop.error("message", "get", "0" * 32, "--topic", "orders")[1] == ExitCode.NOT_FOUND


def test_search_says_that_it_is_incomplete_and_can_be_continued(shop: Shop) -> None:
    words = ("message", "find", "orders", "--order", "oldest", "--limit", "5")
    first = shop.json(*words)
    assert (len(first.messages), first.complete) == (5, False)
    assert "incomplete" in shop.run(*words).stderr
    seen = {(line.queue_id, line.queue_offset) for line in first.messages}
    cursor = first.next
    while cursor is not None:
        more = shop.json(*words, "--after", json.dumps(cursor))
        seen |= {(line.queue_id, line.queue_offset) for line in more.messages}
        cursor = more.next
    assert len(seen) == 13


def test_bodies_are_shown_by_content_and_cannot_control_the_terminal(shop: Shop) -> None:
    def shown(key: str, *more: str) -> str:
        (line,) = shop.json("message", "find", "orders", "--key", key).messages
        return shop.run("message", "get", line.message_id, "--topic", "orders", *more).stdout

    assert '{\n  "number": 7\n}' in shown("order-7")
    assert "00000010  10 11 12" in shown("bytes")
    hostile = shown("hostile")
    assert "\x1b" not in hostile
    assert "\\x1b[31mred" in hostile
    assert "[bold]bold[/bold]" in hostile
    assert "00000000  1b 5b" in shown("hostile", "--format", "hex")
    assert "\x1b" not in shop.run("tail", "orders", "--from", "first", "--exit-at-end").stdout


# -- send and tail ----------------------------------------------------------------------------------------------------


def test_what_tail_prints_is_what_send_reads(shop: Shop) -> None:
    exported = shop.run("tail", "orders", "--from", "first", "--exit-at-end", "--format", "json")
    lines = _message_lines(exported)
    assert len(lines) == 13
    assert [line.store_ms for line in lines] == sorted(line.store_ms for line in lines)
    sent = shop.run("send", "copy", "--jsonl", answer=exported.stdout)
    assert "13 messages sent" in sent.stderr, sent.output
    copies = _message_lines(shop.run("tail", "copy", "--from", "first", "--exit-at-end", "--format", "json"))

    def content(line: Any) -> tuple[object, ...]:
        return (line.body, line.body_base64, line.keys, line.tags, line.properties)

    assert sorted(map(repr, map(content, copies))) == sorted(map(repr, map(content, lines)))


def _message_lines(done: Result) -> list[Any]:
    return [decode_printed("tail --format json", line) for line in done.stdout.splitlines()]


def test_tail_filters_and_counts(shop: Shop) -> None:
    words = ("tail", "orders", "--from", "first", "--exit-at-end", "--format", "raw")
    assert len(shop.run(*words, "--filter", "paid || none").stdout.splitlines()) == 10
    assert shop.run(*words, "--sql", "city = 'Oslo'").stdout_bytes.strip() == HOSTILE.encode()
    assert len(shop.run(*words, "--filter", "paid", "--count", "3").stdout.splitlines()) == 3
    sentence, code = shop.error(*words, "--sql", "city =")
    assert ("city =" in sentence, code) == (True, ExitCode.FAILED)
    assert shop.error("tail", "nothing", "--exit-at-end")[1] == ExitCode.NOT_FOUND
    assert shop.run("tail", "orders", "--filter", "a", "--sql", "b = 1").exit_code == ExitCode.USAGE


def test_send_reports_each_line_and_goes_on_if_told(shop: Shop) -> None:
    lines = '{"body": {"a": 1}, "keys": ["k"]}\n{"bdy": 1}\n\n{"body": "z", "body_base64": "eg=="}\n{"body": "last"}\n'
    done = shop.run("send", "lines", "--jsonl", "--keep-going", "--json", answer=lines)
    assert done.exit_code == ExitCode.PARTLY_DONE
    results = [decode_printed("send", line) for line in done.stdout.splitlines()]
    assert {result.line: result.is_sent for result in results} == {1: True, 2: False, 4: False, 5: True}
    assert "unknown field `bdy`" in next(result.error for result in results if result.line == 2)
    stopped = shop.run("send", "lines", "--jsonl", answer='{"bdy": 1}\n{"body": "never"}\n')
    assert (stopped.exit_code, "line 1: " in stopped.stderr) == (ExitCode.FAILED, True)
    assert shop.error("send", "no topic", "x")[1] == ExitCode.FAILED
    assert shop.run("send", "lines", "x", "--property", "novalue").exit_code == ExitCode.USAGE


def test_send_takes_a_file_an_argument_and_a_delay(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "body.bin"
    file.write_bytes(b"two\nlines\n")
    sent = shop.json("send", "files", "--file", str(file), "--key", "f", kind="send")
    assert shop.json("message", "get", sent.message_id, "--topic", "files").body == "two\nlines\n"
    assert "2 messages sent" in shop.run("send", "files", "--file", str(file), "--lines").stderr
    later = shop.json("send", "files", "later", "--delay", "1h", kind="send")
    assert later.recall_handle
    assert shop.run("send", "files", "x", "--delay", "soon").exit_code == ExitCode.USAGE


# -- the real program -------------------------------------------------------------------------------------------------


def test_program_pipes_lines_and_exits_with_documented_codes(shop: Shop) -> None:
    sent = shop.program("send", "piped", input="one\ntwo\n")
    assert (sent.returncode, sent.stdout) == (0, "")
    assert "2 messages sent" in sent.stderr
    unknown = shop.program("topic", "show", "nothing")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (3, 1), unknown.stderr


def test_program_ends_cleanly_at_ctrl_c(shop: Shop) -> None:
    command = [sys.executable, "-m", "sparrow", "tail", "orders", "--from", "first", "-n", shop.platform.name_servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    assert (child.returncode, "Traceback" in said) == (ExitCode.INTERRUPTED, False), said


def test_program_says_what_to_do_without_a_name_server() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sparrow", "group", "list", "-n", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (ExitCode.UNREACHABLE, 1)
    assert "start one with `sparrow up`" in done.stderr


@pytest.mark.parametrize("form", ["text", "raw"])
def test_tail_ends_quietly_when_the_reader_has_enough(shop: Shop, form: str) -> None:
    """As in `sparrow tail orders --from first | head -1`, on a topic that gets no further messages."""
    command = [sys.executable, "-m", "sparrow", "tail", "orders", "--from", "first", "--format", form]
    with subprocess.Popen(
        [*command, "-n", shop.platform.name_servers], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline()
        child.stdout.close()
        said = child.stderr.read().decode()
        assert child.wait(60) == ExitCode.OUTPUT_CLOSED
    assert said == ""


def test_a_list_ends_quietly_when_nobody_reads_it(shop: Shop) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = shop.program_to(writer, "topic", "list", "--json")
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (ExitCode.OUTPUT_CLOSED, "")


def test_a_request_without_a_token_exits_with_the_documented_code() -> None:
    secret = "root-secret-key"
    with run_platform(broker={"auth": True, "admin_tokens": {"root": secret}}) as platform:
        guarded = Shop(platform)
        done = guarded.program("topic", "list")
        assert (done.returncode, done.stderr.count("\n")) == (ExitCode.NOT_PERMITTED, 1), done.stderr
        for words in (("topic", "create", "orders"), ("send", "orders", "a book"), ("group", "list")):
            said, code = guarded.error(*words)
            assert code == ExitCode.NOT_PERMITTED
            assert "the request is not signed, and this broker requires a token" in said
        keys = ("--access-key", "root", "--secret-key")
        assert guarded.run("topic", "create", "orders", *keys, secret).exit_code == 0
        assert guarded.error("topic", "list", *keys, "wrong-secret-key")[1] == ExitCode.NOT_PERMITTED


# -- dead letters, resends, transactions, tokens ----------------------------------------------------------------------


def test_dead_letters_resends_and_transactions_have_documented_json(shop: Shop) -> None:
    (group,) = shop.json("dlq", "list")
    (row,) = shop.json("dlq", "list", "billing", kind="dlq list GROUP")
    assert (group.letters, group.newest, row.reason) == (1, row, "no such customer")
    assert shop.json("dlq", "show", "billing", row.id).message.body == "bad"
    result = shop.json("dlq", "redrive", "billing", "--id", row.id, "--id", "none", "--to-group-only", "--yes", code=6)
    assert (result.sent, result.not_found) == (1, 1)
    assert shop.run("dlq", "redrive", "billing", "--id", "none", "--yes").exit_code == ExitCode.NOT_FOUND
    assert shop.json("transaction", "list") == []
    plan = shop.json("resend", "orders", "--group", "billing", "--key", "order-7", "--dry-run", kind="resend")
    assert plan.count == 1


def test_settings_bench_and_tokens_have_documented_json(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sparrow.toml").write_text('[broker]\nport = 12345\nadmin_tokens = { root = "a secret key" }\n')
    monkeypatch.setenv("SPARROW_LOG__FLUSH", "sync")
    rows = {row.name: row for row in shop.json("settings", kind="settings")}
    assert (rows["broker.port"].value, rows["broker.port"].origin) == (12345, "sparrow.toml")
    assert (rows["log.flush"].value, rows["log.flush"].origin) == ("sync", "SPARROW_LOG__FLUSH")
    assert rows["broker.net.idle_timeout_ms"].origin == "default"
    assert "a secret key" not in shop.run("settings", "--json").output
    assert {row.name for row in shop.json("settings", "--changed", kind="settings")} == {
        "broker.port",
        "broker.admin_tokens",
        "log.flush",
    }
    assert shop.run("settings", "brokr").exit_code == ExitCode.NOT_FOUND
    name_servers = shop.platform.name_servers
    report = shop.json("bench", "--seconds", "0.1", "-n", name_servers, kind="bench")
    assert len(report.measurements) == 5
    assert [each.scenario for each in report.measurements if not each.messages] == []
    assert not any(topic.name.startswith("sparrow_bench_") for topic in shop.json("topic", "list"))
    assert shop.json("token", "list") == []


# -- messages that wait ------------------------------------------------------------------------------------------------


def test_delayed_messages_are_listed_and_recalled(shop: Shop) -> None:
    for number in range(3):
        shop.run("send", "reminders", f"{number}", "--key", f"r-{number}", "--delay", f"{number + 1}h")
    listed = shop.json("message", "delayed", "--topic", "reminders", "--limit", "2")
    assert ([each.keys for each in listed.messages], listed.complete) == ([("r-0",), ("r-1",)], False)
    after = msgspec.json.encode(listed.next).decode()
    rest = shop.json("message", "delayed", "--topic", "reminders", "--after", after)
    assert ([each.keys for each in rest.messages], rest.complete) == ([("r-2",)], True)
    assert shop.run("message", "delayed", "--after", "x").exit_code == ExitCode.USAGE
    handles = [each.handle for each in listed.messages]
    plan = shop.json("message", "recall", *handles, "--dry-run", kind="message recall --dry-run")
    assert plan.count == 2
    assert shop.run("message", "recall", *handles, answer="n\n").exit_code == 1
    done = shop.json("message", "recall", *handles, "--yes")
    assert (done.done, done.not_found, done.failed) == (2, 0, 0)
    again = shop.json("message", "recall", handles[0], "--yes", code=ExitCode.NOT_FOUND)
    assert [item.state for item in again.items] == ["not_found"]
    rows = shop.run("message", "delayed", "--topic", "reminders").stdout.splitlines()
    assert [row.split("\t")[1] for row in rows] == ["topic", "reminders"]


def test_half_messages_are_listed_and_ended(shop: Shop) -> None:
    with Producer(
        shop.platform.name_servers, group="booking", transaction_checker=lambda _: TransactionState.UNKNOWN
    ) as producer:
        for number in range(3):
            producer.begin_transaction(Message("bookings", f"{number}", keys=f"b-{number}"))
        listed = shop.json("transaction", "half", "--topic", "bookings")
        first, second, third = (half.id for half in listed.messages)
        plan = shop.json("transaction", "commit", first, "--dry-run", kind="transaction commit --dry-run")
        assert (plan.count, plan.items[0].topic) == (1, "bookings")
        assert shop.json("transaction", "commit", first, "--yes").done == 1
        mixed = shop.json("transaction", "rollback", first, second, "--yes", code=ExitCode.PARTLY_DONE)
        assert [item.state for item in mixed.items] == ["not_found", "rolled_back"]
        assert shop.json("transaction", "rollback", "nonsense", "--yes", code=ExitCode.FAILED).failed == 1
        assert shop.run("transaction", "rollback", third, "--yes").stdout == "1 transactions rolled back.\n"
    assert [each.body for each in shop.json("message", "find", "bookings").messages] in ([0], ["0"])
    assert shop.json("transaction", "half", "--topic", "bookings").messages == []
