"""The engines of the bus database, and transactions on them for blocking and asyncio callers.

A transaction is a function of a connection. It may run again from the start: after a conflict with another transaction
nothing of it was done.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from sparrow.bus.errors import ClientMissing
from sparrow.bus.sql.dialect import DATABASE_KINDS, DatabaseKind
from sparrow.model.errors import SettingsError

T = TypeVar("T")

CONFLICT_TRIES = 8
_PAUSE_S = 0.01
BUSY_TIMEOUT_S = 30.0
POOL_SIZE = 40
"""Connections are opened on demand and kept: a pool that closes surplus connections opens new ones all the time."""
THREADS_MAX = 10
_URL_FORMS = "mysql://user:password@host/name, postgresql://user:password@host/name or sqlite:///path"

# For engines created here. At REPEATABLE READ claims would lock gaps and deadlock with the inserts of publishers. A
# committed transaction needs no ROLLBACK when its connection returns to the pool; SQLAlchemy rolls back others. No ping
# before each use: work on a lost connection is repeated.
_OURS: dict[str, Any] = {
    "pool_size": POOL_SIZE,
    "max_overflow": POOL_SIZE,
    "pool_use_lifo": True,
    "pool_reset_on_return": None,
    "isolation_level": "READ COMMITTED",
}

# By kind of database: the driver, and the extra of Sparrow that installs it.
_BLOCKING_DRIVERS: dict[DatabaseKind, tuple[str, str]] = {
    "mysql": ("pymysql", "mysql"),
    "postgresql": ("psycopg", "postgres"),
    "sqlite": ("pysqlite", "bus"),
}
_ASYNCIO_DRIVERS: dict[DatabaseKind, tuple[str, str]] = {
    "mysql": ("asyncmy", "mysql"),
    "postgresql": ("asyncpg", "postgres"),
    "sqlite": ("aiosqlite", "bus"),
}

# MySQL: deadlock, lock wait timeout, and MariaDB's "record has changed since last read".
_CONFLICT_CODES = {1213, 1205, 1020}
_CONFLICT_STATES = {"40001", "40P01", "55P03"}
_MISSING_TABLE_CODE = 1146
_MISSING_TABLE_STATE = "42P01"


class TransactionConflict(Exception):
    """A conflict with another transaction: nothing was done, run it again."""


class BusDatabase:
    """The engines of one database. From a URL both kinds are created; a given engine is the only one."""

    def __init__(self, database: str | URL | Engine | AsyncEngine) -> None:
        self._url: URL | None = None
        self._engine: Engine | None = None
        self._async_engine: AsyncEngine | None = None
        self._owned: list[Engine | AsyncEngine] = []
        if isinstance(database, Engine):
            self._engine, url = database, database.url
        elif isinstance(database, AsyncEngine):
            self._async_engine, url = database, database.url
        else:
            self._url = url = _parsed(database)
        if url.get_backend_name() not in DATABASE_KINDS:
            raise SettingsError(
                "database", str(url), "the bus", _URL_FORMS, f"the scheme {url.get_backend_name()!r} is unknown"
            )
        if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
            raise SettingsError(
                "database",
                str(url),
                "the bus",
                "sqlite:///a-file.db, or use sparrow.bus.testing.TestBus in tests",
                "a database in memory belongs to one connection",
            )
        self.where = url.render_as_string(hide_password=True)
        self.kind: DatabaseKind = DATABASE_KINDS[url.get_backend_name()]
        self._threads: ThreadPoolExecutor | None = None
        self._pid = os.getpid()

    def __str__(self) -> str:
        return self.where

    # -- engines ------------------------------------------------------------------------------------------------------

    @property
    def has_asyncio(self) -> bool:
        """Whether an asyncio engine exists or can be created."""
        return self._async_engine is not None or self._url is not None

    @property
    def has_blocking(self) -> bool:
        """Whether a blocking engine exists or can be created."""
        return self._engine is not None or self._url is not None

    @property
    def engine(self) -> Engine:
        """The engine for blocking handlers and callers."""
        if self._engine is None:
            if self._url is None:
                raise SettingsError(
                    "database",
                    str(self),
                    "the bus",
                    "a URL, from which both kinds of engine can be created, or an Engine",
                )
            self._engine = _blocking(self._url, self.kind)
            self._owned.append(self._engine)
        return self._engine

    @property
    def async_engine(self) -> AsyncEngine:
        """The engine for asyncio handlers and callers."""
        if self._async_engine is None:
            if self._url is None:
                raise SettingsError(
                    "database",
                    str(self),
                    "the bus",
                    "a URL, from which both kinds of engine can be created, or an AsyncEngine",
                )
            self._async_engine = _asyncio(self._url, self.kind)
            self._owned.append(self._async_engine)
        return self._async_engine

    def engine_for(self, kind: Literal["sync", "async"]) -> Engine | AsyncEngine:
        """Return the engine of a kind; raise `SettingsError` if there is none and none can be created."""
        return self.engine if kind == "sync" else self.async_engine

    @property
    def works_in_threads(self) -> bool:
        """Whether the bus's own work runs on the blocking engine: SQLite has no real asyncio driver."""
        if self._url is None:
            return self._async_engine is None
        return self.kind == "sqlite"  # regardless of engines created for handlers

    @property
    def paramstyle(self) -> str:
        """The parameter style of the engine for the bus's own work."""
        return (self.engine if self.works_in_threads else self.async_engine).dialect.paramstyle

    # -- work ---------------------------------------------------------------------------------------------------------

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction of its own and commit it."""
        self._drop_after_fork()
        if self.works_in_threads:
            if self._threads is None:
                # SQLite allows one writer: more threads would only wait.
                count = 2 if self.kind == "sqlite" else THREADS_MAX
                self._threads = ThreadPoolExecutor(count, thread_name_prefix="bus-sql")
            return await asyncio.get_running_loop().run_in_executor(self._threads, self.run_blocking, work)
        for attempt in range(1, CONFLICT_TRIES + 1):
            try:
                async with self.async_engine.connect() as connection:
                    if self._isolation:
                        connection = await connection.execution_options(**self._isolation)
                    return await connection.run_sync(_committed, work)
            except (TransactionConflict, DBAPIError) as error:
                if attempt == CONFLICT_TRIES or not is_transient(error):
                    raise
            await asyncio.sleep(_pause_s(attempt))
        raise AssertionError("unreachable")

    def run_blocking(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction of its own and commit it, blocking the caller."""
        self._drop_after_fork()
        for attempt in range(1, CONFLICT_TRIES + 1):
            try:
                with self.engine.connect() as connection:
                    if self._isolation:
                        connection = connection.execution_options(**self._isolation)
                    return _committed(connection, work)
            except (TransactionConflict, DBAPIError) as error:
                if attempt == CONFLICT_TRIES or not is_transient(error):
                    raise
            time.sleep(_pause_s(attempt))
        raise AssertionError("unreachable")

    def _drop_after_fork(self) -> None:
        """Drop inherited connections in a forked child: parent and child must not share them."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._threads = None
            if self._engine is not None:
                self._engine.dispose(close=False)
            if self._async_engine is not None:
                self._async_engine.sync_engine.dispose(close=False)

    @property
    def _isolation(self) -> dict[str, Any]:
        """Options for given engines, which may be at REPEATABLE READ."""
        return {"isolation_level": "READ COMMITTED"} if self.kind == "mysql" and self._url is None else {}

    async def close(self) -> None:
        """Close the engines that were created here, not a given one."""
        if self._threads is not None:
            await asyncio.to_thread(self._threads.shutdown)
            self._threads = None
        for engine in self._owned:
            if isinstance(engine, AsyncEngine):
                await engine.dispose()
            else:
                await asyncio.to_thread(engine.dispose)
        if self._url is not None:
            self._engine = self._async_engine = None
        self._owned.clear()


def is_conflict(error: BaseException) -> bool:
    """Return whether the same transaction may succeed when it is repeated."""
    if isinstance(error, TransactionConflict):
        return True
    original = getattr(error, "orig", None) or error
    if getattr(original, "sqlstate", None) in _CONFLICT_STATES:
        return True
    code = original.args[0] if original.args else None
    return code in _CONFLICT_CODES or "database is locked" in str(original)


def is_missing_table(error: BaseException | None) -> bool:
    """Return whether a statement failed because its table does not exist, whoever wraps the driver's error."""
    while error is not None:
        if _MISSING_TABLE_STATE in (getattr(error, "sqlstate", None), getattr(error, "pgcode", None)):
            return True
        if (error.args and error.args[0] == _MISSING_TABLE_CODE) or str(error).startswith("no such table"):
            return True
        error = getattr(error, "orig", None) or error.__cause__
    return False


