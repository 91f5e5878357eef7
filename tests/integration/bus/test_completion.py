"""Completing a message in the transaction of its handler, and the sessions of handlers."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from tests.support.bus_tables import EFFECTS_TABLE, create_effects_table, read_effects, read_row, read_rows
from tests.support.tested_databases import databases_under_test
from tests.support.wait import eventually

from sparrow.bus.aio import EventBus
from sparrow.bus.errors import LeaseLost
from sparrow.bus.sql.claims import Claim, claim_due
from sparrow.bus.sql.completion import mark_succeeded
from sparrow.bus.sql.connections.database import is_transient
from sparrow.bus.sql.direct_completion import complete_directly
from sparrow.bus.sql.outbox import PUBLISHED_SIDE

from .conftest import MakeBus

WRITE = text(f"INSERT INTO {EFFECTS_TABLE} (what) VALUES (:what)")


async def claim_published(bus: EventBus) -> Claim:
    def work(db: Connection) -> Claim:
        [claim] = claim_due(db, bus.core.context.sql, PUBLISHED_SIDE, "", 1, owner="here", lease_s=60)
        return claim

    await bus.publish("order.created", 1)
    return await bus.database.run(work)


async def run_in_session(bus: EventBus, work: Any) -> None:
    """Run the work where a handler's message is completed: on an asyncio driver, after a statement of the handler."""
    async with AsyncSession(bus.database.async_engine) as session, session.begin():
        await session.execute(text("SELECT 1"))
        connection = await session.connection()
        await connection.run_sync(work)


@pytest.mark.parametrize("kind", ["asyncio", "blocking"])
async def test_lost_claim_leaves_queue_and_message_as_they_are(bus: EventBus, kind: str) -> None:
    """Also if the transaction is committed: the relay completes one event of a batch after the other."""
    claim = await claim_published(bus)
    lost = claim._replace(token=claim.token - 1)

    def complete(db: Connection) -> None:
        with pytest.raises(LeaseLost):
            mark_succeeded(db, bus.core.context.sql_of(db), PUBLISHED_SIDE, lost, 60.0)

    before = await read_row(bus, "published"), await read_row(bus, "queue")
    if kind == "asyncio":
        await run_in_session(bus, complete)
    else:
        bus.database.run_blocking(complete)
    assert (await read_row(bus, "published"), await read_row(bus, "queue")) == before


async def test_handler_whose_claim_is_lost_commits_nothing(bus: EventBus) -> None:
    """Whether the claim is checked by a statement or by the call that commits."""
    await create_effects_table(bus)
    claim = await claim_published(bus)
    lost = claim._replace(token=claim.token - 1)
    before = await read_row(bus, "published"), await read_row(bus, "queue")

    async def handle() -> None:
        async with AsyncSession(bus.database.async_engine) as session, session.begin():
            await session.execute(WRITE, {"what": "an effect"})
            connection = await session.connection()
            sql = bus.core.context.sql_for(bus.database.kind, bus.database.async_engine.dialect.paramstyle)
            await connection.run_sync(lambda db: mark_succeeded(db, sql, PUBLISHED_SIDE, lost, 60.0, may_defer=True))

    with pytest.raises(LeaseLost):
        await handle()
    assert await read_effects(bus) == []
    assert (await read_row(bus, "published"), await read_row(bus, "queue")) == before


async def test_asyncio_drivers_complete_a_message_without_statements_of_sqlalchemy(bus: EventBus) -> None:
    claim = await claim_published(bus)
    deleted: list[int | None] = []

    def complete(db: Connection) -> None:
        sql = bus.core.context.sql_of(db)
        own_row = (PUBLISHED_SIDE, claim.message_id, claim.token)
        deleted.append(complete_directly(db, sql, sql.names.published, own_row, ("Successed", sql.span(60.0))))

    await run_in_session(bus, complete)
    assert deleted == [1]
    row = await read_row(bus, "published")
    assert (row["StatusName"], row["ExpiresAt"] is None) == ("Successed", False)
    assert await read_rows(bus, "queue") == []


async def test_transaction_is_repeated_if_the_driver_fails_to_complete_a_message(bus: EventBus) -> None:
    claim = await claim_published(bus)

    def complete_in_a_missing_table(db: Connection) -> None:
        sql = bus.core.context.sql_of(db)
        own_row = (PUBLISHED_SIDE, claim.message_id, claim.token)
        complete_directly(db, sql, "missing_table", own_row, ("Successed", sql.span(60.0)))

    with pytest.raises(OperationalError) as caught:
        await run_in_session(bus, complete_in_a_missing_table)
    assert is_transient(caught.value)
    assert len(await read_rows(bus, "queue")) == 1
    assert bus.database.async_engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_handler_without_a_statement_completes_its_message(make_bus: MakeBus) -> None:
    bus = make_bus()

    @bus.subscribe("order.created")
    async def ignore(order: int, session: AsyncSession) -> None: ...

    async with bus:
        await bus.publish("order.created", 1)
        await bus.drain()
        assert (await read_row(bus, "received"))["StatusName"] == "Successed"


async def test_sessions_of_handlers_keep_no_object_and_return_their_connections(make_bus: MakeBus) -> None:
    known: list[int] = []
    bus = make_bus(concurrency=4)

    @bus.subscribe("order.created")
    async def write(order: int, session: AsyncSession) -> None:
        known.append(len(session.sync_session.identity_map))
        await session.execute(WRITE, {"what": f"{order:03}"})

    await create_effects_table(bus)
    async with bus:
        await bus.publish_many([("order.created", n) for n in range(40)])
        await eventually(lambda: len(known) >= 40)
        await bus.drain()
        assert await read_effects(bus) == [f"{n:03}" for n in range(40)]
    assert set(known) == {0}
    assert bus.database.async_engine.pool.checkedout() == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("database", databases_under_test("mariadb", "postgresql"))
async def test_connections_that_were_lost_between_two_messages_cost_no_attempt(
    make_bus: MakeBus, database: str
) -> None:
    sessions: set[AsyncSession] = set()
    bus = make_bus(concurrency=8)

    @bus.subscribe("order.created")
    async def write(order: int, session: AsyncSession) -> None:
        sessions.add(session)
        await session.execute(WRITE, {"what": f"{order:03}"})

    await create_effects_table(bus)
    async with bus:
        await bus.publish_many([("order.created", n) for n in range(100)])
        await bus.drain()
        assert len(sessions) > 1
        await end_all_connections(bus)
        await bus.publish_many([("order.created", n) for n in range(100, 200)])
        await bus.drain()
        assert await read_effects(bus) == [f"{n:03}" for n in range(200)]
        assert {each["Retries"] for each in await read_rows(bus, "received")} == {0}


async def end_all_connections(bus: EventBus) -> None:
    """End every connection of the database but the one that does it, as a restart of the server would."""

    def end(db: Connection) -> None:
        if bus.database.kind == "postgresql":
            db.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return
        rows = db.exec_driver_sql(
            "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        )
        for (number,) in rows.all():
            db.exec_driver_sql(f"KILL {number}")

    bus.database.run_blocking(end)
