"""A few connections to a server, each used by one at a time; one that failed is not used again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from sparrow.store.sql.drivers.database import ColumnValue
from sparrow.store.sql.drivers.errors import StoreDatabaseUnreachable


class DriverFunctions(NamedTuple):
    """How a driver does what every driver does."""

    connect: Callable[[], Awaitable[Any]]
    close: Callable[[Any], None]
    """At once, without a word to the server."""
    is_open: Callable[[Any], bool]
    raises: tuple[type[BaseException], ...]
    failure: Callable[[BaseException], Exception]
    """What one of these means."""
    fetch: Callable[[Any, str, dict[str, ColumnValue]], Awaitable[list[tuple[Any, ...]]]]
    execute: Callable[[Any, str, dict[str, ColumnValue]], Awaitable[int]]


class ConnectionPool:
    """Connections are made when they are needed, and kept."""

    def __init__(self, display_url: str, connections_max: int, driver: DriverFunctions) -> None:
        self._display_url, self._driver = display_url, driver
        self._idle: list[Any] = []
        self._free = asyncio.Semaphore(connections_max)
        self._is_closed = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        async with self._free:
            if self._is_closed:
                raise StoreDatabaseUnreachable(self._display_url, "it was closed here")
            connection = None
            try:
                connection = await self._taken()
                yield connection
            except self._driver.raises as cause:
                failure = self._driver.failure(cause)
                if isinstance(failure, StoreDatabaseUnreachable):  # whatever took this one took the others
                    self._drop(connection)
                    self._drop_idle()
                    connection = None
                raise failure from cause
            except BaseException as cause:  # cancelled, say: the answer may still be on its way
                if not isinstance(cause, Exception):
                    self._drop(connection)
                    connection = None
                raise
            finally:
                self._give_back(connection)

    async def _taken(self) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if self._driver.is_open(connection):  # it may have been closed while nobody used it
                return connection
        return await self._driver.connect()

    def _give_back(self, connection: Any) -> None:
        if connection is None:
            return
        if self._is_closed or not self._driver.is_open(connection):
            self._driver.close(connection)
        else:
            self._idle.append(connection)

    def _drop(self, connection: Any) -> None:
        if connection is not None:
            self._driver.close(connection)

    def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            self._driver.close(connection)

    def close(self) -> None:
        self._is_closed = True
        self._drop_idle()

    # -- statements ---------------------------------------------------------------------------------------------------

    async def fetch(self, sql: str, **values: ColumnValue) -> list[tuple[Any, ...]]:
        async with self.connection() as connection:
            return await self._driver.fetch(connection, sql, values)

    async def execute(self, sql: str, **values: ColumnValue) -> int:
        async with self.connection() as connection:
            return await self._driver.execute(connection, sql, values)

    def session(self, connection: Any) -> PooledSession:
        """The statements of one transaction."""
        return PooledSession(connection, self._driver)


class PooledSession:
    """Statements on one connection."""

    def __init__(self, connection: Any, driver: DriverFunctions) -> None:
        self._connection, self._driver = connection, driver

    async def fetch(self, sql: str, **values: ColumnValue) -> list[tuple[Any, ...]]:
        return await self._driver.fetch(self._connection, sql, values)

    async def execute(self, sql: str, **values: ColumnValue) -> int:
        return await self._driver.execute(self._connection, sql, values)
