"""`bus.health()` and `bus.problems()`: broker, database, failing handlers and parked messages; and what is logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url
from tests.support.bus_tables import read_row
from tests.support.wait import eventually, wait_until

from sparrow.bus import EventBus as BlockingEventBus
from sparrow.bus import Reject, Retry, fixed
from sparrow.bus.aio import EventBus
from sparrow.bus.telemetry import finding_log
from sparrow.bus.transports.memory import MemoryBroker, MemoryTransport
from sparrow.model.errors import IllegalMessage
from sparrow.testing import run_platform

from .conftest import MakeBus

pytestmark = pytest.mark.one_database

FINDING_LOG = finding_log.__name__


def causes(bus: EventBus) -> list[str]:
    return [finding.cause for finding in bus.health().findings]


@contextmanager
def logged(caplog: pytest.LogCaptureFixture, logger: str, level: int = logging.WARNING) -> Iterator[list[str]]:
    """Collect the sentences of one logger."""
    found: list[str] = []
    with caplog.at_level(level, logger):
        yield found
    found += [each.getMessage() for each in caplog.records if each.name == logger and each.levelno >= level]


async def test_relay_of_a_publisher_without_subscribers_reports_a_broker_that_is_down(
    make_bus: MakeBus, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.down = True
    bus = make_bus()
    with logged(caplog, FINDING_LOG, logging.INFO) as said:
        async with bus:
            await eventually(lambda: bus.problems())
            assert bus.problems() == {"bus relay broker": "no connection to memory: the broker is down"}
            health = bus.health()
            assert not health.ok
            [finding] = health.findings
            assert finding.cause == "broker"
            assert finding.text == (
                "the broker MemoryTransport cannot be used (bus relay broker): no connection to memory: the broker is"
                " down; published events wait in the table until it can: check that it runs, and the URL of the bus"
            )
            broker.down = False
            await eventually(lambda: bus.health().ok)
            assert (bus.problems(), bus.health().findings) == ({}, ())
            await eventually(lambda: "over" in caplog.text)
    assert [line.partition(" (bus relay")[0] for line in said[:1]] == [
        "broker: the broker MemoryTransport cannot be used"
    ]
    assert len(said) == 2, "once when it begins, once when it is over"
    assert said[1].startswith("broker: over, it began at 20")


async def test_send_that_cannot_reach_the_broker_is_a_problem_until_one_does(
    make_bus: MakeBus, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    bus = make_bus(retry=Retry(backoff=fixed(0.05)))
    async with bus:
        await eventually(bus.core.worker.relay.has_broker.is_set)
        broker.down = True
        with logged(caplog, "sparrow.bus.worker.relay", logging.INFO) as said:
            number = await bus.publish("order.created", 1)
            await eventually(lambda: causes(bus) == ["broker"])
            await eventually(lambda: "attempt 2" in caplog.text)
        broker.down = False
        await eventually(lambda: bus.health().ok)
        await bus.drain()
        assert (await read_row(bus, "published", number))["StatusName"] == "Successed"
    assert said[0].startswith(
        f"event order.created, message {number}: attempt 1 to send it to MemoryTransport failed:"
        " ConnectionLost-->no connection to memory: the broker is down; the next attempt is due at "
    )
    levels = {each.levelno for each in caplog.records if each.name == "sparrow.bus.worker.relay"}
    assert levels == {logging.INFO}, "the finding is the warning"


async def test_refused_send_is_logged_with_its_traceback_and_is_no_problem_of_the_bus(
    make_bus: MakeBus, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.refusal = lambda _: IllegalMessage("no such topic")
    bus = make_bus(retry=Retry(max=1))
    async with bus:
        number = await bus.publish("order.created", 1)
        await eventually(lambda: "order.created" in caplog.text)
        assert bus.problems() == {}
    [record] = [each for each in caplog.records if each.name == "sparrow.bus.worker.relay"]
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"event order.created, message {number}: attempt 1 to send it to MemoryTransport failed:"
        " IllegalMessage-->the message is refused: no such topic; it is Failed: a retry round or an operator starts it"
        " again"
    )
    assert record.exc_info is not None


class Proxy:
    """A proxy in front of a database server, which can go away and return on the same port."""

    def __init__(self, url: str) -> None:
        self._target, self._port = make_url(url), 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return self._target.set(host="127.0.0.1", port=self._port).render_as_string(hide_password=False)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._target.host, self._target.port)
        self._writers |= {writer, back}
        await asyncio.gather(_pipe(reader, back), _pipe(there, writer))


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.close()


@pytest.mark.parametrize("database", ["postgresql"])
async def test_database_that_goes_away_is_a_problem_until_it_returns(
    make_bus: MakeBus, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = Proxy(database_url)
    await proxy.start()
    bus = make_bus(database=proxy.url)
    async with bus:
        await eventually(lambda: bus.health().ok)
        proxy.cut()
        await eventually(lambda: "database" in causes(bus) and "bus relay" in bus.problems())
        finding = bus.health().findings[0]
        assert str(bus.database) in finding.text
        assert finding.text.endswith("; check that it runs, and the URL of the bus")
        assert not bus.health().ok
        await proxy.start()
        await eventually(lambda: bus.health().ok, within_s=30)
        await bus.publish("order.created", 1)
        await bus.drain()
    proxy.cut()
    warned = [each for each in caplog.records if each.name == FINDING_LOG and each.levelno == logging.WARNING]
    assert warned
    assert len(warned) <= 4, "once per kind of error, not at each attempt"


async def test_handler_that_keeps_failing_is_a_finding_until_it_succeeds(make_bus: MakeBus) -> None:
    is_broken = True
    bus = make_bus(retry=Retry(backoff=fixed(0)))

    @bus.subscribe("order.created", group="billing")
    async def charge(order: int) -> None:
        if is_broken:
            raise ValueError("no such account")

    async with bus:
        await bus.publish("order.created", 1)
        await eventually(lambda: bus.health().findings)
        health = bus.health()
        assert health.ok, "a restart would not help"
        assert bus.problems() == {}
        [finding] = health.findings
        assert finding.cause == "handler"
        assert f"handler {charge.__module__}." in finding.text
        assert "of group billing.v1 failed" in finding.text
        assert "times in a row, the last time with event order.created: ValueError-->no such account" in finding.text
        is_broken = False
        await eventually(lambda: not bus.health().findings)


async def test_parked_messages_are_a_finding_until_an_operator_acts(make_bus: MakeBus) -> None:
    is_known = False
    bus = make_bus()

    @bus.subscribe("order.created")
    async def charge(order: int) -> None:
        if not is_known:
            raise Reject("no such account")

    async with bus:
        await bus.publish("order.created", 1)
        await bus.drain()
        bus.advance(60)
        await eventually(lambda: bus.health().findings)
        health = bus.health()
        assert health.ok
        assert [finding.text for finding in health.findings] == [
            "parked messages in received: 1; no retry round tries them again: see `sparrow bus failures`, correct the"
            " cause, then run `sparrow bus reexecute` or `sparrow bus delete received`"
        ]
        is_known = True
        await bus.operations.reexecute((await read_row(bus, "received"))["Id"])
        await bus.drain()
        bus.advance(60)
        await eventually(lambda: not bus.health().findings)


@pytest.mark.parametrize("is_started", [False, True])
async def test_bus_on_sparrow_reports_a_platform_that_is_not_there(tmp_path: Path, is_started: bool) -> None:
    with run_platform(tmp_path / "data") as platform:
        bus = EventBus(f"sqlite:///{tmp_path}/shop.db", f"sparrow://{platform.name_servers}", app="shop")
        if not is_started:
            platform.stop()
        async with bus:
            if is_started:
                await eventually(bus.core.worker.relay.has_broker.is_set)
                await asyncio.to_thread(platform.stop)
                await bus.publish("order.created", 1)
            await eventually(lambda: causes(bus) == ["broker"], within_s=30)
            [finding] = bus.health().findings
            assert f"the broker sparrow://{platform.name_servers} cannot be used" in finding.text
            assert not bus.health().ok


def test_blocking_bus_answers_the_same(tmp_path: Path) -> None:
    broker = MemoryBroker()
    broker.down = True
    bus = BlockingEventBus(f"sqlite:///{tmp_path}/shop.db", MemoryTransport(broker), app="shop")
    [finding] = bus.health().findings
    assert (bus.health().ok, finding.cause) == (False, "not started")
    assert "start()" in finding.text
    with bus:
        wait_until(lambda: [each.cause for each in bus.health().findings] == ["broker"])
        assert bus.aio.health() == bus.health()
        broker.down = False
        wait_until(lambda: bus.health().ok)
    assert bus.health().findings[0].cause == "not started"
