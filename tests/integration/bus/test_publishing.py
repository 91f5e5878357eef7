"""Publishing inside any transaction of the application: all or nothing, and the bus never commits it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pymysql
import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from tests.support.bus_tables import count_rows, create_effects_table, read_effects, read_row, read_rows, run_statement
from tests.support.wait import wait_until

from sparrow.bus import Event, Headers, NotInTransaction, NotSerializable, OutgoingEvent
from sparrow.bus.aio import EventBus
from sparrow.bus.codec.content_column import decode_content
from sparrow.bus.transports.memory import MemoryBroker
from sparrow.model.errors import IllegalMessage, IllegalName, Refused

from .conftest import MakeBus

pytestmark = pytest.mark.one_database

HANDLES = ("session", "scoped_session", "connection", "async_session", "async_connection", "dbapi")


class Caller(NamedTuple):
    """An application in its transaction."""

    publish: Callable[..., Awaitable[Any]]
    publish_many: Callable[..., Awaitable[Any]]
    execute: Callable[[str], Awaitable[Any]]
    commit: Callable[[], Awaitable[Any]]
    rollback: Callable[[], Awaitable[Any]]


async def each_handle(bus: EventBus) -> AsyncIterator[str]:
    """Yield each kind of handle, and empty the tables each time, which is much faster than creating new ones."""
    await create_effects_table(bus)
    for handle in HANDLES:
        yield handle
        for table in ("{published}", "{queue}", "effects"):
            await run_statement(bus, f"DELETE FROM {table}")


@asynccontextmanager
async def caller(bus: EventBus, handle: str, *, autocommit: bool = False) -> AsyncIterator[Caller]:
    """A caller with its own engine."""
    options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    if handle.startswith("async"):
        async_engine = create_async_engine(bus.database.async_engine.url, **options)
        async with AsyncSession(async_engine) if handle == "async_session" else async_engine.connect() as it:

            async def publish(*args: Any, **more: Any) -> Any:
                return await bus.publish(*args, session=it, **more)

            async def publish_many(*args: Any) -> Any:
                return await bus.publish_many(*args, session=it)

            async def execute(statement: str) -> Any:
                return await it.execute(text(statement))

            yield Caller(publish, publish_many, execute, it.commit, it.rollback)
        await async_engine.dispose()
        return
    engine = create_engine(bus.database.engine.url, **options)
    held: Any = driver_connection(bus, autocommit=autocommit) if handle == "dbapi" else None
    if handle == "connection":
        held = engine.connect()
    elif held is None:
        held = scoped_session(sessionmaker(engine)) if handle == "scoped_session" else Session(engine)
    named = {"connection" if handle == "dbapi" else "session": held}

    async def publish_in(*args: Any, **more: Any) -> Any:
        return bus.blocking.publish(*args, **named, **more)

    async def publish_many_in(*args: Any) -> Any:
        return bus.blocking.publish_many(*args, **named)

    async def execute_in(statement: str) -> Any:
        return held.cursor().execute(statement) if handle == "dbapi" else held.execute(text(statement))

    async def commit() -> None:
        held.commit()

    async def rollback() -> None:
        held.rollback()

    try:
        yield Caller(publish_in, publish_many_in, execute_in, commit, rollback)
    finally:
        held.close()
        engine.dispose()


def driver_connection(bus: EventBus, *, autocommit: bool = False) -> Any:
    """A connection of the database's driver, without SQLAlchemy."""
    url = bus.database.engine.url
    if bus.database.kind == "sqlite":
        return sqlite3.connect(url.database or "", isolation_level=None if autocommit else "")
    if bus.database.kind == "mysql":
        address = {"host": url.host, "port": url.port, "database": url.database}
        return pymysql.connect(**address, user=url.username, password=url.password or "", autocommit=autocommit)
    return psycopg.connect(host=url.host, port=url.port, user=url.username, dbname=url.database, autocommit=autocommit)


# -- the caller's transaction ----------------------------------------------------------------------------------------


