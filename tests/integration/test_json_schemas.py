"""The real program prints with `--json` exactly what docs/cli.md says, command by command, on a platform with auth.

Commands that need Spark or etcd are tested beside their other tests, by `decode_printed`, too.
"""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.bus_messages import BusMessages
from tests.support.json_output import JSON_COMMANDS, decode_printed
from tests.support.pipelines import declare_pipelines
from tests.support.wait import wait_until

from sparrow import Admin, Consumer, Credentials, DeadLetter, Message, Producer, StoredMessage
from sparrow.cli.exit_codes import ExitCode
from sparrow.model.topic import Group
from sparrow.model.transaction import TransactionState
from sparrow.testing.platform import run_platform

pytestmark = [pytest.mark.thorough, pytest.mark.xdist_group("json schemas"), pytest.mark.timeout(300)]

OPERATOR = Credentials("operator", "a long secret")
APPLICATION = 'from sparrow.bus import EventBus\n\nbus = EventBus({url!r}, "memory://", app="shop")\n'
MAY_FAIL = {"doctor": {ExitCode.FAILED}}
"""Exit codes besides 0: the doctor may find something on the machine of the test."""


class Prepared(NamedTuple):
    """A platform on which every command of the table has something to print."""

    folder: Path
    environment: dict[str, str]
    values: dict[str, str]
    """What the arguments of the commands are filled in with."""

    def run(self, command: str) -> str:
        """Run the real program; return its output."""
        words = list(itertools.takewhile(lambda word: word.islower() and word[0] != "-", command.split()))
        arguments = shlex.split(JSON_COMMANDS[command].format(**self.values))
        if words != ["tail"]:
            arguments.append("--json")
        done = subprocess.run(
            [sys.executable, "-m", "sparrow", *words, *arguments],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode in {0, *MAY_FAIL.get(command, ())}, (command, done.stderr, done.stdout)
        return done.stdout


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("json")
    declare_pipelines(folder / "pipelines")
    bus = BusMessages(f"sqlite:///{folder}/shop.db")
    (folder / "shop.py").write_text(APPLICATION.format(url=bus.url))
    values = {
        "bus": bus.url,
        "event": str(bus.failed[0]),
        "pipelines": str(folder / "pipelines"),
        "stopped_broker": str(folder / "stopped"),
    }
    with run_platform(folder / "stopped") as platform, Producer(platform.name_servers) as producer:
        producer.send(Message("orders", "a book"))
    auth = {"auth": True, "admin_tokens": {OPERATOR.access_key: OPERATOR.secret_key}}
    with run_platform(folder / "running", broker=auth) as platform:
        environment = {
            "SPARROW_NAME_SERVERS": platform.name_servers,
            "SPARROW_ACCESS_KEY": OPERATOR.access_key,
            "SPARROW_SECRET_KEY": OPERATOR.secret_key,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        with Producer(
            platform.name_servers,
            group="booking",
            credentials=OPERATOR,
            transaction_checker=lambda _: TransactionState.UNKNOWN,
        ) as producer:
            values.update(send_messages(platform.name_servers, producer))
            made = Prepared(folder, environment, values)
            values["dead_letter"] = decode_printed("dlq list GROUP", made.run("dlq list GROUP"))[0].id
            halves = decode_printed("transaction half", made.run("transaction half")).messages
            values["half"], values["other_half"] = (half.id for half in halves)
            yield made
    bus.close()


def send_messages(name_servers: str, producer: Producer) -> dict[str, str]:
    """Make topics, groups, a token, a dead letter, a delayed message and half messages; return ids of messages."""

    def refuse(message: StoredMessage) -> None:
        if message.body == b"bad":
            raise DeadLetter("no such customer")

    with Admin(name_servers, credentials=OPERATOR) as admin:
        for topic in ("orders", "alarms", "unused"):
            admin.create_topic(topic, 2)
        admin.create_group(Group(name="unused"))
        admin.issue_token("checkout", "p", topics=["orders"])
        first, _ = (producer.send(Message("orders", body, keys=f"order-{n}")) for n, body in enumerate(("bad", "good")))
        later = producer.send(Message("orders", "later"), deliver_after_ms=3_600_000)
        for number in range(2):
            producer.begin_transaction(Message("bookings", f"{number}", keys=f"b-{number}"))
        with Consumer(
            name_servers, group="billing", credentials=OPERATOR, consume_from="first", retries_max=0
        ) as consumer:
            consumer.subscribe("orders")
            consumer.start(refuse)
            wait_until(lambda: len(admin.dead_letters("billing")) == 1)
    return {"message_id": first.message_id, "handle": str(later.recall_handle)}


@pytest.mark.parametrize("command", JSON_COMMANDS)
def test_program_prints_the_documented_type(prepared: Prepared, command: str) -> None:
    printed = prepared.run(command)
    is_stream = command in ("send", "tail --format json")
    for document in printed.splitlines() if is_stream else (printed,):
        decode_printed(command, document)
