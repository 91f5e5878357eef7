"""MariaDB and MySQL, through asyncmy.

An append is one text of several statements, and every literal in it is a number or hex: nothing to escape, and the
server has the whole of it before it takes the lane's lock.
"""

from __future__ import annotations

import asyncio
import logging
import re
from binascii import hexlify
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
from sparrow.store.sql.schema.table_names import table_name

_DUPLICATE, _NO_PARTITION = 1062, 1526
_CONFLICTS = frozenset({1205, 1213})
_GONE = frozenset({1048, 1146})
"""No lane gave a number, or its table is not there: the topic was deleted, perhaps made anew."""
_LOST = frozenset({1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1927, 2002, 2003, 2006, 2013, 2014, 2055})
_FLAGS = CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS
_SESSION = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,ANSI_QUOTES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00',"
    " innodb_lock_wait_timeout = 5, lock_wait_timeout = 5, sql_notes = OFF"
    # Who stands still amid a transaction must not keep a lane locked for good. Only MariaDB has such a limit.
    " /*M!100300 , idle_write_transaction_timeout = 5 */",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
_NAMED = re.compile(r"%\((\w+)\)s")
_ROOM_BYTES = 64 << 10
"""For what stands around the messages in a packet."""
_CONNECT_S, _GREETED_S = 5, 15
"""Until the server takes the call, and until it can be asked."""
_COMPOUND_ROWS = 50
"""Below so many rows MariaDB is given one compound statement. Else it sends an answer for every part of the text, which
costs more than the parts themselves do. For many rows a plain text is quicker."""
_PREPARED_MAX = 100
"""Queries that a connection keeps prepared: rows then come as they are, not as text."""

# The driver asks for the server's notes and logs them: that a table or a key is there already is no news to us.
logging.getLogger("asyncmy").setLevel(logging.ERROR)


async def open_mysql(address: DatabaseUrl, *, connections_max: int) -> MySqlDatabase:
    database = MySqlDatabase(address, connections_max)
    await database.start()
    return database


class MySqlDatabase:
    """A server of theirs."""

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
        self.packet_bytes_max = packet // 2 - _ROOM_BYTES  # hex takes two bytes for one
        # InnoDB shows a commit before its redo is on disk, unless the binary log is there to order them.
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
                await _rolled_back(connection)
                raise

    async def append(
        self, lane: Lane, entries: Sequence[NewRow], tickets: Sequence[BatchId], now_ms: int
    ) -> AssignedIds:
        text = append_sql(lane, entries, tickets, now_ms)
        if self._is_mariadb and len(entries) < _COMPOUND_ROWS:
            text = b"BEGIN NOT ATOMIC %b; END" % text
        async with self._pool.connection() as connection:
            try:
                async with connection.cursor() as cursor:
                    await cursor.execute(text)
                    found = await cursor.fetchall()
                    while await cursor.nextset():
                        found = found or await cursor.fetchall()
            except BaseException as cause:
                await _rolled_back(connection)
                if isinstance(cause, errors.MySQLError) and cause.args and cause.args[0] in _GONE:
                    raise UnknownTopic(lane.topic) from cause
                raise
        base_id, store_ms = found[0]
        return AssignedIds(int(base_id), int(store_ms), lane.number)

    async def server_identity(self) -> str:
        ((_, uptime),) = await self.fetch("SHOW GLOBAL STATUS LIKE 'Uptime'")
        ((now, server_id),) = await self.fetch("SELECT UNIX_TIMESTAMP(), @@server_id")
        started_at = int(now) - int(uptime)
        if abs(started_at - self._started_at) > 2:  # whole seconds, read one after the other
            self._started_at = started_at
        return f"{server_id}/{self._started_at}"

    async def close(self) -> None:
        self._pool.close()

    # -- connections --------------------------------------------------------------------------------------------------

    async def _connect(self) -> Any:
        async with asyncio.timeout(_GREETED_S):
            connection = await self._connected()
            try:
                for statement in _SESSION:
                    await connection.query(statement)
            except BaseException:
                connection.close()
                raise
        return connection

    async def _connected(self) -> Any:
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
            connect_timeout=_CONNECT_S,
            stmt_cache_size=_PREPARED_MAX,
        )
        # The driver waits with `wait_for`, which before Python 3.12 forgets a cancellation that comes with the answer.
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
    """With `%s` for every value, and their names in order: queries of this form are prepared."""
    names = _NAMED.findall(to_pyformat_style(sql))
    return _NAMED.sub("%s", to_pyformat_style(sql)), names


async def _rolled_back(connection: Any) -> None:
    """A text that failed half-way leaves its transaction open."""
    try:
        await connection.rollback()
    except (errors.MySQLError, OSError, EOFError):
        connection.close()


def append_sql(lane: Lane, entries: Sequence[NewRow], tickets: Sequence[BatchId], now_ms: int) -> bytes:
    """The whole transaction."""
    number, count = lane.number, len(entries)
    start = (
        # None of what an earlier append on this connection has left behind: the lane may be gone.
        "SET @b=NULL,@t=NULL;START TRANSACTION;"
        f"UPDATE hermes_lane SET next_id=next_id+{count},last_ts=GREATEST(last_ts,{now_ms}) WHERE lane={number};"
        f"SELECT next_id-{count},last_ts INTO @b,@t FROM hermes_lane WHERE lane={number};"
    )
    if tickets:
        places = ",".join(
            f"({t.stored_lane(lane)},{t.producer},{t.seq},@b+{t.stored_offset(lane)},{t.size},@t)" for t in tickets
        )
        start += f"INSERT INTO hermes_batch VALUES {places};"
    start += f'INSERT INTO "{lane.table}" (id,body,source_ip,token,ref_key,"timestamp",properties) VALUES '
    end = ";"
    keys = [
        f"(X'{key.hex()}','{lane.priority.label}',@b+{at})"
        for at, entry in enumerate(entries)
        for key in entry.extra_keys
    ]
    if keys:
        end += f'INSERT INTO "{table_name("key", lane.topic, lane.part)}" VALUES {",".join(keys)};'
    end += "COMMIT;SELECT @b,@t"
    rows = [
        b"(@b+%d,X'%b',%d,%d,%b,@t,X'%b')"
        % (at, hexlify(e.body), e.source_ip, e.token, _literal(e.ref_key), hexlify(e.properties))
        for at, e in enumerate(entries)
    ]
    # Joined once: in a large batch every copy of the text costs as much as writing it.
    rows[0] = start.encode() + rows[0]
    rows[-1] += end.encode()
    return b",".join(rows)


def _literal(value: bytes | None) -> bytes:
    return b"NULL" if value is None else b"X'%b'" % hexlify(value)