async def test_committed_events_are_in_the_outbox(bus: EventBus) -> None:
    async for handle in each_handle(bus):
        async with caller(bus, handle) as application:
            await application.execute("INSERT INTO effects VALUES ('order')")
            number = await application.publish("t", {"a": 1}, key="7")
            assert type(number) is int
            await application.commit()
        published = await read_row(bus, "published")
        assert (published["Id"], published["Name"], published["StatusName"]) == (number, "t", "Scheduled")
        headers, body = decode_content(published["Content"])
        assert (body, headers["cap-msg-name"], published["OrderKey"]) == (b'{"a":1}', "t", "7")
        [queued] = await read_rows(bus, "queue")
        assert (queued["MessageType"], queued["MessageId"], queued["OrderKey"]) == (0, number, "7")
        assert await read_effects(bus) == ["order"]


async def test_rollback_removes_the_events(bus: EventBus) -> None:
    async for handle in each_handle(bus):
        async with caller(bus, handle) as application:
            await application.execute("INSERT INTO effects VALUES ('order')")
            await application.publish("t", {"a": 1})
            await application.publish_many([("t", n) for n in range(3)])
            await application.rollback()
        assert (await count_rows(bus), await read_effects(bus)) == ((0, 0, 0), [])


async def test_transaction_closed_without_commit_leaves_no_events(bus: EventBus) -> None:
    async for handle in each_handle(bus):
        async with caller(bus, handle) as application:
            await application.publish("t", {"a": 1})
        assert await count_rows(bus) == (0, 0, 0)


async def test_publish_many_writes_all_events_at_once_in_order(bus: EventBus) -> None:
    async for handle in each_handle(bus):
        events = [OutgoingEvent("t", n, key=f"k{n % 3}", delay=None if n % 2 else 5.0) for n in range(250)]
        async with caller(bus, handle) as application:
            numbers = await application.publish_many(events)
            await application.commit()
        assert len(set(numbers)) == 250
        published = {each["Id"]: each for each in await read_rows(bus, "published")}
        assert [decode_content(published[number]["Content"])[1] for number in numbers] == [
            b"%d" % n for n in range(250)
        ]
        assert {published[number]["StatusName"] for number in numbers[::2]} == {"Delayed"}
        queued = await read_rows(bus, "queue")
        assert [each["MessageId"] for each in queued] == numbers, "Seq must follow the order of the arguments"
        assert [each["OrderKey"] for each in queued] == [f"k{n % 3}" for n in range(250)]


async def test_autocommit_handle_is_refused(bus: EventBus) -> None:
    async for handle in each_handle(bus):
        async with caller(bus, handle, autocommit=True) as application:
            with pytest.raises(NotInTransaction, match="autocommit"):
                await application.publish("t", {"a": 1})
            with pytest.raises(NotInTransaction, match="nothing was published"):
                await application.publish_many([("t", {"a": 1})])
        assert await count_rows(bus) == (0, 0, 0)


async def test_autocommit_handle_may_be_allowed(make_bus: MakeBus) -> None:
    bus = make_bus(allow_autocommit=True)
    await bus.prepare()
    async for handle in each_handle(bus):
        async with caller(bus, handle, autocommit=True) as application:
            await application.publish("t", {"a": 1})
        assert await count_rows(bus) == (1, 0, 1)


async def test_explicit_begin_on_an_autocommit_driver_is_a_transaction(bus: EventBus) -> None:
    async with caller(bus, "dbapi", autocommit=True) as application:
        await application.execute("BEGIN")
        await application.publish("t", 1)
        await application.execute("ROLLBACK")
        assert await count_rows(bus) == (0, 0, 0)
        await application.execute("BEGIN")
        await application.publish("t", 2)
        await application.execute("COMMIT")
    assert await count_rows(bus) == (1, 0, 1)


