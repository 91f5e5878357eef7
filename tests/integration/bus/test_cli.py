"""`sparrow bus`, run as a user runs it."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.bus_messages import BusMessages
from tests.support.json_output import decode_printed
from tests.support.wait import wait_until
from typer.testing import CliRunner

from sparrow.bus import EventBus, EventStatus
from sparrow.cli.main import app
from sparrow.model.errors import SparrowError

SPARROW = [sys.executable, "-m", "sparrow", "bus"]

APPLICATION = """
from pathlib import Path
from sparrow.bus import EventBus

bus = EventBus({url!r}, {broker!r}, app="shop")

def make() -> EventBus:
    return bus

not_a_bus = 7

@bus.subscribe("order.created", group="billing")
def bill(order: dict) -> None:
    "Writes the bill."
    with Path("billed").open("a") as file:
        file.write(f"{{order['n']}}\\n")
"""


def application(folder: Path, url: str, broker: str = "memory://") -> None:
    (folder / "shop.py").write_text(APPLICATION.format(url=url, broker=broker))


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def sparrow(*words: str, cwd: Path) -> Done:
    """Run in this process, which is faster than a new one; errors of Sparrow end it as they end the script."""
    # A wide terminal, so that no table is cut.
    runner, before = CliRunner(env={"COLUMNS": "250"}), Path.cwd()
    os.chdir(cwd)
    try:
        done = runner.invoke(app, ["bus", *words])
    finally:
        os.chdir(before)
        sys.modules.pop("shop", None)
        sys.path[:] = [each for each in sys.path if each != str(cwd)]
    if isinstance(done.exception, SparrowError):
        return Done(1, done.stdout, f"sparrow: {done.exception}")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Done(done.exit_code, done.stdout, done.stderr)


def answer(*words: str, cwd: Path) -> Any:
    """Return the output of the command with --json, which has its documented type."""
    done = sparrow(*words, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    decode_printed(f"bus {words[0]}", done.stdout)
    return json.loads(done.stdout)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[BusMessages]:
    made = BusMessages(f"sqlite:///{tmp_path}/shop.db")
    yield made
    made.close()


def test_every_command_has_help_with_an_example(tmp_path: Path) -> None:
    listed = sparrow("--help", cwd=tmp_path).stdout
    commands = (
        *("worker", "list", "search", "show", "requeue", "reexecute", "cancel", "publish-now", "delete", "park"),
        *("unpark", "stats", "failures", "ddl", "check", "asyncapi", "clean"),
    )
    for command in commands:
        assert f" {command} " in listed, command
        assert "Example" in sparrow(command, "--help", cwd=tmp_path).stdout, command


# -- list, show, change ----------------------------------------------------------------------------------------------


def test_messages_are_listed_searched_and_shown(tmp_path: Path, shop: BusMessages) -> None:
    where = ("--database", shop.url)
    everything = answer("list", "published", *where, cwd=tmp_path)
    assert [row["id"] for row in everything] == [str(n) for n in (shop.later, *reversed(shop.failed), shop.waiting)]
    page = answer("list", "published", "--limit", "2", "--before", str(shop.later), *where, cwd=tmp_path)
    assert [row["id"] for row in page] == [str(n) for n in reversed(shop.failed)]
    failed = sparrow("list", "published", "--status", "failed", "--since", "1h", *where, cwd=tmp_path)
    assert "Unavailable-->no broker" in failed.stdout
    assert "order.created" not in failed.stdout
    assert "order.created" in sparrow("search", "published", '"n":4', *where, cwd=tmp_path).stdout
    assert "no message matches" in sparrow("search", "published", "xyz", *where, cwd=tmp_path).stdout
    shown = sparrow("show", "published", str(shop.waiting), *where, cwd=tmp_path).stdout
    assert "Scheduled" in shown
    assert '"sp-tenant": "north"' in shown
    with sqlite3.connect(tmp_path / "shop.db") as db:  # an attempt failed, another one follows
        db.execute("""UPDATE "cap.published" SET "LastError" = 'Busy-->try again' WHERE "Id" = ?""", (shop.waiting,))
    assert "Busy-->try again" in sparrow("show", "published", str(shop.waiting), *where, cwd=tmp_path).stdout
    assert "Busy-->try again" in sparrow("list", "published", "--status", "open", *where, cwd=tmp_path).stdout
    missing = sparrow("show", "received", "4711", *where, cwd=tmp_path)
    assert missing.returncode == 1
    assert "there is no message 4711 in received" in missing.stderr


def test_stats_count_messages_by_state(tmp_path: Path, shop: BusMessages) -> None:
    counted = answer("stats", "--topics", "--database", shop.url, cwd=tmp_path)
    published = counted["published"]
    assert (published["by_status"]["Failed"], published["by_status"]["Delayed"], published["open"]) == (2, 1, 2)
    assert {row["name"]: row["open"] for row in counted["topics"]} == {"order.created": 2}
    text = sparrow("stats", "--database", shop.url, cwd=tmp_path).stdout
    assert "Delayed" in text
    assert "(to be sent)" in text
    [kind] = answer("failures", "--database", shop.url, cwd=tmp_path)
    assert (kind["count"], kind["error"]) == (2, "Unavailable-->no broker …")


def test_error_of_the_script_prints_one_sentence_without_traceback(tmp_path: Path) -> None:
    words = ["show", "published", "1", "--database", f"sqlite:///{tmp_path}/none.db"]
    done = subprocess.run([*SPARROW, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("sparrow: database = 'sqlite:///")
    assert "Traceback" not in done.stderr


def test_action_by_number_succeeds_for_all_numbers_or_for_none(tmp_path: Path, shop: BusMessages) -> None:
    where = ("--database", shop.url)
    done = sparrow("requeue", str(shop.failed[0]), *where, cwd=tmp_path)
    assert done.stdout.strip() == f"1 message requeued: {shop.failed[0]}"
    assert shop.status(shop.failed[0]) is EventStatus.ENQUEUED
    assert "cancelled" in sparrow("cancel", str(shop.later), *where, cwd=tmp_path).stdout
    assert shop.status(shop.later) is EventStatus.CANCELLED
    refused = sparrow("cancel", str(shop.later), str(shop.waiting), *where, cwd=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.strip() == f"sparrow: message {shop.later} is Cancelled: it cannot become Cancelled"
    assert shop.status(shop.waiting) is EventStatus.SCHEDULED
    assert answer("delete", "published", str(shop.waiting), "--force", *where, cwd=tmp_path)["count"] == 1


def test_action_by_filter_changes_nothing_without_confirmation(tmp_path: Path, shop: BusMessages) -> None:
    where = ("--name", "order.paid", "--database", shop.url)
    dry = answer("requeue", *where, "--dry-run", cwd=tmp_path)
    assert dry == {"count": 2, "ids": [str(number) for number in shop.failed], "dry_run": True}
    unsaid = sparrow("requeue", *where, cwd=tmp_path)
    assert unsaid.returncode == 1
    assert "2 messages would be requeued: add --yes" in unsaid.stderr
    assert {shop.status(number) for number in shop.failed} == {EventStatus.FAILED}
    assert answer("park", "published", *where, "--yes", cwd=tmp_path)["count"] == 2
    assert answer("unpark", "published", *where, "--parked", "--yes", "--limit", "1", cwd=tmp_path)["count"] == 1
    assert answer("requeue", *where, "--yes", "--not-parked", cwd=tmp_path)["count"] == 1
    assert answer("publish-now", "--name", "order.created", "-y", *where[2:], cwd=tmp_path)["count"] == 1
    assert shop.status(shop.later) is EventStatus.SCHEDULED
    everything = sparrow("delete", "published", "--yes", *where[2:], cwd=tmp_path)
    assert everything.returncode == 1
    assert "the filter is empty" in everything.stderr


def test_wrong_arguments_are_refused_with_a_clear_message(tmp_path: Path, shop: BusMessages) -> None:
    where = ("--database", shop.url)
    application(tmp_path, shop.url)
    wrong = {
        ("list", "sent", *where): "published or received",
        ("list", "published", "--status", "Sent", *where): "is not a state",
        ("list", "published", "--since", "yesterday", *where): "is not a time",
        ("list", "published"): "--bus module:bus",
        ("list", "published", "--bus", "shop:bus", *where): "--bus module:bus",
        ("list", "published", "--bus", "nowhere:bus"): "nowhere",
        ("list", "published", "--bus", "shop:not_a_bus"): "this is a int",
        ("list", "published", "--bus", "shop"): "module:name",
        (
            "list",
            "published",
            "--database",
            "nonsense",
        ): "'nonsense' cannot be used: it is not a URL of a database. Write sqlite:///nonsense if",
        (
            "list",
            "published",
            "--database",
            "oracle://x/y",
        ): "'oracle://x/y' cannot be used: the scheme 'oracle' is unknown. Write mysql://",
        ("list", "published", "--database", "sqlite:///nowhere.db"): "a file that exists",
        ("list", "published", "--database", "postgresql://me:secret@127.0.0.1:1/x"): "is unreachable",
        ("list", "published", *where, "--table-prefix", "other"): "are missing in",
        ("requeue", "1", "--name", "x", *where): "not both",
        ("ddl", "--dialect", "oracle"): "mysql or postgresql or sqlite",
        ("worker", "shop:bus", "--relay-only", "--execute-only"): "or neither for both",
    }
    for words, sentence in wrong.items():
        done = sparrow(*words, cwd=tmp_path)
        said = " ".join(done.stderr.replace("│", " ").split())
        assert done.returncode != 0, words
        assert sentence in said, (words, said)
        assert "secret" not in said
    assert not (tmp_path / "nowhere.db").exists()


# -- ddl, check, asyncapi, clean -------------------------------------------------------------------------------------


def test_ddl_makes_tables_that_a_bus_without_ddl_rights_can_use(tmp_path: Path) -> None:
    import sqlite3

    text = sparrow("ddl", "--dialect", "sqlite", "--table-prefix", "shop", "--strict", cwd=tmp_path).stdout
    with sqlite3.connect(tmp_path / "made.db") as db:
        db.executescript(text)
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'shop.%'")}
    assert tables == {"shop.published", "shop.received", "shop.queue"}
    where = ("--database", f"sqlite:///{tmp_path}/made.db", "--table-prefix", "shop")
    assert answer("list", "published", *where, cwd=tmp_path) == []
    assert sparrow("clean", *where, cwd=tmp_path).returncode == 0
    assert (
        "CREATE SCHEMA IF NOT EXISTS bus"
        in sparrow("ddl", "--dialect", "postgresql", "--schema", "bus", cwd=tmp_path).stdout
    )
    assert "`cap.queue`" in sparrow("ddl", "--dialect", "mariadb", cwd=tmp_path).stdout


def test_check_lists_handlers_and_reports_errors(tmp_path: Path) -> None:
    application(tmp_path, f"sqlite:///{tmp_path}/shop.db")
    done = sparrow("check", "shop:bus", "--offline", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "shop.bill" in done.stdout
    assert "billing.v1" in done.stdout
    done = sparrow("check", "shop:make", cwd=tmp_path)
    assert done.returncode == 1
    assert "are missing in" in done.stdout
    BusMessages(f"sqlite:///{tmp_path}/shop.db").close()
    assert sparrow("check", "shop:bus", cwd=tmp_path).returncode == 0
    printed = sparrow("check", "shop:bus", "--json", cwd=tmp_path).stdout
    found = decode_printed("bus check", printed)
    assert (len(found.handlers) > 0, found.problems, found.is_offline) == (True, [], False)
    more = '\n@bus.subscribe("order.created", group="billing")\ndef twice(order: dict) -> None: ...\n'
    (tmp_path / "shop.py").write_text((tmp_path / "shop.py").read_text() + more)
    done = sparrow("check", "shop:bus", cwd=tmp_path)
    assert done.returncode == 1
    assert "both take 'order.created'" in done.stderr


def test_asyncapi_document_is_printed_or_written_to_a_file(tmp_path: Path) -> None:
    application(tmp_path, "sqlite:///shop.db")
    document = json.loads(sparrow("asyncapi", "shop:bus", cwd=tmp_path).stdout)
    assert document["operations"]["receive.order.created.billing.v1"]["summary"] == "Writes the bill."
    sparrow("asyncapi", "shop:bus", "-o", "out.json", "--title", "BusMessages", cwd=tmp_path)
    assert json.loads((tmp_path / "out.json").read_text())["info"]["title"] == "BusMessages"


def test_clean_deletes_only_expired_messages(tmp_path: Path, shop: BusMessages) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("""UPDATE "cap.published" SET "ExpiresAt" = '2020-01-01' WHERE "Id" = ?""", (shop.failed[0],))
    done = sparrow("clean", "--database", shop.url, cwd=tmp_path)
    assert done.stdout.strip() == "deleted 1 expired messages", done.stderr
    assert len(answer("list", "published", "--database", shop.url, cwd=tmp_path)) == 3


# -- worker ----------------------------------------------------------------------------------------------------------


@contextmanager
def worker(*words: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start a worker, and yield it with its output once it has printed that it is ready."""
    with (cwd / "said").open("w+") as errors:
        child = subprocess.Popen(
            [*SPARROW, "worker", *words], cwd=cwd, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        with child:
            try:
                assert child.stdout is not None
                said = []
                for line in child.stdout:
                    said.append(line.strip())
                    if line.startswith("ready"):
                        break
                assert child.poll() is None, (cwd / "said").read_text()
                yield child, said
            finally:
                child.kill()


def test_worker_sends_handles_and_stops_cleanly(tmp_path: Path, database_url: str) -> None:
    application(tmp_path, database_url)
    bus = EventBus(database_url, "memory://", app="shop")
    bus.prepare()
    with worker("shop:bus", cwd=tmp_path) as (child, said):
        assert said[1] == "group billing.v1: order.created"
        assert said[-1].endswith("relays published messages and runs the handlers of 1 group; Ctrl-C stops it")
        bus.publish_many([("order.created", {"n": n}) for n in range(5)])
        billed = tmp_path / "billed"
        wait_until(lambda: billed.exists() and sorted(billed.read_text().split()) == list("01234"), within_s=30)
        wait_until(lambda: bus.operations.stats().received.succeeded.count == 5, within_s=30)
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 0
        assert child.stdout is not None
        assert child.stdout.read().strip().endswith("stopped; 5 sent, 5 handled")
    assert "Traceback" not in (tmp_path / "said").read_text()
    assert bus.operations.stats().published.open == 0
    bus.stop()


@pytest.mark.thorough
def test_worker_with_relay_only_calls_no_handlers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    application(tmp_path, url)
    with worker("shop:bus", "--relay-only", cwd=tmp_path) as (child, said):
        assert said[-1].endswith("s; relays published messages; Ctrl-C stops it")
        bus = EventBus(url, "memory://", app="shop")
        number = bus.publish("order.created", {"n": 1})
        wait_until(lambda: bus.operations.get("published", number).status is EventStatus.SUCCESSED)
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
        bus.stop()
    assert not (tmp_path / "billed").exists()


@pytest.mark.thorough
def test_worker_waits_for_an_unreachable_database_and_broker(tmp_path: Path) -> None:
    application(tmp_path, "postgresql://me@127.0.0.1:1/x")
    child = subprocess.Popen(
        [*SPARROW, "worker", "shop:bus"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        assert child.stderr is not None
        try:
            assert "waiting: the database postgresql://me@127.0.0.1:1/x is unreachable" in child.stderr.readline()
            child.send_signal(signal.SIGINT)
            assert child.wait(30) == 0
        finally:
            child.kill()
    application(tmp_path, f"sqlite:///{tmp_path}/shop.db", "amqp://127.0.0.1:1/")
    with worker("shop:bus", cwd=tmp_path) as (child, _):
        wait_until(lambda: "the broker amqp://127.0.0.1:1/ cannot be used" in said_by(tmp_path), within_s=30)
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 0
    assert "Traceback" not in said_by(tmp_path)


def said_by(folder: Path) -> str:
    return (folder / "said").read_text()


def probe(address: str, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as found:
            return found.status, json.loads(found.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.thorough
def test_worker_answers_probes_while_it_waits_and_while_it_runs(tmp_path: Path) -> None:
    application(tmp_path, "postgresql://me@127.0.0.1:1/x")
    options = ("--health-port", "0", "--health-host", "127.0.0.1")
    command = [*SPARROW, "worker", "shop:bus", *options]
    child = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with child:
        assert child.stdout is not None
        try:
            address = child.stdout.readline().partition("http://")[2].partition("/")[0]
            assert probe(address, "/live") == (200, {"live": True})
            status, found = probe(address, "/ready")
            assert (status, found["findings"][0]["cause"]) == (503, "not started")
        finally:
            child.kill()
    application(tmp_path, f"sqlite:///{tmp_path}/shop.db")
    with worker("shop:bus", *options, cwd=tmp_path) as (child, said):
        address = said[0].partition("http://")[2].partition("/")[0]
        assert probe(address, "/ready") == (200, {"ready": True, "findings": []})
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
