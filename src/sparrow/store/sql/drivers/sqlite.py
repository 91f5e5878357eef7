"""SQLite, in two threads: one writes, one reads what is committed."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sparrow.databases.url import DatabaseUrl, Dialect
from sparrow.model.errors import UnknownTopic
from sparrow.store.sql.append.batch_ids import AssignedIds, BatchId
from sparrow.store.sql.drivers.database import ColumnValue
from sparrow.store.sql.drivers.errors import DatabaseRefused, DuplicateKey, LockConflict, StoreDatabaseUnreachable
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import NewRow
from sparrow.store.sql.schema.table_names import table_name
from sparrow.store.sql.statements import append as statements

_Result = TypeVar("_Result")
_BUSY_S = 5
_SESSION = "PRAGMA synchronous = FULL; PRAGMA foreign_keys = on; PRAGMA busy_timeout = 5000;"


async def open_sqlite(address: DatabaseUrl, *, connections_max: int) -> SqliteDatabase:
    database = SqliteDatabase(address)
    await database.start()
    return database


class SqliteDatabase:
    """A SQLite file. One thread writes, so a transaction blocks all other writes of the process."""

    dialect: Dialect = "sqlite"
    packet_bytes_max = 900 << 20
    shows_before_durable = False
    may_lose_answers = False

    def __init__(self, address: DatabaseUrl) -> None:
        self.display_url = address.name
        self._writing, self._reading = (ThreadPoolExecutor(1, f"sqlite-{work}") for work in ("write", "read"))
        self._write_lock = asyncio.Lock()

    async def start(self) -> None:
        self._writer = await self._run(self._writing, self._connect)
        self._reader = await self._run(self._reading, self._connect)

    def _connect(self) -> sqlite3.Connection:
        Path(self.display_url).parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.display_url, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA busy_timeout = 5000")
        _enable_wal(connection)
        connection.executescript(_SESSION)
        return connection

    # -- statements ---------------------------------------------------------------------------------------------------

    async def fetch(self, sql: str, **values: ColumnValue) -> list[tuple[Any, ...]]:
        return await self._run(self._reading, lambda: self._reader.execute(sql, values).fetchall())

    async def execute(self, sql: str, **values: ColumnValue) -> int:
        async with self._write_lock:
            return await self._run(self._writing, lambda: self._writer.execute(sql, values).rowcount)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[_Session]:
        async with self._write_lock:
            try:  # includes BEGIN: a cancellation during it must not leave the transaction open
                await self._run(self._writing, self._writer.execute, "BEGIN IMMEDIATE")
                yield _Session(self)
                await self._run(self._writing, self._writer.execute, "COMMIT")
            except BaseException:
                await asyncio.shield(self._run(self._writing, self._writer.rollback))
                raise

    async def append(
        self, lane: Lane, rows: Sequence[NewRow], batch_ids: Sequence[BatchId], now_ms: int
    ) -> AssignedIds:
        async with self._write_lock:
            return await self._run(self._writing, self._append, lane, rows, batch_ids, now_ms)

    def _append(self, lane: Lane, rows: Sequence[NewRow], batch_ids: Sequence[BatchId], now_ms: int) -> AssignedIds:
        connection = self._writer
        connection.execute("BEGIN IMMEDIATE")
        try:
            found = connection.execute(
                statements.SQLITE_TAKE_IDS, (len(rows), now_ms, lane.number, len(rows))
            ).fetchall()
            if not found:  # the topic was deleted, perhaps created again
                raise UnknownTopic(lane.topic)
            base_id, store_ms = found[0]
            if batch_ids:
                connection.executemany(
                    statements.SQLITE_INSERT_BATCH_ID,
                    [
                        (b.stored_lane(lane), b.producer, b.seq, base_id + b.stored_offset(lane), b.size, store_ms)
                        for b in batch_ids
                    ],
                )
            connection.executemany(
                statements.sqlite_insert_message(lane.table),
                [
                    (base_id + n, row.body, row.source_ip, row.token, row.ref_key, store_ms, row.properties)
                    for n, row in enumerate(rows)
                ],
            )
            keys = [(key, lane.priority.label, base_id + n) for n, row in enumerate(rows) for key in row.extra_keys]
            if keys:
                key_table = table_name("key", lane.topic, lane.part)
                connection.executemany(statements.sqlite_insert_key(key_table), keys)
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise
        return AssignedIds(base_id, store_ms, lane.number)

    async def server_identity(self) -> str:
        return self.display_url

    async def close(self) -> None:
        for work, connection in ((self._writing, self._writer), (self._reading, self._reader)):
            await self._run(work, connection.close)
            work.shutdown(wait=False)

    async def _run(self, thread: ThreadPoolExecutor, work: Callable[..., _Result], *args: object) -> _Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, partial(work, *args))
        except sqlite3.Error as cause:
            raise self._failure(cause) from cause
        except RuntimeError as cause:  # the executor was shut down by close()
            raise StoreDatabaseUnreachable(self.display_url, str(cause)) from cause

    def _failure(self, cause: sqlite3.Error) -> Exception:
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if isinstance(cause, sqlite3.IntegrityError) and "UNIQUE" in str(cause):
            return DuplicateKey(str(cause))
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return LockConflict(str(cause))
        if isinstance(cause, sqlite3.ProgrammingError) and "closed" in str(cause):
            return StoreDatabaseUnreachable(self.display_url, str(cause))
        return DatabaseRefused(self.display_url, str(cause))


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging. For a new file that needs exclusive access, for which SQLite does not wait."""
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as cause:
            if cause.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class _Session:
    """Executes the statements of one transaction."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def fetch(self, sql: str, **values: ColumnValue) -> list[tuple[Any, ...]]:
        database = self._database
        return await database._run(database._writing, lambda: database._writer.execute(sql, values).fetchall())

    async def execute(self, sql: str, **values: ColumnValue) -> int:
        database = self._database
        return await database._run(database._writing, lambda: database._writer.execute(sql, values).rowcount)