async def test_events_of_a_rolled_back_savepoint_are_removed_and_not_sent(
    make_bus: MakeBus, broker: MemoryBroker
) -> None:
    async with make_bus() as bus:
        with Session(bus.database.engine) as session, session.begin():
            kept = bus.blocking.publish("t", "kept", session=session)
            nested = session.begin_nested()
            bus.blocking.publish("t", "gone", session=session)
            nested.rollback()
        async with AsyncSession(bus.database.async_engine) as session_async:
            async with session_async.begin_nested():
                await bus.publish("t", "released, then rolled back", session=session_async)
            await session_async.rollback()
        await bus.drain()
        assert [each["Id"] for each in await read_rows(bus, "published")] == [kept]
    assert [envelope.body for envelope in broker.sent] == [b'"kept"']


async def test_commit_wakes_the_relay(bus: EventBus) -> None:
    async for handle in each_handle(bus):
        ear = bus.core.context.wake_relay.listener()
        async with caller(bus, handle) as application:
            await application.publish("t", 1)
            assert not await ear.wait(0), "nothing is committed yet"
            await application.commit()
        # A driver connection does not report its commit: the relay finds the event at its next poll.
        assert await ear.wait(0.01 if handle == "dbapi" else 5.0) == (handle != "dbapi")
        ear.close()


async def test_callers_may_use_the_engines_of_the_bus(bus: EventBus) -> None:
    with bus.database.engine.connect() as connection:
        bus.blocking.publish("t", 1, session=connection)
        connection.commit()
        bus.blocking.publish("t", "rolled back", session=connection)
    async with bus.database.async_engine.connect() as connection_async:
        await bus.publish("t", 2, session=connection_async)
        await connection_async.commit()
    assert await count_rows(bus) == (2, 0, 2)


async def test_publish_without_a_transaction_uses_a_short_one_of_the_bus(bus: EventBus, make_bus: MakeBus) -> None:
    await bus.publish("t", 1)
    await asyncio.to_thread(bus.blocking.publish, "t", 2)
    await bus.publish_many([("t", 3)])
    await asyncio.to_thread(bus.blocking.publish_many, [("t", 4)])
    assert await count_rows(bus) == (4, 0, 4)
    strict = make_bus(allow_own_transaction=False)
    with pytest.raises(NotInTransaction):
        await strict.publish("t", 5)
    with pytest.raises(NotInTransaction):
        await asyncio.to_thread(strict.blocking.publish, "t", 5)
    assert await count_rows(bus) == (4, 0, 4)


async def test_publish_that_would_block_the_event_loop_is_refused(bus: EventBus) -> None:
    with pytest.raises(Refused, match=r"bus\.aio\.publish"):
        bus.blocking.publish("t", 1)
    with pytest.raises(Refused, match=r"bus\.aio\.publish"):
        bus.blocking.publish_many([("t", 1)])
    assert await count_rows(bus) == (0, 0, 0)
    with Session(bus.database.engine) as session, session.begin():  # explicit, and therefore allowed
        bus.blocking.publish("t", 1, session=session)
    assert await count_rows(bus) == (1, 0, 1)


async def test_wrong_kind_of_handle_is_refused(bus: EventBus) -> None:
    async with AsyncSession(bus.database.async_engine) as session:
        with pytest.raises(Refused, match=r"bus\.aio\.publish"):
            bus.blocking.publish("t", 1, session=session)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="not supported"):
        bus.blocking.publish("t", 1, connection=object())
    with Session(bus.database.engine) as blocking, pytest.raises(Refused, match="one transaction"):
        bus.blocking.publish("t", 1, session=blocking, connection=blocking.connection())
    assert await count_rows(bus) == (0, 0, 0)


async def test_bound_session_is_used_until_the_block_ends(bus: EventBus) -> None:
    with Session(bus.database.engine) as session:
        with bus.bind(session):
            bus.blocking.publish("t", "rolled back")
        with pytest.raises(Refused):  # not bound any more: publish would have to open a transaction
            bus.blocking.publish("t", "never")
        session.rollback()
    async with AsyncSession(bus.database.async_engine) as outer, AsyncSession(bus.database.async_engine) as inner:
        with bus.bind(outer):
            await bus.publish("t", "outer, rolled back")
            await outer.rollback()
            with bus.bind(inner):
                await bus.publish("t", "inner")
                await inner.commit()
            await bus.publish("t", "outer")
            await outer.commit()
    bodies = {decode_content(each["Content"])[1] for each in await read_rows(bus, "published")}
    assert bodies == {b'"inner"', b'"outer"'}


