"""Programs that end without closing a producer: what is unsent is sent, or counted in one line."""

import subprocess
import sys
import time

import pytest
from tests.support.server_processes import ENVIRONMENT

from sparrow import Admin
from sparrow.testing import run_platform

BLOCKING = """
import sys
from sparrow import Message, Producer

def main():
    producer = Producer(sys.argv[1], **{options})
    for number in range({count}):
        producer.send_soon(Message("orders", b"%d" % number{padding}))
    {then}

main()
"""
ASYNCIO = """
import asyncio, sys
from sparrow import Message, aio

async def main():
    producer = aio.Producer(sys.argv[1], **{options})
    await producer.open()
    for number in range({count}):
        producer.send_soon(Message("orders", b"%d" % number))

asyncio.run(main())
"""


def run(script: str, name_servers: str, **values: object) -> tuple[subprocess.CompletedProcess[str], float]:
    values = {"options": {}, "count": 5000, "then": "", "padding": ""} | values
    text = script
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", text, name_servers], capture_output=True, text=True, timeout=60, env=ENVIRONMENT
    )
    return done, time.monotonic() - begun


def stored(name_servers: str, topic: str = "orders") -> int:
    with Admin(name_servers) as admin:
        return sum(bounds.end - bounds.first for bounds in admin.topic_bounds(topic).values())


@pytest.mark.parametrize(
    "values",
    [
        {"options": {"linger_ms": 5}},
        {"options": {"linger_ms": 5}, "then": "raise SystemExit(3)"},
        {"options": {}, "count": 2000},
        {"options": {}, "count": 20, "padding": " * 100_000"},
    ],
    ids=["batches", "SystemExit", "alone", "compressed in threads"],
)
def test_everything_is_stored_without_close(platform, values):
    # A busy machine may need longer than the 3 s of a send.
    values["options"] = {**values["options"], "timeout_ms": 30_000}
    done, _ = run(BLOCKING, platform.name_servers, **values)
    assert (done.returncode, done.stderr) == (3 if "then" in values else 0, "")
    assert stored(platform.name_servers) == values.get("count", 5000)


def test_messages_that_cannot_be_sent_are_counted_in_one_line(unused_name_server):
    # A busy machine may need longer than the 3 s of a send.
    done, _ = run(BLOCKING, unused_name_server, options={"timeout_ms": 30_000})
    [line] = [line for line in done.stderr.splitlines() if line.startswith("sparrow: ")]
    assert line.startswith(
        f"sparrow: 5000 messages are not stored (no name server can be reached at {unused_name_server}: "
    )
    assert "by `with Producer(...)` or close()" in line
    assert done.returncode == 0


def test_an_exit_with_a_stopped_broker_is_quick(tmp_path):
    """The broker goes away while the program runs: its producer knows the route."""
    script = BLOCKING.replace(
        "    for number", "    producer.send(Message('orders', b'first'))\n    input()\n    for number"
    )
    with run_platform(tmp_path) as platform:
        with subprocess.Popen(
            [sys.executable, "-c", script.format(options={}, count=100, then="", padding=""), platform.name_servers],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        ) as program:
            assert program.stdin is not None
            deadline = time.monotonic() + 30
            while not _has_topic(platform.name_servers):
                assert time.monotonic() < deadline
            platform.stop()
            begun = time.monotonic()
            _, said = program.communicate("\n", timeout=30)
            took_s = time.monotonic() - begun
    assert [line.split(" (")[0] for line in said.splitlines() if line.startswith("sparrow: ")] == [
        "sparrow: 100 messages are not stored"
    ]
    assert took_s < 10


def _has_topic(name_servers: str) -> bool:
    with Admin(name_servers) as admin:
        return "orders" in admin.topics() and stored(name_servers) == 1


def test_a_closed_or_flushed_producer_says_nothing(unused_name_server):
    for then in ("producer.close()", "producer.flush()"):
        done, _ = run(BLOCKING, unused_name_server, count=10, then=then)
        assert not [line for line in done.stderr.splitlines() if line.startswith("sparrow: ")]


@pytest.mark.parametrize("options", [{"linger_ms": 1000}, {}], ids=["batches", "alone"])
def test_an_asyncio_producer_counts_what_its_loop_did_not_send(platform, options):
    done, _ = run(ASYNCIO, platform.name_servers, options=options, count=300)
    [line] = [line for line in done.stderr.splitlines() if line.startswith("sparrow: ")]
    assert line.startswith("sparrow: 300 messages are not stored (the event loop ended before they were sent)")


def test_an_asyncio_producer_that_is_closed_says_nothing(platform):
    script = ASYNCIO.replace("\nasyncio.run", "    await producer.close()\n\nasyncio.run")
    done, _ = run(script, platform.name_servers, options={"linger_ms": 5}, count=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert stored(platform.name_servers) == 300


@pytest.fixture
def unused_name_server(tmp_path):
    """The address of a name server that has just been stopped."""
    with run_platform(tmp_path) as platform:
        return platform.name_servers
