"""The asyncio connection to SQLite: what SQLAlchemy needs, with one call of the thread for a statement."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from sparrow.bus.sql.connections import engines, sqlite_asyncio
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
