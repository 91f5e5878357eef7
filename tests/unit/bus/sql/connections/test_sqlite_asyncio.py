"""The asyncio connection to SQLite: what SQLAlchemy needs, with one call of the thread for a statement."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, OperationalError
from tests.support.wait import eventually

from sparrow.bus.sql.connections import engines, sqlite, sqlite_asyncio
from sparrow.bus.sql.connections.database import is_conflict
from sparrow.bus.sql.connections.sqlite_asyncio import QuickConnection


@pytest.fixture
async def calls(monkeypatch):
    """What is passed to the threads of connections, by name."""
    names: list[str] = []
    original = QuickConnection._execute

    async def recorded(self, call, *args, **kwargs):
        names.append(getattr(call, "__name__", str(call)))
        return await original(self, call, *args, **kwargs)

    monkeypatch.setattr(QuickConnection, "_execute", recorded)
    return names


@pytest.fixture
async def engine(tmp_path: Path):
    engine = engines.create_asyncio(engines.parse_url(f"sqlite:///{tmp_path}/bus.db")[0], "sqlite")
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE numbers (n INTEGER PRIMARY KEY)"))
    yield engine
    await engine.dispose()


async def test_a_statement_without_rows_is_one_call_of_the_thread(engine, calls):
    async with engine.begin() as connection:
        calls.clear()
        result = await connection.execute(text("INSERT INTO numbers VALUES (1)"))
        assert result.rowcount == 1
        assert calls == ["_open_and_call"]


async def test_rows_errors_and_many_parameters(engine):
    async with engine.begin() as connection:
        await connection.execute(text("INSERT INTO numbers VALUES (:n)"), [{"n": n} for n in range(200)])
    async with engine.connect() as connection:
        rows = await connection.execute(text("SELECT n FROM numbers ORDER BY n"))
        assert rows.scalars().all() == list(range(200))
        streamed = await connection.stream(text("SELECT n FROM numbers ORDER BY n"))
        assert [row.n async for row in streamed] == list(range(200))
        with pytest.raises(IntegrityError):
            await connection.execute(text("INSERT INTO numbers VALUES (7)"))
        assert (await connection.execute(text("SELECT count(*) FROM numbers"))).scalar_one() == 200


async def test_a_cursor_is_closed_however_far_it_came(tmp_path):
    connection = sqlite_asyncio.connect(f"{tmp_path}/bus.db")
    await connection
    async with connection.cursor():
        pass
    async with connection.cursor() as cursor:
        await cursor.execute("SELECT 1 UNION SELECT 2")
        assert await cursor.fetchone() == (1,)
    cursor = await connection.cursor()
    await cursor.execute("CREATE TABLE t (n)")
    await cursor.close()
    assert await connection.run(lambda db: db.execute("INSERT INTO t VALUES (1)").rowcount) == 1
    await connection.close()


async def count_numbers(engine) -> int:
    async with engine.connect() as connection:
        return (await connection.execute(text("SELECT count(*) FROM numbers"))).scalar_one()


async def test_a_transaction_of_one_statement_is_two_calls_of_the_thread(engine, calls):
    async with engine.connect() as connection:
        calls.clear()
        await connection.execute(text("INSERT INTO numbers VALUES (1)"))
        await connection.commit()
        assert calls == ["_open_and_call", "_run_and_commit"]
    assert await count_numbers(engine) == 1


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_transaction_without_a_statement_is_no_call_of_the_thread(engine, calls, end):
    async with engine.connect() as connection:
        await connection.begin()
        calls.clear()
        await getattr(connection, end)()
        assert calls == []


async def test_statements_after_a_begin_that_failed_are_one_transaction(engine, tmp_path):
    async with engine.connect() as connection:
        await connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        await connection.rollback()
        other = sqlite3.connect(f"{tmp_path}/bus.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OperationalError, match="locked"):
            await connection.execute(text("INSERT INTO numbers VALUES (1)"))
        other.execute("COMMIT")
        other.close()
        await connection.execute(text("INSERT INTO numbers VALUES (2)"))
        await connection.rollback()
    assert await count_numbers(engine) == 0


async def test_rollback_after_a_cancelled_first_statement_ends_its_transaction(engine, tmp_path):
    other = sqlite3.connect(f"{tmp_path}/bus.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        await connection.begin()
        statement = asyncio.create_task(connection.execute(text("INSERT INTO numbers VALUES (1)")))
        await eventually(lambda: driver._begin is None)
        statement.cancel()
        other.execute("COMMIT")
        await asyncio.gather(statement, return_exceptions=True)
        if not connection.invalidated:
            await connection.rollback()
    other.execute("BEGIN IMMEDIATE")  # "database is locked" if the cancelled statement's transaction were still open
    other.execute("ROLLBACK")
    other.close()
    assert await count_numbers(engine) == 0


async def test_nothing_is_committed_if_the_work_before_the_commit_fails(engine):
    def fail(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO numbers VALUES (2)")
        raise ArithmeticError("no")

    async with engine.connect() as connection:
        await connection.execute(text("INSERT INTO numbers VALUES (1)"))
        (await connection.get_raw_connection()).driver_connection.run_before_commit(fail)
        with pytest.raises(ArithmeticError):
            await connection.commit()
        await connection.rollback()
        await connection.execute(text("INSERT INTO numbers VALUES (3)"))
        await connection.commit()
    assert await count_numbers(engine) == 1


async def test_commit_that_was_cancelled_runs_its_work_or_commits_nothing(engine):
    """The thread may be busy when a commit is cancelled and a rollback follows."""
    thread_is_free = threading.Event()
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        await driver.execute("BEGIN IMMEDIATE")
        await driver.execute("INSERT INTO numbers VALUES (1)")
        driver.run_before_commit(lambda db: db.execute("INSERT INTO numbers VALUES (2)"))
        busy = asyncio.create_task(driver.run(lambda db: thread_is_free.wait(10)))
        await asyncio.sleep(0)
        commit = asyncio.create_task(driver.commit())
        await asyncio.sleep(0)
        commit.cancel()
        rollback = asyncio.create_task(driver.rollback())
        await asyncio.sleep(0)
        thread_is_free.set()
        await asyncio.gather(busy, commit, rollback, return_exceptions=True)
    assert await count_numbers(engine) in (0, 2)


async def test_work_of_a_transaction_that_is_rolled_back_does_not_run(engine):
    async with engine.connect() as connection:
        await connection.execute(text("INSERT INTO numbers VALUES (1)"))
        driver = (await connection.get_raw_connection()).driver_connection
        driver.run_before_commit(lambda db: db.execute("INSERT INTO numbers VALUES (2)"))
        await connection.rollback()
        await connection.execute(text("INSERT INTO numbers VALUES (3)"))
        await connection.commit()
    assert await count_numbers(engine) == 1


async def test_transaction_takes_its_turn_to_write_with_its_first_statement(engine):
    async with engine.connect() as idle, engine.connect() as writing:
        await idle.begin()
        await writing.execute(text("INSERT INTO numbers VALUES (1)"))
        await writing.commit()
        await idle.execute(text("INSERT INTO numbers VALUES (2)"))
        await idle.commit()
    assert await count_numbers(engine) == 2


async def test_transaction_without_a_statement_counts_as_one(engine):
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        assert not driver.in_transaction
        await connection.begin()
        assert driver.in_transaction
        await connection.rollback()
        assert not driver.in_transaction


async def test_statement_that_waits_too_long_for_its_turn_gets_the_error_of_sqlite(engine, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    async with engine.connect() as waiting:
        async with engine.begin() as writing:
            await writing.execute(text("INSERT INTO numbers VALUES (1)"))
            with pytest.raises(OperationalError, match="database is locked") as caught:
                await waiting.execute(text("INSERT INTO numbers VALUES (2)"))
            assert is_conflict(caught.value)
        await waiting.execute(text("INSERT INTO numbers VALUES (3)"))
        await waiting.rollback()
    assert await count_numbers(engine) == 1
