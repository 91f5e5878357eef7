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
from functools import partial
from socket import gaierror
from typing import Any, Literal, TypeVar

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from sparrow.bus.sql.connections.engines import URL_FORMS, create_asyncio, create_blocking, parse_url
from sparrow.bus.sql.dialect import DATABASE_KINDS, DatabaseKind
from sparrow.databases.url import DatabaseHost
from sparrow.model.errors import SettingsError

T = TypeVar("T")

CONFLICT_TRIES = 8
_PAUSE_S = 0.01
THREADS_MAX = 10

# MySQL: deadlock, lock wait timeout, deadlock with GET_LOCK, and MariaDB's "record has changed since last read".
_CONFLICT_CODES = {1213, 1205, 3058, 1020}
_CONFLICT_STATES = {"40001", "40P01", "55P03"}
_SHUTDOWN_STATES = {"57P01", "57P02", "57P03"}
"""PostgreSQL: shutting down, crashed, not yet started."""
_MISSING_TABLE_CODE = 1146
_MISSING_TABLE_STATE = "42P01"


class TransactionConflict(Exception):
    """A conflict with another transaction: nothing was done, run it again."""


class BusDatabase:
    """The engines of one database. From a URL both kinds are created; a given engine is the only one."""

    def __init__(self, database: str | URL | Engine | AsyncEngine) -> None:
        self._url: URL | None = None
        self._hosts: tuple[DatabaseHost, ...] = ()
        self._engine: Engine | None = None
        self._async_engine: AsyncEngine | None = None
        self._owned: list[Engine | AsyncEngine] = []
        if isinstance(database, Engine):
            self._engine, url = database, database.url
        elif isinstance(database, AsyncEngine):
            self._async_engine, url = database, database.url
        else:
            url, self._hosts = parse_url(database)
            self._url = url
        if url.get_backend_name() not in DATABASE_KINDS:
            raise SettingsError(
                "database", str(url), "the bus", URL_FORMS, f"the scheme {url.get_backend_name()!r} is unknown"
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
        if self._hosts:
            self.where = self.where.replace(str(self._hosts[0]), ",".join(map(str, self._hosts)), 1)
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
            self._engine = create_blocking(self._url, self.kind, self._hosts)
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
            self._async_engine = create_asyncio(self._url, self.kind, self._hosts)
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

    async def run(self, work: Callable[[Connection], T], *, repeats_commit: bool = True) -> T:
        """Run `work` in a transaction of its own and commit it.

        If the connection fails during the commit, nobody knows whether it was done. Work that may be done twice is
        repeated then; with `repeats_commit=False` the error is raised.
        """
        self._drop_after_fork()
        if self.works_in_threads:
            if self._threads is None:
                # SQLite allows one writer: more threads would only wait.
                count = 2 if self.kind == "sqlite" else THREADS_MAX
                self._threads = ThreadPoolExecutor(count, thread_name_prefix="bus-sql")
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, partial(self.run_blocking, work, repeats_commit=repeats_commit)
            )
        for attempt in range(1, CONFLICT_TRIES + 1):
            steps: list[str] = []
            try:
                async with self.async_engine.connect() as connection:
                    if self._isolation:
                        connection = await connection.execution_options(**self._isolation)
                    return await connection.run_sync(_committed, work, steps)
            except (TransactionConflict, DBAPIError) as error:
                if attempt == CONFLICT_TRIES or not _may_repeat(error, steps, repeats_commit):
                    raise
            await asyncio.sleep(_pause_s(attempt))
        raise AssertionError("unreachable")

    def run_blocking(self, work: Callable[[Connection], T], *, repeats_commit: bool = True) -> T:
        """Run `work` in a transaction of its own and commit it, like `run`, blocking the caller."""
        self._drop_after_fork()
        for attempt in range(1, CONFLICT_TRIES + 1):
            steps: list[str] = []
            try:
                with self.engine.connect() as connection:
                    if self._isolation:
                        connection = connection.execution_options(**self._isolation)
                    return _committed(connection, work, steps)
            except (TransactionConflict, DBAPIError) as error:
                if attempt == CONFLICT_TRIES or not _may_repeat(error, steps, repeats_commit):
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


def _committed(connection: Connection, work: Callable[[Connection], T], steps: list[str]) -> T:
    """Do the work and commit it; `steps` gets a word when the commit begins."""
    with connection.begin():
        result = work(connection)
        steps.append("commit")
    return result


def _may_repeat(error: BaseException, steps: list[str], repeats_commit: bool) -> bool:
    return is_transient(error) and (repeats_commit or not steps or is_conflict(error))


def is_unreachable(error: BaseException) -> bool:
    """Return whether the database is unreachable, as opposed to a wrong statement."""
    if isinstance(error, (ConnectionError, TimeoutError, OSError)):
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if getattr(getattr(error, "orig", None), "sqlstate", None) in _SHUTDOWN_STATES:
        return True
    return isinstance(error, (InterfaceError, OperationalError)) and not is_conflict(error)


def is_database_away(error: BaseException) -> bool:
    """Return whether an error of a handler or of the bus says that a database cannot be reached.

    Errors of other servers and of files are not meant, as far as they can be told apart.
    """
    if isinstance(error, SQLAlchemyError):
        return is_unreachable(error)
    return isinstance(error, (ConnectionError, gaierror)) and error.filename is None


def _pause_s(attempt: int) -> float:
    return random.uniform(0.5, 1.5) * _PAUSE_S * float(2**attempt)
