"""The engines of the bus database, and transactions on them for blocking and asyncio callers.

A transaction is a function of a connection. It may run again from the start: after a conflict with another transaction
nothing of it was done.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

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

_BLOCKING_DRIVERS: dict[DatabaseKind, tuple[str, str, str]] = {
    "mysql": ("pymysql", "pymysql", "mysql"),
    "postgresql": ("psycopg", "psycopg", "postgres"),
    "sqlite": ("pysqlite", "sqlite3", "bus"),
}
_ASYNCIO_DRIVERS: dict[DatabaseKind, tuple[str, str, str]] = {
    "mysql": ("asyncmy", "asyncmy", "mysql"),
    "postgresql": ("asyncpg", "asyncpg", "postgres"),
    "sqlite": ("aiosqlite", "aiosqlite", "bus"),
}

# MySQL: deadlock, lock wait timeout, and MariaDB's "record has changed since last read".
_CONFLICT_CODES = {1213, 1205, 1020}
_CONFLICT_STATES = {"40001", "40P01", "55P03"}


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
        raise SettingsError("database", url, "the bus", _URL_FORMS, "it is not a URL of a database") from None


def _with_driver(url: URL, drivers: tuple[str, str, str], kind: DatabaseKind) -> URL:
    driver, _, extra = drivers
    backend = "mysql" if kind == "mysql" else url.get_backend_name()
    try:
        url.set(drivername=f"{backend}+{driver}").get_dialect().import_dbapi()
    except ImportError as error:
        raise SettingsError(
            "database", url.render_as_string(), "the bus", f"pip install 'sparrowmq[{extra}]', which has {driver},"
        ) from error
    return url.set(drivername=f"{backend}+{driver}")


def _blocking(url: URL, kind: DatabaseKind) -> Engine:
    dialect = url.get_dialect()
    if "+" not in url.drivername or dialect.is_async:
        url = _with_driver(url, _BLOCKING_DRIVERS[kind], kind)
    if kind != "sqlite":
        return create_engine(url, **_OURS)
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
    prepare_sqlite(engine)
    return engine


def _asyncio(url: URL, kind: DatabaseKind) -> AsyncEngine:
    if "+" not in url.drivername or not url.get_dialect().is_async:
        url = _with_driver(url, _ASYNCIO_DRIVERS[kind], kind)
    if kind != "sqlite":
        return create_async_engine(url, **_OURS)
    engine = create_async_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
    prepare_sqlite(engine.sync_engine)
    return engine


def prepare_sqlite(engine: Engine) -> None:
    """Enable the write-ahead log, and take the write lock at the beginning of each transaction.

    SQLite refuses a transaction that reads first and writes later if another one has written in between.
    """

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver would begin the transaction late
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