def is_transient(error: BaseException) -> bool:
    """Return whether a retry at once may help: after a conflict or on a lost connection."""
    return is_conflict(error) or (isinstance(error, DBAPIError) and error.connection_invalidated)


def _committed(connection: Connection, work: Callable[[Connection], T]) -> T:
    with connection.begin():
        return work(connection)


def is_unreachable(error: BaseException) -> bool:
    """Return whether the database is unreachable, as opposed to a wrong statement."""
    if isinstance(error, (ConnectionError, TimeoutError, OSError)):
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, (InterfaceError, OperationalError)) and not is_conflict(error)


def _pause_s(attempt: int) -> float:
    return random.uniform(0.5, 1.5) * _PAUSE_S * float(2**attempt)


def _parsed(url: str | URL) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # their texts may quote the password
        text = str(url)
        is_path = "@" not in text and "://" not in text
        forms = f"sqlite:///{text} if it is a file, otherwise {_URL_FORMS}" if is_path else _URL_FORMS
        raise SettingsError("database", text, "the bus", forms, "it is not a URL of a database") from None


def _with_driver(url: URL, drivers: tuple[str, str], kind: DatabaseKind, *, is_async: bool) -> URL:
    """Return the URL with a driver of the right kind, whose import works."""
    driver, extra = drivers
    backend, package = "mysql" if kind == "mysql" else url.get_backend_name(), f"sparrowmq[{extra}]"
    if "+" in url.drivername and url.get_dialect().is_async == is_async:  # chosen by the user
        package = url.get_driver_name()
    else:
        url = url.set(drivername=f"{backend}+{driver}")
    try:
        url.get_dialect().import_dbapi()
    except ImportError as error:
        name = url.get_driver_name() if error.name is None else error.name
        raise ClientMissing("database", url.render_as_string(), name, package) from error
    return url


