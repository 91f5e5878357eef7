"""MariaDB and MySQL, through asyncmy."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

import asyncmy
from asyncmy import errors
from asyncmy.constants import CLIENT

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
from sparrow.store.sql.drivers.parameter_styles import to_pyformat_style
from sparrow.store.sql.drivers.pool import ConnectionPool, DriverFunctions, PooledSession
from sparrow.store.sql.drivers.url import DatabaseUrl, Dialect
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import NewRow
from sparrow.store.sql.statements.append import mysql_append

_DUPLICATE, _NO_PARTITION = 1062, 1526
_CONFLICTS = frozenset({1205, 1213})
_GONE = frozenset({1048, 1146})
"""The lane has no row, or its table does not exist: the topic was deleted, perhaps created again."""
_LOST = frozenset({1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1927, 2002, 2003, 2006, 2013, 2014, 2055})
_FLAGS = CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS
_SESSION = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,ANSI_QUOTES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00',"
    " innodb_lock_wait_timeout = 5, lock_wait_timeout = 5, sql_notes = OFF"
    # A process that hangs in a transaction must not keep a lane locked. Only MariaDB has such a limit.
    " /*M!100300 , idle_write_transaction_timeout = 5 */",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
_NAMED = re.compile(r"%\((\w+)\)s")
_PACKET_OVERHEAD_BYTES = 64 << 10
"""For what a packet holds beside the messages."""
_CONNECT_TIMEOUT_S, _LOGIN_TIMEOUT_S = 5, 15
"""Timeouts of the TCP connection, and of login and session settings."""
_COMPOUND_ROWS = 50
"""For fewer rows MariaDB gets one compound statement: it sends a response for each statement of a plain text, which
costs more than the statements do. For more rows a plain text is faster."""
_PREPARED_MAX = 100
"""Queries that a connection keeps prepared: their rows come in binary form, not as text."""

# The driver logs the server's notes, such as that a table exists already. They say nothing of use.
logging.getLogger("asyncmy").setLevel(logging.ERROR)


async def open_mysql(address: DatabaseUrl, *, connections_max: int) -> MySqlDatabase:
    database = MySqlDatabase(address, connections_max)
    await database.start()
    return database


class MySqlDatabase:
    """A database on a MariaDB or MySQL server."""

    dialect: Dialect = "mysql"

    def __init__(self, address: DatabaseUrl, connections_max: int) -> None:
        self.display_url = str(address)
        self._address = address
        raises = (errors.MySQLError, OSError, EOFError, TimeoutError)
        driver = DriverFunctions(self._connect, _close, _is_open, raises, self._failure, _fetch, _execute)
        self._pool = ConnectionPool(self.display_url, connections_max, driver)
        self.fetch, self.execute = self._pool.fetch, self._pool.execute
        self._started_at = 0
        self.packet_bytes_max = 0
        self.shows_before_durable = True

    async def start(self) -> None:
        ((packet, log_bin, sync_binlog, version),) = await self.fetch(
            "SELECT @@max_allowed_packet, @@log_bin, @@sync_binlog, VERSION()"
        )
        self.packet_bytes_max = packet // 2 - _PACKET_OVERHEAD_BYTES  # hex takes two bytes for one
        # InnoDB shows a commit before its redo log is on disk, unless the binary log orders them.
        self.shows_before_durable = not (log_bin and sync_binlog == 1)
        self._is_mariadb = "mariadb" in str(version).lower()

    # -- statements ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PooledSession]:
        async with self._pool.connection() as connection:
            await connection.begin()
            try:
                yield self._pool.session(connection)
                await connection.commit()
            except BaseException:
                await _roll_back(connection)
                raise

    async def append(
        self, lane: Lane, rows: Sequence[NewRow], batch_ids: Sequence[BatchId], now_ms: int
    ) -> AssignedIds:
        text = mysql_append(lane, rows, batch_ids, now_ms)
        if self._is_mariadb and len(rows) < _COMPOUND_ROWS:
            text = b"BEGIN NOT ATOMIC %b; END" % text
        async with self._pool.connection() as connection:
            try:
                async with connection.cursor() as cursor:
                    await cursor.execute(text)
                    found = await cursor.fetchall()
                    while await cursor.nextset():
                        found = found or await cursor.fetchall()
            except BaseException as cause:
                await _roll_back(connection)
                if isinstance(cause, errors.MySQLError) and cause.args and cause.args[0] in _GONE:
                    raise UnknownTopic(lane.topic) from cause
                raise
        base_id, store_ms = found[0]
        return AssignedIds(int(base_id), int(store_ms), lane.number)

    async def server_identity(self) -> str:
        ((_, uptime),) = await self.fetch("SHOW GLOBAL STATUS LIKE 'Uptime'")
        ((now, server_id),) = await self.fetch("SELECT UNIX_TIMESTAMP(), @@server_id")
        started_at = int(now) - int(uptime)
        if abs(started_at - self._started_at) > 2:  # both are whole seconds, read one after the other
            self._started_at = started_at
        return f"{server_id}/{self._started_at}"

    async def close(self) -> None:
        self._pool.close()

    # -- connections --------------------------------------------------------------------------------------------------

    async def _connect(self) -> Any:
        async with asyncio.timeout(_LOGIN_TIMEOUT_S):
            connection = await self._connect_driver()
            try:
                for statement in _SESSION:
                    await connection.query(statement)
            except BaseException:
                connection.close()
                raise
        return connection

    async def _connect_driver(self) -> Any:
        task, address = asyncio.current_task(), self._address
        cancels = task.cancelling() if task else 0
        connection = await asyncmy.connect(
            host=address.host,
            port=address.port,
            user=address.user or "root",
            password=address.password,
            db=address.name,
            charset="utf8mb4",
            client_flag=_FLAGS,
            autocommit=True,
            connect_timeout=_CONNECT_TIMEOUT_S,
            stmt_cache_size=_PREPARED_MAX,
        )
        # The driver uses `wait_for`, which before Python 3.12 loses a cancellation that arrives with the answer.
        if task and task.cancelling() > cancels:
            connection.close()
            raise asyncio.CancelledError
        return connection

    def _failure(self, cause: BaseException) -> Exception:
        code = cause.args[0] if cause.args and isinstance(cause.args[0], int) else 0
        if code == _DUPLICATE:
            return DuplicateKey(str(cause))
        if code in _CONFLICTS:
            return LockConflict(str(cause))
        if code == _NO_PARTITION:
            return MissingPartition(str(cause))
        if code in _LOST or isinstance(cause, (errors.InterfaceError, OSError, EOFError, TimeoutError)):
            return StoreDatabaseUnreachable(self.display_url, str(cause) or type(cause).__name__)
        return DatabaseRefused(self.display_url, str(cause))


def _close(connection: Any) -> None:
    connection.close()


def _is_open(connection: Any) -> bool:
    return bool(connection.connected)


async def _fetch(connection: Any, sql: str, values: dict[str, ColumnValue]) -> list[tuple[Any, ...]]:
    async with connection.cursor() as cursor:
        if values:
            text, names = _positional(sql)
            await cursor.execute(text, [values[name] for name in names])
        else:
            await cursor.execute(sql)
        return list(await cursor.fetchall())


async def _execute(connection: Any, sql: str, values: dict[str, ColumnValue]) -> int:
    async with connection.cursor() as cursor:
        changed = await cursor.execute(to_pyformat_style(sql), values) if values else await cursor.execute(sql)
        return int(changed or 0)


@lru_cache(4096)
def _positional(sql: str) -> tuple[str, list[str]]:
    """Replace each `:name` by `%s`; return the text and the names. The driver prepares queries of this form."""
    names = _NAMED.findall(to_pyformat_style(sql))
    return _NAMED.sub("%s", to_pyformat_style(sql)), names


async def _roll_back(connection: Any) -> None:
    """Roll back: a text of several statements that failed leaves its transaction open."""
    try:
        await connection.rollback()
    except (errors.MySQLError, OSError, EOFError):
        connection.close()
