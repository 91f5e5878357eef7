"""PostgreSQL, through asyncpg."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

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
from sparrow.store.sql.drivers.url import DatabaseUrl, Dialect
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import NewRow
from sparrow.store.sql.statements.append import postgres_append

_CONFLICTS = frozenset({"40001", "40P01", "55P03"})
_LOST = frozenset({"57P01", "57P02", "57P03", "53300", "25P03"})
_SESSION = {
    "application_name": "sparrow",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "5s",
    "synchronous_commit": "on",
    "timezone": "UTC",
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

    def __init__(self, address: DatabaseUrl, connections_max: int) -> None:
        self.display_url = str(address)
        self._address = address
        raises = (asyncpg.PostgresError, *_LOST_ERRORS)
        driver = DriverFunctions(self._connect, _close, _is_open, raises, self._failure, _fetch, _execute)
        self._pool = ConnectionPool(self.display_url, connections_max, driver)
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
        keys = [(key, at) for at, row in enumerate(rows) for key in row.extra_keys]
        values = [
            [row.body for row in rows],
            [row.source_ip for row in rows],
            [row.token for row in rows],
            [row.ref_key for row in rows],
            [row.properties for row in rows],
            *(len(rows), now_ms, lane.number),
            [batch.stored_lane(lane) for batch in batch_ids],
            [batch.producer for batch in batch_ids],
            [batch.seq for batch in batch_ids],
            [batch.stored_offset(lane) for batch in batch_ids],
            [batch.size for batch in batch_ids],
        ]
        if keys:
            values += [[key for key, _ in keys], [at for _, at in keys]]
        async with self._pool.connection() as connection:
            try:
                found = await connection.fetch(postgres_append(lane, has_keys=bool(keys)), *values)
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

    async def _connect(self) -> Any:
        address = self._address
        return await asyncpg.connect(
            host=address.host,
            port=address.port,
            user=address.user or "postgres",
            password=address.password or None,
            database=address.name,
            timeout=_CONNECT_TIMEOUT_S,
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