def _blocking(url: URL, kind: DatabaseKind) -> Engine:
    url = _with_driver(url, _BLOCKING_DRIVERS[kind], kind, is_async=False)
    if kind != "sqlite":
        return create_engine(url, **_OURS)
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
    prepare_sqlite(engine)
    return engine


def _asyncio(url: URL, kind: DatabaseKind) -> AsyncEngine:
    url = _with_driver(url, _ASYNCIO_DRIVERS[kind], kind, is_async=True)
    if kind != "sqlite":
        return create_async_engine(url, **_OURS)
    engine = create_async_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
    prepare_sqlite(engine.sync_engine)
    return engine


def _decode_text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def prepare_sqlite(engine: Engine) -> None:
    """Enable the write-ahead log, and take the write lock at the beginning of each transaction.

    SQLite refuses a transaction that reads first and writes later if another one has written in between. Its error for
    a missing folder is "unable to open database file", so that is checked before each connection.
    """
    file = engine.url.database or ""

    @event.listens_for(engine, "do_connect")
    def connecting(*_: Any) -> None:
        folder = Path(file).absolute().parent
        if not file.startswith("file:") and not folder.is_dir():
            suggestion = "the path of a file in a folder that exists, or create that folder"
            reason = f"the folder {folder} does not exist"
            raise SettingsError("database", f"sqlite:///{file}", "the bus", suggestion, reason)

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver would begin the transaction late
        if isinstance(connection, sqlite3.Connection):
            # SQLite stores any bytes as text. One row that is not UTF-8 must not make the others unreadable.
            connection.text_factory = _decode_text
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