async def test_bound_session_is_visible_only_in_its_own_task(bus: EventBus) -> None:
    is_bound, is_done = asyncio.Event(), asyncio.Event()

    async def binds() -> None:
        async with AsyncSession(bus.database.async_engine) as session:
            with bus.bind(session):
                is_bound.set()
                await is_done.wait()
            await session.rollback()

    binding = asyncio.create_task(binds())
    await is_bound.wait()
    await bus.publish("t", 1)  # in a new transaction
    is_done.set()
    await binding
    assert await count_rows(bus) == (1, 0, 1)


async def test_session_with_several_binds_uses_the_one_with_the_bus_tables(bus: EventBus, tmp_path: Path) -> None:
    business = create_engine(f"sqlite:///{tmp_path}/business.db")
    orders = Table("orders", MetaData(), Column("id", Integer, primary_key=True))
    orders.create(business)
    ours = dict.fromkeys(bus.metadata().tables.values(), bus.database.engine)
    with Session(binds={orders: business, **ours}) as session:
        session.execute(insert(orders).values(id=1))
        bus.blocking.publish("order.created", 1, session=session)
        bus.blocking.publish_many([("order.created", 2)], session=session)
        session.commit()
    business.dispose()
    assert await count_rows(bus) == (2, 0, 2)


async def test_duplicate_id_is_replaced_and_the_transaction_stays_usable(bus: EventBus) -> None:
    fresh, taken = bus.core.context.ids.next, list[int]()
    bus.core.context.ids.next = lambda: taken.pop() if taken else fresh()  # type: ignore[method-assign]
    async for handle in each_handle(bus):
        first = await bus.publish("t", "first")
        taken += [first, first]
        async with caller(bus, handle) as application:
            await application.execute("INSERT INTO effects VALUES ('order')")
            second = await application.publish("t", "second")
            await application.commit()
        assert second != first
        assert (await count_rows(bus), await read_effects(bus)) == ((2, 0, 2), ["order"])
        headers, _ = decode_content((await read_row(bus, "published", second))["Content"])
        assert headers["cap-msg-id"] == str(second)


# -- refusals before the first write ---------------------------------------------------------------------------------

ROUND: list[Any] = []
ROUND.append(ROUND)
NAIVE = datetime(2030, 1, 1)
BAD: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception]]] = {
    "an object": (("t", object()), {}, NotSerializable),
    "a circle": (("t", ROUND), {}, NotSerializable),
    "not a number": (("t", {"x": float("nan")}), {}, NotSerializable),
    "half a character": (("t", "\ud800"), {}, NotSerializable),
    "no name": (("", 1), {}, IllegalName),
    "a blank name": (("a b", 1), {}, IllegalName),
    "an empty word": (("a..b", 1), {}, IllegalName),
    "a wildcard": (("a.*", 1), {}, IllegalName),
    "a long name": (("a" * 201, 1), {}, IllegalName),
    "NUL in the name": (("a\0b", 1), {}, IllegalName),
    "a header that is a number": (("t", 1), {"headers": {"x": 1}}, IllegalMessage),
    "a header without a name": (("t", 1), {"headers": {"": "x"}}, IllegalMessage),
    "a header named by a number": (("t", 1), {"headers": {1: "x"}}, IllegalMessage),
    "half a character in a header": (("t", 1), {"headers": {"x": "\ud800"}}, IllegalMessage),
    "an empty key": (("t", 1), {"key": ""}, IllegalMessage),
    "a long key": (("t", 1), {"key": "k" * 201}, IllegalMessage),
    "NUL in the key": (("t", 1), {"key": "a\0b"}, IllegalMessage),
    "half a character in the key": (("t", 1), {"key": "\ud800"}, IllegalMessage),
    "a time without a zone": (("t", 1), {"at": NAIVE}, IllegalMessage),
    "a delay and a time": (("t", 1), {"at": NAIVE.replace(tzinfo=UTC), "delay": 1}, IllegalMessage),
    "a delay into the past": (("t", 1), {"delay": -1}, IllegalMessage),
    "a delay of no number": (("t", 1), {"delay": float("nan")}, IllegalMessage),
    "a delay for ever": (("t", 1), {"delay": float("inf")}, IllegalMessage),
    "a delay beyond all years": (("t", 1), {"delay": 1e12}, IllegalMessage),
}


