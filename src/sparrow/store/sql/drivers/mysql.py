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

from sparrow.databases.mysql_accounts import require_cryptography
from sparrow.databases.tls import mysql_tls
from sparrow.databases.url import DatabaseHost, DatabaseUrl, Dialect
from sparrow.databases.writable import READ_ONLY_CODES, is_galera
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
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import NewRow
from sparrow.store.sql.statements import append as statements

_DUPLICATE, _NO_PARTITION = 1062, 1526
_CONFLICTS = frozenset({1205, 1213, 3058})
"""A lock wait that timed out, a deadlock, a deadlock with GET_LOCK."""
_GONE = frozenset({1048, 1146})
"""The lane has no row, or its table does not exist: the topic was deleted, perhaps created again."""
_LOST = frozenset(
    {1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1180, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 4031}
)
"""The connection failed, or with 1180 the commit did: nobody knows whether a node of Galera had replicated it."""
_LOST_ERRORS = (errors.InterfaceError, OSError, EOFError, TimeoutError)
_FLAGS = CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS
_SESSION = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,ANSI_QUOTES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00',"
    " innodb_lock_wait_timeout = 5, lock_wait_timeout = 5, sql_notes = OFF"
    " /*M!100300 , idle_write_transaction_timeout = 5 */",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
# A process that hangs in a transaction must not keep a lane locked. MariaDB has a limit for that, set above. MySQL has
# one for idle connections, which is lowered during a transaction.
_BEGIN, _COMMIT, _ROLLBACK = "BEGIN", "COMMIT", "ROLLBACK"
_LIMIT_IDLE, _UNLIMIT_IDLE = "SET SESSION wait_timeout = 5;", ";SET SESSION wait_timeout = DEFAULT"
_NAMED = re.compile(r"%\((\w+)\)s")
_PACKET_OVERHEAD_BYTES = 64 << 10
"""For what a packet holds beside the messages."""
_CONNECT_TIMEOUT_S, _LOGIN_TIMEOUT_S = 5, 15
"""Timeouts of the TCP connection, and of login and session settings."""
_NO_SOCKET = "does not expose socket"
"""What the driver says of a connection that the server has reset meanwhile: uvloop shows no socket of it."""
_BULK_ROWS, _BULK_BYTES = 32, 8 << 10
"""MariaDB gets an append of so many rows, or of so many bytes of bodies, in binary form, not as text."""
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
    may_lose_answers = True

    def __init__(self, address: DatabaseUrl, connections_max: int) -> None:
        self.display_url = str(address)
        self._address, self._tls = address, mysql_tls(address.options) or None
        raises = (errors.MySQLError, OSError, EOFError, TimeoutError)
        driver = DriverFunctions(self._connect, _close, _is_open, raises, self._failure, _fetch, _execute)
        self._pool = ConnectionPool(address, connections_max, driver)
        self.fetch, self.execute = self._pool.fetch, self._pool.execute
        self._started_at: dict[str, int] = {}
        self.packet_bytes_max = 0
        self.shows_before_durable = True
        self._begin, self._end = _BEGIN, ""

    async def start(self) -> None:
        ((packet, log_bin, sync_binlog, version),) = await self.fetch(
            "SELECT @@max_allowed_packet, @@log_bin, @@sync_binlog, VERSION()"
        )
        self.packet_bytes_max = packet // 2 - _PACKET_OVERHEAD_BYTES  # hex takes two bytes for one
        # InnoDB shows a commit before its redo log is on disk, unless the binary log orders them.
        self.shows_before_durable = not (log_bin and sync_binlog == 1)
        is_mariadb = "mariadb" in str(version).lower()
        if not is_mariadb:
            self._begin, self._end = _LIMIT_IDLE + _BEGIN, _UNLIMIT_IDLE
        # A node of Galera may roll a transaction back on behalf of another node. Between the statements of one text
        # nothing reports that: its COMMIT would succeed and commit nothing. So each statement is sent by itself.
        self._is_galera = is_galera(await self.fetch("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'"))
        self._is_single_mariadb = is_mariadb and not self._is_galera

    # -- statements ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PooledSession]:
        async with self._pool.connection() as connection:
            await _run(connection, self._begin)
            try:
                yield self._pool.session(connection)
                await _run(connection, _COMMIT + self._end)
            except BaseException:
                await self._roll_back(connection)
                raise

    async def append(
        self, lane: Lane, rows: Sequence[NewRow], batch_ids: Sequence[BatchId], now_ms: int
    ) -> AssignedIds:
        is_large = len(rows) >= _BULK_ROWS or sum([len(row.body) for row in rows]) >= _BULK_BYTES
        append = self._append_in_bulk if self._is_single_mariadb and is_large else self._append_text
        async with self._pool.connection() as connection:
            try:
                return await append(connection, lane, rows, batch_ids, now_ms)
            except BaseException as cause:
                await self._roll_back(connection)
                if isinstance(cause, errors.MySQLError) and cause.args and cause.args[0] in _GONE:
                    raise UnknownTopic(lane.topic) from cause
                raise

    async def _append_text(
        self, connection: Any, lane: Lane, rows: Sequence[NewRow], batch_ids: Sequence[BatchId], now_ms: int
    ) -> AssignedIds:
        """Append in one round trip, with the values in the text of the statements."""
        text = statements.mysql_append(lane, rows, batch_ids, now_ms, has_compounds=self._is_single_mariadb)
        found: Sequence[Any] = ()
        for part in text.split(b";") if self._is_galera else (text,):  # values are numbers or hexadecimal
            found = await _run(connection, part) or found
        base_id, store_ms = found[0]
        return AssignedIds(int(base_id), int(store_ms), lane.number)

    async def _append_in_bulk(
        self, connection: Any, lane: Lane, rows: Sequence[NewRow], batch_ids: Sequence[BatchId], now_ms: int
    ) -> AssignedIds:
        """Append in three round trips, with the rows in binary form: the server takes longer to parse them as text."""
        found = await _run(connection, statements.mysql_take_ids(lane, len(rows), now_ms))
        if not found:  # the topic was deleted, perhaps created again
            raise UnknownTopic(lane.topic)
        base_id, store_ms = found[0]
        has_keys = any(row.ref_key is not None for row in rows)
        values = [
            (n, row.body, row.source_ip, row.token, row.ref_key, store_ms, row.properties)
            if has_keys
            else (n, row.body, row.source_ip, row.token, store_ms, row.properties)
            for n, row in enumerate(rows, base_id)
        ]
        async with connection.cursor() as cursor:
            await cursor.executemany(statements.mariadb_insert_rows(lane.table, has_keys=has_keys), values)
        await _run(connection, statements.mysql_end_append(lane, rows, batch_ids, base_id, store_ms))
        return AssignedIds(base_id, store_ms, lane.number)

    async def server_identity(self) -> str:
        async with self._pool.connection() as connection:  # both queries at one of several hosts
            ((_, uptime),) = await _fetch(connection, "SHOW GLOBAL STATUS LIKE 'Uptime'", {})
            ((now, *host),) = await _fetch(connection, "SELECT UNIX_TIMESTAMP(), @@hostname, @@port, @@server_id", {})
        started_at, server = int(now) - int(uptime), "/".join(map(str, host))
        if abs(started_at - self._started_at.get(server, 0)) > 2:  # both are whole seconds, read one after the other
            self._started_at[server] = started_at
        return f"{server}/{self._started_at[server]}"

    async def close(self) -> None:
        self._pool.close()

    # -- connections --------------------------------------------------------------------------------------------------

    async def _connect(self, host: DatabaseHost) -> Any:
        async with asyncio.timeout(_LOGIN_TIMEOUT_S):
            connection = await self._connect_driver(host)
            try:
                for statement in _SESSION:
                    await connection.query(statement)
            except BaseException:
                connection.close()
                raise
        return connection

    async def _connect_driver(self, host: DatabaseHost) -> Any:
        task, address = asyncio.current_task(), self._address
        cancels = task.cancelling() if task else 0
        try:
            connection = await asyncmy.connect(
                host=host.name,
                port=host.port,
                user=address.user or "root",
                password=address.password,
                db=address.name,
                charset="utf8mb4",
                client_flag=_FLAGS,
                autocommit=True,
                connect_timeout=_CONNECT_TIMEOUT_S,
                stmt_cache_size=_PREPARED_MAX,
                ssl=self._tls,
            )
        except RuntimeError as cause:
            if _NO_SOCKET in str(cause):
                raise ConnectionResetError("the connection ended while it was opened") from cause
            require_cryptography()
            raise
        # The driver uses `wait_for`, which before Python 3.12 loses a cancellation that arrives with the answer.
        if task and task.cancelling() > cancels:
            connection.close()
            raise asyncio.CancelledError
        return connection

    async def _roll_back(self, connection: Any) -> None:
        """Roll back: a text of several statements that failed leaves its transaction open."""
        try:
            await _run(connection, _ROLLBACK + self._end)
        except (errors.MySQLError, OSError, EOFError):
            connection.close()

    def _failure(self, cause: BaseException) -> Exception:
        code = cause.args[0] if cause.args and isinstance(cause.args[0], int) else 0
        if code == _DUPLICATE:
            return DuplicateKey(str(cause))
        if code in _CONFLICTS:
            return LockConflict(str(cause))
        if code == _NO_PARTITION:
            return MissingPartition(str(cause))
        if code in _LOST | READ_ONLY_CODES or isinstance(cause, _LOST_ERRORS):
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


async def _run(connection: Any, text: str | bytes) -> Sequence[Any]:
    """Run a text of one or several statements; return the rows of the first that has some."""
    async with connection.cursor() as cursor:
        await cursor.execute(text)
        found: Sequence[Any] = await cursor.fetchall()
        while await cursor.nextset():
            found = found or await cursor.fetchall()
    return found
