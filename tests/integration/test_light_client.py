"""A client without any optional package: it works, and what needs one says which."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.platform_driver import running_platform_driver
from tests.support.recording_handlers import RecordingHandler
from tests.support.wait import eventually

from sparrow.aio import Consumer
from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.testing import RunningPlatform
from sparrow.wire import compression
from sparrow.wire.compression import Compression, compress
from sparrow.wire.compression import _require_package as require_package

SRC = Path(__file__).resolve().parents[2] / "src"
OPTIONAL_PACKAGES = [
    "aiosqlite",
    "isal",
    "lz4",
    "numpy",
    "pandas",
    "pyarrow",
    "pydantic",
    "pydantic_core",
    "pydantic_settings",
    "pyspark",
    "rich",
    "sqlalchemy",
    "typer",
    "uvloop",
    "zstandard",
]
"""What `pip install sparrowmq` leaves out."""

COMMAND_LINE = "import runpy\nrunpy.run_module('sparrow', run_name='__main__')"

SEND_AND_CONSUME = """
import asyncio
from itertools import islice
from sparrow import Admin, Consumer, Message, PopConsumer, Producer, aio

servers = sys.argv[1]
with Admin(servers) as admin:
    admin.create_topic("orders", 2)
with Producer(servers) as producer:
    for n in range(10):
        producer.send(Message("orders", f"{n}", tags="paid", keys=f"k{n}"))
    producer.send(Message("orders", b"x" * 100_000, tags="paid"))
with Consumer(servers, group="billing") as consumer:
    consumer.subscribe("orders", "paid")
    print(*sorted(len(message.body) for message in islice(consumer, 11)))

async def main():
    async with aio.Producer(servers) as producer, aio.Consumer(servers, group="audit") as consumer:
        await consumer.subscribe("orders")
        await producer.send(Message("orders", "last"))
        async for message in consumer:
            if message.body == b"last":
                return
asyncio.run(main())
print("done")
"""

NAMES_EXTRAS = """
import sparrow, sparrow.testing
from sparrow import Admin, Consumer, MissingExtra, Producer

def said(work):
    try:
        work()
    except MissingExtra as error:
        print(error)

servers = sys.argv[1]
with Admin(servers) as admin:
    admin.create_topic("orders", 1)
with Producer(servers) as producer:
    said(lambda: producer.send_table("orders", object()))
with Consumer(servers, group="billing") as consumer:
    said(lambda: consumer.read_table("orders"))
with Admin(servers) as admin:
    said(lambda: admin.dead_letter_table("billing"))
said(lambda: sparrow.testing.run_platform().__enter__())
for module in ("sparrow.broker", "sparrow.store", "sparrow.settings"):
    said(lambda: __import__(module))
"""


def run_without(packages: Sequence[str], script: str, *words: str) -> subprocess.CompletedProcess[str]:
    # None is Python's own mark of a module that cannot be imported.
    return subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.modules |= dict.fromkeys({packages!r})\n{script}", *words],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_client_sends_and_consumes_without_any_optional_package(sparrow_platform: RunningPlatform) -> None:
    done = run_without(OPTIONAL_PACKAGES, SEND_AND_CONSUME, sparrow_platform.name_servers)
    assert done.stdout.splitlines() == ["1 1 1 1 1 1 1 1 1 1 100000", "done"], done.stderr


def test_what_needs_an_optional_package_names_the_extra(sparrow_platform: RunningPlatform) -> None:
    done = run_without(OPTIONAL_PACKAGES, NAMES_EXTRAS, sparrow_platform.name_servers)
    assert done.stdout.splitlines() == [
        'Producer.send_table needs numpy: pip install "sparrowmq[tables]"',
        'Consumer.read_table needs numpy: pip install "sparrowmq[tables]"',
        'Admin.dead_letter_table needs numpy: pip install "sparrowmq[tables]"',
        'sparrow.testing.run_platform needs numpy: pip install "sparrowmq[server]"',
        'sparrow.broker needs numpy: pip install "sparrowmq[server]"',
        'sparrow.store needs numpy: pip install "sparrowmq[server]"',
        'sparrow.settings needs pydantic_settings: pip install "sparrowmq[server]"',
    ], done.stderr


def test_the_command_line_says_in_one_line_what_to_install() -> None:
    done = run_without(OPTIONAL_PACKAGES, COMMAND_LINE, "up")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        'sparrow: the command sparrow needs typer: pip install "sparrowmq[cli]"; to run brokers, "sparrowmq[server]"'
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--port", "0"], 'sparrow: sparrow up needs numpy: pip install "sparrowmq[server]"'),
        (["store", "info", "."], 'sparrow: sparrow store needs numpy: pip install "sparrowmq[server]"'),
        (["pipeline", "run"], 'sparrow: sparrow pipeline needs numpy: pip install "sparrowmq[spark]"'),
    ],
)
def test_a_command_says_which_extra_it_needs(words: list[str], said: str) -> None:
    done = run_without(["numpy", "pyarrow"], COMMAND_LINE, *words)
    assert (done.returncode, done.stderr.splitlines()) == (1, [said])


async def test_a_message_that_cannot_be_decompressed_waits_until_the_package_is_there(tmp_path, monkeypatch) -> None:
    async with running_platform_driver(tmp_path) as driver:
        await driver.create_topic("packed")
        body, sys_flag = compress(b"hello" * 100, Compression.ZSTD)
        store = driver.platform.broker.broker.store
        for each in (Draft(body=body, sys_flag=sys_flag, born_ms=1), Draft(body=b"plain", born_ms=1)):
            store.append_nowait(Queue("packed", 0), [each])
        asked: list[str] = []
        monkeypatch.setattr(compression, "_require_package", lambda name: asked.append(name) or require_package(name))
        monkeypatch.setitem(sys.modules, "zstandard", None)
        async with Consumer(driver.name_servers, group="billing") as consumer:
            await consumer.subscribe("packed")
            handler = RecordingHandler()
            await consumer.start(handler)
            await eventually(lambda: len(asked) > 1)  # it tried, and tries again
            assert not handler.messages
            assert await driver.committed_offset("billing", "packed") in (None, 0)
            monkeypatch.undo()
            await eventually(lambda: len(handler.messages) == 2)
            assert [message.body for message in handler.messages] == [b"hello" * 100, b"plain"]
