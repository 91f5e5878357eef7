"""PostgreSQL, through asyncpg."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from sparrow.databases.tls import postgres_tls
from sparrow.databases.url import DatabaseHost, DatabaseUrl, Dialect
from sparrow.databases.writable import READ_ONLY_STATE
from sparrow.model.errors import UnknownTopic
from sparrow.store.sql.append.batch_ids import AssignedIds, BatchId
from sparrow.store.sql.drivers.database import ColumnValue
from sparrow.store.sql.drivers.errors import (
    DatabaseRefused,
    DuplicateKey,
    LockConflict,
    MissingPartition,
    StoreDatabaseUnreachable,
)
from sparrow.store.sql.drivers.parameter_styles import to_numeric_style
from sparrow.store.sql.drivers.pool import ConnectionPool, DriverFunctions, PooledSession
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import NewRow
from sparrow.store.sql.statements.append import postgres_append, postgres_append_values

_CONFLICTS = frozenset({"40001", "40P01", "55P03"})
_LOST = frozenset({"57P01", "57P02", "57P03", "53300", "25P03", READ_ONLY_STATE})
_SESSION = {
    "application_name": "sparrow",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "5s",
    "synchronous_commit": "on",
    "timezone": "UTC",
    # One plan fits all values. By default the server plans each read again, because only then it knows the number of
    # rows, and that takes longer than the read.
    "plan_cache_mode": "force_generic_plan",
}
_CONNECT_TIMEOUT_S = 5
_LOST_ERRORS = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    EOFError,
    TimeoutError,
)


async def open_postgres(address: DatabaseUrl, *, connections_max: int) -> PostgresDatabase:
    database = PostgresDatabase(address, connections_max)
    await database.start()
    return database


class PostgresDatabase:
    """A database on a PostgreSQL server. asyncpg's own pool is not used: it creates tasks for each use."""

    dialect: Dialect = "postgresql"
    packet_bytes_max = 64 << 20
    shows_before_durable = False
    may_lose_answers = True

    def __init__(self, address: DatabaseUrl, connections_max: int) -> None:
        self.display_url = str(address)
        self._address, self._tls = address, postgres_tls(address.options)
        raises = (asyncpg.PostgresError, *_LOST_ERRORS)
        driver = DriverFunctions(self._connect, _close, _is_open, raises, self._failure, _fetch, _execute)
        self._pool = ConnectionPool(address, connections_max, driver)
        self.fetch, self.execute = self._pool.fetch, self._pool.execute

    async def start(self) -> None:
        async with self._pool.connection():
            pass

    # -- statements ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PooledSession]:
        async with self._pool.connection() as connection, connection.transaction():
            yield self._pool.session(connection)

    async def append(
        self, lane: Lane, rows: Sequence[NewRow], batch_ids: Sequence[BatchId], now_ms: int
    ) -> AssignedIds:
        values = postgres_append_values(lane, rows, batch_ids, now_ms)
        has_keys = any(row.extra_keys for row in rows)
        async with self._pool.connection() as connection:
            try:
                found = await connection.fetch(postgres_append(lane, has_keys=has_keys), *values)
            except asyncpg.UndefinedTableError as cause:
                raise UnknownTopic(lane.topic) from cause
        if not found:  # the lane has no row: the topic was deleted, perhaps created again
            raise UnknownTopic(lane.topic)
        return AssignedIds(found[0][0], found[0][1], lane.number)

    async def server_identity(self) -> str:
        ((system, started),) = await self.fetch(
            "SELECT (SELECT system_identifier FROM pg_control_system()), pg_postmaster_start_time()::text"
        )
        return f"{system}/{started}"

    async def close(self) -> None:
        self._pool.close()

    # -- connections --------------------------------------------------------------------------------------------------

    async def _connect(self, host: DatabaseHost) -> Any:
        address = self._address
        return await asyncpg.connect(
            host=host.name,
            port=host.port,
            user=address.user or "postgres",
            password=address.password or None,
            database=address.name,
            timeout=_CONNECT_TIMEOUT_S,
            ssl=self._tls,
            server_settings=_SESSION,
        )

    def _failure(self, cause: BaseException) -> Exception:
        state = getattr(cause, "sqlstate", None)
        if state == "23505":
            return DuplicateKey(str(cause))
        if state == "23514" and "no partition" in str(cause):
            return MissingPartition(str(cause))
        if state in _CONFLICTS:
            return LockConflict(str(cause))
        if state in _LOST or isinstance(cause, _LOST_ERRORS):
            return StoreDatabaseUnreachable(self.display_url, str(cause) or type(cause).__name__)
        return DatabaseRefused(self.display_url, str(cause))


def _close(connection: Any) -> None:
    connection.terminate()


def _is_open(connection: Any) -> bool:
    return not connection.is_closed()


async def _fetch(connection: Any, sql: str, values: dict[str, ColumnValue]) -> list[tuple[Any, ...]]:
    text, names = to_numeric_style(sql)
    return await connection.fetch(text, *(values[name] for name in names))  # type: ignore[no-any-return]


async def _execute(connection: Any, sql: str, values: dict[str, ColumnValue]) -> int:
    text, names = to_numeric_style(sql)
    status: str = await connection.execute(text, *(values[name] for name in names))
    count = status.rpartition(" ")[2]  # "UPDATE 3", or "CREATE TABLE"
    return int(count) if count.isdigit() else 0
