"""The test support for applications: a bus on an in-memory broker, a clock, and a capture of published events."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sparrow.bus import EventBus, Headers
from sparrow.bus.testing import TestBus, capture
from sparrow.bus.transports.memory import MemoryTransport
from sparrow.model.errors import Refused


async def test_standalone_test_bus_needs_no_setup_and_leaves_no_files() -> None:
    handled: list[dict] = []
    async with TestBus(app="shop") as bus:
        folder = Path(bus.database.engine.url.database).parent
        assert folder.is_dir()
        bus.subscriptions.add("order.created", lambda order: handled.append(order))
        await bus.publish("order.created", {"number": 7})
        await bus.drain()
    assert handled == [{"number": 7}]
    assert not folder.exists()


def test_test_bus_works_without_an_event_loop() -> None:
    handled: list[dict] = []
    with TestBus() as bus:
        bus.subscriptions.add("order.created", lambda order: handled.append(order))
        bus.publish("order.created", {"number": 7})
        bus.drain()
        assert handled == [{"number": 7}]
    assert not bus.is_running


async def test_application_bus_runs_on_an_in_memory_broker_and_is_restored_afterwards(tmp_path: Path) -> None:
    bus = EventBus(f"sqlite:///{tmp_path}/shop.db", "sparrow://127.0.0.1:1", app="shop")
    transport, database = bus.core.context.transport, bus.database
    handled: list[dict] = []

    @bus.subscribe("order.created")
    async def on_order(order: dict) -> None:
        handled.append(order)

    for number in (1, 2):
        async with TestBus(bus) as same:
            assert same is bus.aio
            await bus.aio.publish("order.created", {"number": number})
            await bus.aio.drain()
            bus.advance(100)
    assert handled == [{"number": 1}, {"number": 2}]
    assert (bus.core.context.transport, bus.database, bus.core.clock.shift_s) == (transport, database, 0)


async def test_another_database_can_replace_an_unreachable_one() -> None:
    bus = EventBus("postgresql://nobody@127.0.0.1:1/shop", "sparrow://127.0.0.1:1", schema="shop")
    sql = bus.core.context.sql
    handled: list[str] = []

    @bus.subscribe("order.created")
    def on_order(order: dict, headers: Headers, session: Session) -> None:
        handled.append(session.get_bind().dialect.name)

    async with TestBus(bus, database="sqlite://"):
        await bus.aio.publish("order.created", {})
        await bus.aio.drain()
    assert handled == ["sqlite"]
    assert bus.core.context.sql is sql


async def test_failed_start_leaves_the_bus_unchanged(tmp_path: Path) -> None:
    bus = EventBus(f"sqlite:///{tmp_path}/none/shop.db", "sparrow://127.0.0.1:1")
    transport = bus.core.context.transport
    with pytest.raises(Exception, match="does not exist"):
        async with TestBus(bus):
            pass
    assert bus.core.context.transport is transport
    assert not bus.is_running


async def test_running_bus_is_refused_and_an_existing_one_takes_no_options(event_bus: EventBus) -> None:
    with pytest.raises(Refused, match="app"):
        TestBus(event_bus, app="other")
    async with event_bus.aio:
        with pytest.raises(Refused, match="running"):
            await TestBus(event_bus).__aenter__()


# -- fixture -----------------------------------------------------------------------------------------------------------


async def test_fixture_is_a_bus_with_tables_that_is_started_by_the_test(event_bus: EventBus) -> None:
    assert not event_bus.is_running
    handled: list[int] = []

    @event_bus.subscribe("counted")
    async def counted(number: int, session: AsyncSession) -> None:
        handled.append(number)

    await event_bus.aio.publish("counted", 1)  # before the start
    async with event_bus.aio:
        await event_bus.aio.publish("counted", 2)
        await event_bus.aio.drain()
    assert sorted(handled) == [1, 2]


def test_fixture_works_in_tests_without_a_loop(event_bus: EventBus) -> None:
    handled: list[int] = []
    event_bus.subscriptions.add("counted", lambda number: handled.append(number))
    with event_bus:
        event_bus.publish("counted", 3)
        event_bus.drain()
    assert handled == [3]


def test_run_without_a_bus_does_not_import_sqlalchemy() -> None:
    script = "import sys, sparrow.testing.plugin\nsys.exit('loaded' if 'sqlalchemy' in sys.modules else 0)\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_pytest_does_not_collect_the_test_bus_class(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "from sparrow.bus.testing import TestBus, capture\n"
        "def test_theirs(event_bus):\n"
        "    with capture(event_bus) as published:\n"
        "        event_bus.publish('a', 1)\n"
        "    assert published.names == ['a']\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-W",
            "error::pytest.PytestCollectionWarning",
            "-p",
            "no:cacheprovider",
            str(tmp_path),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


# -- clock -------------------------------------------------------------------------------------------------------------


async def test_advancing_the_clock_makes_delayed_events_due(event_bus: EventBus) -> None:
    handled: list[str] = []
    event_bus.subscriptions.add("reminder", lambda text: handled.append(text))
    async with event_bus.aio:
        await event_bus.aio.publish("reminder", "tomorrow", delay=86_400)
        await event_bus.aio.drain()
        assert handled == []
        event_bus.advance(86_399)
        await event_bus.aio.drain()
        assert handled == []
        event_bus.advance(2)
        await event_bus.aio.drain()
        assert handled == ["tomorrow"]


# -- capture -----------------------------------------------------------------------------------------------------------


async def test_captured_events_are_complete_and_neither_sent_nor_handled(event_bus: EventBus) -> None:
    handled: list[object] = []
    event_bus.subscriptions.add("#", lambda value: handled.append(value))
    broker = event_bus.core.context.transport.broker  # type: ignore[attr-defined]
    async with event_bus.aio:
        with capture(event_bus) as published:
            assert list(published) == []
            number = await event_bus.aio.publish("order.created", {"number": 7}, key="k", headers={"region": "north"})
            await event_bus.aio.publish_many([("order.paid", 1), ("order.paid", 2)])
            await event_bus.aio.publish("later", None, delay=60)
        await event_bus.aio.publish("sent", "after the block")
        await event_bus.aio.drain()  # a jump of two minutes would expire the lease of a message in flight
        event_bus.advance(120)
        await event_bus.aio.drain()
    assert published.names == ["order.created", "order.paid", "order.paid", "later"]
    created = published.one("order.created")
    assert (created.id, created.value) == (number, {"number": 7})
    assert created.headers["region"] == "north"
    assert created.headers.key == "k"
    assert [event.value for event in published[1:]] == [1, 2, None]
    assert handled == ["after the block"]
    assert [envelope.name for envelope in broker.sent] == ["sent"]


def test_rolled_back_events_are_not_captured(event_bus: EventBus) -> None:
    with capture(event_bus) as published, Session(event_bus.database.engine) as session:
        event_bus.publish("order.created", 1, session=session)
        assert len(published) == 0  # not committed yet, and the read does not wait for the commit
        session.rollback()
        event_bus.publish("order.created", 2, session=session)
        session.commit()
    assert [event.value for event in published] == [2]


async def test_events_captured_before_a_start_are_not_sent_by_it(event_bus: EventBus) -> None:
    with capture(event_bus) as published:
        await event_bus.aio.publish("order.created", 1)
    async with event_bus.aio:
        await event_bus.aio.drain()
        assert event_bus.core.context.transport.broker.sent == []  # type: ignore[attr-defined]
    assert published.names == ["order.created"]


def test_assertion_on_a_missing_event_lists_the_existing_ones(event_bus: EventBus) -> None:
    with capture(event_bus) as published:
        event_bus.publish("order.created", 1)
        event_bus.publish("order.created", 2)
    with pytest.raises(AssertionError, match=r"0 events 'order.paid' were published; in all: order.created, order"):
        published.one("order.paid")
    with pytest.raises(AssertionError, match=r"2 events 'order.created'"):
        published.one("order.created")


async def test_nested_captures_see_their_own_events(event_bus: EventBus) -> None:
    with capture(event_bus) as outer:
        await event_bus.aio.publish("a")
        with capture(event_bus) as inner:
            await event_bus.aio.publish("b")
        await event_bus.aio.publish("c")
    assert inner.names == ["b"]
    assert outer.names == ["a", "b", "c"]


async def test_capture_works_on_every_database(database_url: str) -> None:
    async with TestBus(database=database_url) as bus:
        with capture(bus) as published:
            await bus.publish("order.created", {"name": "Zoë"})
            await bus.publish_many([("order.paid", number) for number in range(3)])
        await bus.drain()
        assert [event.value for event in published] == [{"name": "Zoë"}, 0, 1, 2]


async def test_capture_works_with_an_asyncio_engine(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    bus = EventBus(engine, MemoryTransport())
    await bus.aio.prepare()
    with capture(bus) as published:
        async with AsyncSession(engine) as session:
            await bus.aio.publish("order.created", 1, session=session)
            await session.commit()
    assert published.names == ["order.created"]
    await engine.dispose()


def test_engine_of_the_application_can_be_used(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    with TestBus(database=engine) as bus, Session(engine) as session:
        session.execute(text("CREATE TABLE orders (number INTEGER)"))
        session.commit()
        with capture(bus) as published:
            session.execute(text("INSERT INTO orders VALUES (7)"))
            bus.publish("order.created", 7, session=session)
            session.commit()
        assert published.names == ["order.created"]
    engine.dispose()