async def test_bad_input_is_refused_before_anything_is_written(bus: EventBus) -> None:
    await create_effects_table(bus)
    with Session(bus.database.engine) as session:
        session.execute(text("INSERT INTO effects VALUES ('order')"))
        for what, (args, more, error) in BAD.items():
            with pytest.raises(Refused) as refused:
                bus.blocking.publish(*args, session=session, **more)
            assert isinstance(refused.value, error), what
            with pytest.raises(error):
                bus.blocking.publish_many([("t", "good"), OutgoingEvent(*args, **more)], session=session)
        session.execute(text("INSERT INTO effects VALUES ('another')"))  # the transaction is still usable
        session.commit()
    assert (await count_rows(bus), await read_effects(bus)) == ((0, 0, 0), ["another", "order"])


# -- headers and times -----------------------------------------------------------------------------------------------


async def test_headers_are_delivered_with_the_event(make_bus: MakeBus, broker: MemoryBroker) -> None:
    seen: list[Headers] = []
    bus = make_bus()

    @bus.subscribe("t")
    def handle(value: dict, headers: Headers) -> None:
        seen.append(headers)

    async with bus:
        number = await bus.publish(
            "t", {"a": 1}, headers={"x": "1", "empty": None}, key="k", tenant="eu", dedupe="order-7"
        )
        await bus.drain()
    [headers] = seen
    assert (headers.id, headers.name, headers.key, headers.tenant) == (str(number), "t", "k", "eu")
    assert (headers["x"], headers["empty"], headers["sp-dedupe"]) == ("1", None, "order-7")
    assert (headers.correlation_id, headers.correlation_sequence, headers["cap-msg-type"]) == (str(number), 0, "dict")
    assert "cap-callback-name" in broker.sent[0].headers
    assert headers.sent_at is not None
    assert abs(headers.sent_at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_delayed_event_is_sent_at_its_time(make_bus: MakeBus, broker: MemoryBroker) -> None:
    async with make_bus() as bus:
        for more in (
            {"delay": 90},
            {"delay": timedelta(seconds=90)},
            {"at": datetime.now(UTC) + timedelta(seconds=90)},
        ):
            await bus.publish("t", **more)
        await bus.drain()
        published = {each["Id"]: each for each in await read_rows(bus, "published")}
        assert {each["StatusName"] for each in published.values()} == {"Delayed"}
        for queued in await read_rows(bus, "queue"):
            wait = queued["NextAt"] - published[queued["MessageId"]]["Added"]
            assert abs(wait - timedelta(seconds=90)) < timedelta(seconds=2)
        bus.advance(80)
        await bus.drain()
        assert broker.sent == []
        bus.advance(11)
        await bus.drain()
        assert [envelope.headers["cap-delaytime"] for envelope in broker.sent[:2]] == ["00:01:30"] * 2
        assert len(broker.sent) == 3
        assert {each["StatusName"] for each in await read_rows(bus, "published")} == {"Successed"}


async def test_event_with_a_time_in_the_past_is_sent_at_once(make_bus: MakeBus, broker: MemoryBroker) -> None:
    async with make_bus() as bus:
        await bus.publish("t", at=datetime(2020, 1, 1, tzinfo=UTC))
        await bus.drain()
    assert len(broker.sent) == 1


# -- publish and subscribe -------------------------------------------------------------------------------------------


async def test_publisher_and_subscriber_share_only_the_name_of_the_topic(make_bus: MakeBus) -> None:
    heard: list[Any] = []
    shop, billing = (make_bus(app=app, schema=app, table_prefix=app) for app in ("orders", "billing"))

    @billing.subscribe("order.created")
    async def bill(order: dict) -> None:
        heard.append(order)

    async with shop, billing:
        await shop.publish("order.created", {"n": 1})
        await shop.drain()
        await billing.drain()
        assert (await count_rows(shop), await count_rows(billing)) == ((1, 0, 0), (0, 1, 0))
    assert heard == [{"n": 1}]


def test_publish_and_subscribe_have_a_blocking_form(database_url: str) -> None:
    heard: list[Any] = []
    bus = EventBus(database_url, "memory://", app="shop", poll_max_s=0.05)

    @bus.subscribe("order.created", group="blocking")
    def blocking(order: dict, session: Session) -> None:
        heard.append(("blocking", order["n"]))

    @bus.subscribe("order.created", group="asyncio")
    async def with_asyncio(order: dict, session: AsyncSession) -> None:
        heard.append(("asyncio", order["n"]))

    with bus.blocking:
        bus.blocking.publish("order.created", {"n": 1})
        with Session(bus.database.engine) as session, session.begin():
            bus.blocking.publish("order.created", {"n": 2}, session=session)
        wait_until(lambda: len(heard) == 4)
    assert sorted(heard) == [("asyncio", 1), ("asyncio", 2), ("blocking", 1), ("blocking", 2)]
    assert not bus.is_running


async def test_publish_and_subscribe_have_an_asyncio_form(make_bus: MakeBus) -> None:
    heard: list[Any] = []
    bus = make_bus()

    @bus.subscribe("order.created")
    async def handle(order: dict, connection: AsyncConnection) -> None:
        heard.append(order)

    async with bus:
        await bus.publish("order.created", {"n": 1})
        await bus.publish_many([("order.created", {"n": 2})])
        await bus.drain()
    assert sorted(order["n"] for order in heard) == [1, 2]


async def test_bus_uses_the_engine_of_the_application(make_bus: MakeBus, bus: EventBus) -> None:
    heard: list[Any] = []

    def blocking(value: int, session: Session) -> None:
        heard.append(value)

    async def with_asyncio(value: int, session: AsyncSession) -> None:
        heard.append(value)

    engine, async_engine = create_engine(bus.database.engine.url), create_async_engine(bus.database.async_engine.url)
    given: list[tuple[Any, Callable[..., Any]]] = [(engine, blocking), (async_engine, with_asyncio)]
    for number, (database, handler) in enumerate(given):
        own = make_bus(database=database, app=f"app{number}")
        own.subscriptions.add(f"t{number}", handler)
        async with own:
            await own.publish(f"t{number}", number)
            await own.drain()
            assert await read_rows(own, "queue") == []
    assert heard == [0, 1]
    engine.dispose()
    await async_engine.dispose()


async def test_one_process_publishes_and_handles_its_own_topic(make_bus: MakeBus) -> None:
    events: list[Event] = []
    bus = make_bus()

    @bus.subscribe("order.created")
    async def handle(event: Event) -> None:
        events.append(event)

    async with bus:
        number = await bus.publish("order.created", {"n": 1}, key="7")
        await bus.drain()
    [event] = events
    assert (event.id, event.name, event.value, event.key, event.retries) == (
        str(number), "order.created", {"n": 1}, "7", 0,
    )  # fmt: skip


async def test_committed_event_is_delivered_by_the_next_process(make_bus: MakeBus) -> None:
    heard: list[int] = []
    bus = make_bus(runs_relay=False, runs_handlers=False)
    async with bus:
        await bus.publish("order.created", 1)
    other = make_bus()
    other.subscriptions.add("order.created", heard.append)
    async with other:
        await other.drain()
    assert heard == [1]


@pytest.mark.parametrize("key", [4711, UUID(int=7), "4711"])
async def test_key_may_be_a_number_and_is_stored_as_text(make_bus: MakeBus, key: object) -> None:
    bus = make_bus(runs_relay=False)
    async with bus:
        await bus.publish("order.created", {"n": 1}, key=key)
        [row] = await bus.operations.find("published")
    assert row.key == str(key)
    assert row.headers["sp-key"] == str(key)
