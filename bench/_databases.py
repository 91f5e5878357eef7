"""Databases for benches, and the bare drivers against which the SQL store is measured.

The servers are those of the tests, with more memory. Their files are in /var/tmp, which is on a disk and open to every
user: under root PostgreSQL runs as user postgres, who cannot enter a checkout in a home directory of mode 700. A bare
driver inserts and selects the same rows in the fastest form that it offers (bulk execution, arrays, bound values,
prepared queries), on one connection, and does nothing else.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import asyncmy
import asyncpg

from _harness import ROOT
from sparrow.databases.url import DatabaseUrl, parse_database_url
from sparrow.store.sql.row_codec import MESSAGE_COLUMNS, RECORD_COLUMNS, NewRow

sys.path.append(str(ROOT))
from tests.support.databases import mariadb_server, postgres_server

KINDS = ("MariaDB", "PostgreSQL", "SQLite")


SHARED_FOLDER = Path("/var/tmp")


@contextmanager
def database(kind: str) -> Iterator[str]:
    """Start a server with an empty database; yield the database's URL."""
    with tempfile.TemporaryDirectory(prefix="sparrow-bench-", dir=SHARED_FOLDER, ignore_cleanup_errors=True) as path:
        folder = Path(path)
        folder.chmod(0o755)
        if kind == "SQLite":
            yield f"sqlite:///{folder / 'bench.db'}"
        elif kind == "MariaDB":
            with mariadb_server(folder, innodb_buffer_pool_size="512M", innodb_log_file_size="256M") as server:
                yield server.new_database()
        else:
            with postgres_server(folder, shared_buffers="512MB", max_wal_size="2GB") as server:
                yield server.new_database()


class BareDriver(Protocol):
    """A connection of a bare driver."""

    async def insert(self, table: str, first_id: int, store_ms: int, entries: Sequence[NewRow]) -> None:
        """Insert rows with ids from `first_id`, in one statement and one transaction."""
        ...

    async def select(self, table: str, after: int, count: int) -> Sequence[Any]:
        """Return the rows after an id."""
        ...

    async def run(self, sql: str) -> None: ...


@asynccontextmanager
async def open_bare_driver(url: str) -> AsyncIterator[BareDriver]:
    address = parse_database_url(url)
    if address.dialect == "sqlite":
        with ThreadPoolExecutor(1) as thread:
            yield BareSqlite(address, thread)
    elif address.dialect == "mysql":
        connection = await asyncmy.connect(
            host=address.hosts[0].name,
            port=address.hosts[0].port,
            user=address.user,
            db=address.name,
            autocommit=True,
            stmt_cache_size=10,
        )
        await connection.query("SET SESSION sql_mode = 'STRICT_ALL_TABLES,ANSI_QUOTES'")
        yield BareMySql(connection)
        connection.close()
    else:
        connection = await asyncpg.connect(
            host=address.hosts[0].name, port=address.hosts[0].port, user=address.user, database=address.name
        )
        yield BarePostgres(connection)
        await connection.close()


class BareMySql:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def insert(self, table: str, first_id: int, store_ms: int, entries: Sequence[NewRow]) -> None:
        async with self._connection.cursor() as cursor:
            await cursor.executemany(
                f'INSERT INTO "{table}" ({MESSAGE_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s)',
                [
                    (first_id + at, e.body, e.source_ip, e.token, e.ref_key, store_ms, e.properties)
                    for at, e in enumerate(entries)
                ],
            )

    async def insert_text(self, table: str, first_id: int, store_ms: int, entries: Sequence[NewRow]) -> None:
        """Insert rows by a text that holds their values, as most applications do."""
        rows = ",".join(
            [
                f"({first_id + at},X'{entry.body.hex()}',{entry.source_ip},{entry.token},"
                f"X'{entry.ref_key.hex()}',{store_ms},X'{entry.properties.hex()}')"
                for at, entry in enumerate(entries)
            ]
        )
        await self.run(f'INSERT INTO "{table}" ({MESSAGE_COLUMNS}) VALUES {rows}')

    async def select(self, table: str, after: int, count: int) -> Sequence[Any]:
        async with self._connection.cursor() as cursor:
            sql = f'SELECT {RECORD_COLUMNS} FROM "{table}" WHERE id > %s ORDER BY id LIMIT %s'
            await cursor.execute(sql, (after, count))
            return await cursor.fetchall()

    async def run(self, sql: str) -> None:
        async with self._connection.cursor() as cursor:
            await cursor.execute(sql)


class BarePostgres:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def insert(self, table: str, first_id: int, store_ms: int, entries: Sequence[NewRow]) -> None:
        await self._connection.execute(
            f'INSERT INTO "{table}" SELECT $1::bigint + u.o - 1, u.body, u.ip, u.token, u.k, $2::bigint, u.props'
            " FROM unnest($3::bytea[], $4::bigint[], $5::int[], $6::bytea[], $7::bytea[])"
            " WITH ORDINALITY AS u(body, ip, token, k, props, o)",
            first_id,
            store_ms,
            [entry.body for entry in entries],
            [entry.source_ip for entry in entries],
            [entry.token for entry in entries],
            [entry.ref_key for entry in entries],
            [entry.properties for entry in entries],
        )

    async def select(self, table: str, after: int, count: int) -> Sequence[Any]:
        return await self._connection.fetch(
            f'SELECT {RECORD_COLUMNS} FROM "{table}" WHERE id > $1 ORDER BY id LIMIT $2', after, count
        )

    async def run(self, sql: str) -> None:
        await self._connection.execute(sql)


class BareSqlite:
    """SQLite in a thread, because its driver blocks."""

    def __init__(self, address: DatabaseUrl, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._connection = sqlite3.connect(address.name, isolation_level=None, check_same_thread=False)
        self._connection.executescript(
            "PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = on"
        )

    async def insert(self, table: str, first_id: int, store_ms: int, entries: Sequence[NewRow]) -> None:
        def work() -> None:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(
                f'INSERT INTO "{table}" VALUES (?, ?, ?, ?, ?, ?, ?)',
                [
                    (first_id + at, e.body, e.source_ip, e.token, e.ref_key, store_ms, e.properties)
                    for at, e in enumerate(entries)
                ],
            )
            self._connection.execute("COMMIT")

        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def select(self, table: str, after: int, count: int) -> Sequence[Any]:
        sql = f'SELECT {RECORD_COLUMNS} FROM "{table}" WHERE id > ? ORDER BY id LIMIT ?'
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: self._connection.execute(sql, (after, count)).fetchall()
        )

    async def run(self, sql: str) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.execute, sql)
