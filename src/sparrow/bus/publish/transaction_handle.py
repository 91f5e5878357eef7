"""One interface for the transactions of SQLAlchemy, DB-API drivers and Django.

A handle is checked before anything is written: a connection that commits every statement by itself is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, event
from sqlalchemy.orm import Session

from sparrow.bus.errors import NotInTransaction
from sparrow.bus.sql.dialect import DATABASE_KINDS, DatabaseKind
from sparrow.bus.sql.outbox import ExecuteStatement
from sparrow.model.errors import Refused

_WRITTEN = "sparrow bus"
"""In a connection's `info`: events were published in the current transaction."""
_KINDS_BY_MODULE: dict[str, DatabaseKind] = {
    "sqlite3": "sqlite",
    "pysqlite3": "sqlite",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pg8000": "postgresql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "mysql": "mysql",
    "mariadb": "mysql",
}


class TransactionHandle(NamedTuple):
    kind: DatabaseKind
    paramstyle: str
    run: ExecuteStatement


def sqlalchemy_handle(
    handle: Session | Connection, *, allow_autocommit: bool, wake: Callable[[], None], table: Table | None
) -> TransactionHandle:
    connection = handle if isinstance(handle, Connection) else _connection_of(handle, table)
    if not connection.in_transaction():
        connection.begin()  # as its first statement would: before that, SQLite seems to be in autocommit mode
    if not allow_autocommit:
        _refuse_autocommit(connection.connection.dbapi_connection, type(handle).__name__)
    _wake_on_commit(connection, wake)

    def run(statement: str, values: Sequence[Any]) -> int:
        return connection.exec_driver_sql(statement, tuple(values)).rowcount

    return TransactionHandle(DATABASE_KINDS[connection.dialect.name], connection.dialect.paramstyle, run)


def dbapi_handle(connection: Any, *, allow_autocommit: bool) -> TransactionHandle:
    """Return a handle for a DB-API connection.

    A driver does not report commits, so the relay finds the event at its next poll.
    """
    name = type(connection).__module__.partition(".")[0]
    if name not in _KINDS_BY_MODULE:
        raise Refused(
            f"a connection of {name!r} is not supported: pass a SQLAlchemy Session or Connection, or a connection of "
            f"{', '.join(sorted(_KINDS_BY_MODULE))}"
        )
    if not allow_autocommit:
        _refuse_autocommit(connection, f"the {name} connection")
    paramstyle = str(sys.modules[name].paramstyle) if name != "mysql" else "format"

    def run(statement: str, values: Sequence[Any]) -> int:
        cursor = connection.cursor()
        try:
            cursor.execute(statement, tuple(values))
            return int(cursor.rowcount)
        finally:
            cursor.close()

    return TransactionHandle(_KINDS_BY_MODULE[name], paramstyle, run)


def django_handle(using: str, *, allow_autocommit: bool, wake: Callable[[], None]) -> TransactionHandle:
    from django.db import connections, transaction

    connection = connections[using]
    if not connection.in_atomic_block and not allow_autocommit and connection.get_autocommit():
        raise NotInTransaction(
            f"Django's connection {using!r}", "commits every statement by itself", "publish inside transaction.atomic()"
        )
    transaction.on_commit(wake, using=using)

    def run(statement: str, values: Sequence[Any]) -> int:
        with connection.cursor() as cursor:
            cursor.execute(statement, list(values))
            return int(cursor.rowcount)

    return TransactionHandle(DATABASE_KINDS[connection.vendor], "format", run)


def _connection_of(session: Session, table: Table | None) -> Connection:
    if session.bind is None and table is not None:  # several binds: choose the engine of the bus tables
        return session.connection(bind_arguments={"clause": table})
    return session.connection()


def _refuse_autocommit(connection: Any, what: str) -> None:
    if _commits_by_itself(connection):
        raise NotInTransaction(
            what,
            "commits every statement by itself (autocommit)",
            "begin a transaction first, or set allow_autocommit=True if losing the event in a crash is acceptable",
        )


def _commits_by_itself(connection: Any) -> bool:
    """Return whether the driver is in autocommit mode; SQLAlchemy's `in_transaction()` is true then, too."""
    driver = getattr(connection, "driver_connection", connection)
    if isinstance(getattr(driver, "in_transaction", None), bool):  # sqlite3, aiosqlite
        if getattr(driver, "autocommit", None) is True:  # Python 3.12
            return True
        return driver.isolation_level is None and not driver.in_transaction
    if str(getattr(connection, "isolation_level", "")).lower() == "autocommit":  # SQLAlchemy's asyncpg
        return True
    if callable(getattr(driver, "get_autocommit", None)):  # MySQL's drivers
        in_transaction = bool(getattr(driver, "server_status", 0) & 1)
        return bool(driver.get_autocommit()) and not in_transaction
    if getattr(driver, "autocommit", False) is True:  # psycopg: an explicit BEGIN starts a transaction
        info = getattr(driver, "info", None)
        return info is None or int(info.transaction_status) == 0
    return False


def _wake_on_commit(connection: Connection, wake: Callable[[], None]) -> None:
    """Wake the relay when this transaction commits.

    Other commits wake it too, which is harmless: it sends only what it finds in the tables.
    """
    connection.info[_WRITTEN] = wake
    if not event.contains(connection.engine, "commit", _committed):
        event.listen(connection.engine, "commit", _committed)


def _committed(connection: Connection) -> None:
    wake = connection.info.pop(_WRITTEN, None)
    if wake is not None:
        wake()
