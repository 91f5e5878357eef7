"""Completing one message through the asyncio driver itself: fewer round trips, and no statement object of SQLAlchemy.

This is the fence of every handler, so through SQLAlchemy it costs more than a handler's own statement. It runs in the
transaction that SQLAlchemy has begun on the connection. Messages on other drivers are completed through SQLAlchemy.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from sparrow.bus.errors import LeaseLost
from sparrow.bus.sql.connections.database import is_conflict
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.statements import completion as statements
from sparrow.databases.writable import is_galera

Values = tuple[Any, ...]


def complete_directly(
    db: Connection, sql: SqlDialect, table: str, own_row: Values, marks: Values, *, may_defer: bool = False
) -> int | None:
    """Delete a queue row and mark its message as Successed; return the number of queue rows deleted.

    `own_row` are the values of `statements.delete_claimed`, `marks` the status and the retention. None: nothing was
    done, because the driver is another one. With `may_defer` the driver may do it in the call that commits, which then
    raises `LeaseLost` if there is no such queue row.
    """
    run = _BY_DRIVER.get(db.dialect.driver)
    if run is None:
        return None
    connection: Any = db.connection.dbapi_connection
    values = (sql, table, own_row, marks)
    if may_defer and run is _aiosqlite and _complete_with_commit(connection.driver_connection, *values):
        return 1
    try:
        deleted: int | None = connection.run_async(lambda driver: run(driver, *values))
    except Exception as error:
        if is_conflict(error):
            raise OperationalError(_NAME, None, error) from error
        db.invalidate(error)  # it is unknown what the connection is in the middle of
        raise OperationalError(_NAME, None, error, connection_invalidated=True) from error
    except BaseException:
        db.invalidate()
        raise
    return deleted


async def _asyncpg(driver: Any, sql: SqlDialect, table: str, own_row: Values, marks: Values) -> int | None:
    if not driver.is_in_transaction():  # SQLAlchemy begins it with the first statement, which has not come yet
        return None
    statement = sql.text(statements.delete_claimed_and_mark_succeeded(sql, table))
    status: str = await driver.execute(statement, *own_row, *marks)
    return int(status.rpartition(" ")[2])


async def _asyncmy(driver: Any, sql: SqlDialect, table: str, own_row: Values, marks: Values) -> int:
    _, message_id, _ = own_row
    if await _is_galera(driver):
        deleted: int = await driver.query(driver.cursor().mogrify(sql.text(statements.delete_claimed(sql)), own_row))
        if deleted:
            mark = sql.text(statements.mark_succeeded(sql, table, '"Id" = ?'))
            await driver.query(driver.cursor().mogrify(mark, (*marks, message_id)))
        return deleted
    # ROW_COUNT() is that of the DELETE: without the queue row the message stays as it is.
    mark = statements.mark_succeeded(sql, table, '"Id" = ? AND ROW_COUNT() = 1')
    both = sql.text(f"{statements.delete_claimed(sql)}; {mark}")
    deleted = await driver.query(driver.cursor().mogrify(both, (*own_row, *marks, message_id)))
    await driver.next_result()
    return deleted


async def _is_galera(driver: Any) -> bool:
    """Return whether the server is a node of Galera, where each statement must be sent by itself.

    Such a node may roll a transaction back on behalf of another one, and reports that only between two requests.
    """
    known = _galera_servers.get(driver)
    if known is None:
        async with driver.cursor() as cursor:
            await cursor.execute("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'")
            known = _galera_servers[driver] = is_galera(await cursor.fetchall())
    return known


_galera_servers: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
"""By connection."""


async def _aiosqlite(driver: Any, sql: SqlDialect, table: str, own_row: Values, marks: Values) -> int | None:
    from sparrow.bus.sql.connections.sqlite_asyncio import QuickConnection

    if not isinstance(driver, QuickConnection):  # of an engine that the user has created
        return None
    return await driver.run(lambda connection: _complete_sqlite(connection, sql, table, own_row, marks))


def _complete_with_commit(driver: Any, sql: SqlDialect, table: str, own_row: Values, marks: Values) -> bool:
    """Let the call that commits complete the message; return whether the driver can do that."""
    from sparrow.bus.sql.connections.sqlite_asyncio import QuickConnection

    if not isinstance(driver, QuickConnection):
        return False

    def work(connection: sqlite3.Connection) -> None:
        if _complete_sqlite(connection, sql, table, own_row, marks) != 1:
            raise LeaseLost(own_row[1])

    driver.run_before_commit(work)
    return True


def _complete_sqlite(
    connection: sqlite3.Connection, sql: SqlDialect, table: str, own_row: Values, marks: Values
) -> int:
    deleted = connection.execute(statements.delete_claimed(sql), own_row).rowcount
    if deleted:
        connection.execute(statements.mark_succeeded(sql, table, '"Id" = ?'), (*marks, own_row[1]))
    return deleted


_BY_DRIVER: dict[str, Callable[[Any, SqlDialect, str, Values, Values], Awaitable[int | None]]] = {
    "asyncpg": _asyncpg,
    "asyncmy": _asyncmy,
    "aiosqlite": _aiosqlite,
}
_NAME = "completion of a message"
