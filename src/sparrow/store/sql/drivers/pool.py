"""A pool of connections to a server. A connection that failed is closed, not reused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from sparrow.store.sql.drivers.database import ColumnValue
from sparrow.store.sql.drivers.errors import StoreDatabaseUnreachable


class DriverFunctions(NamedTuple):
    """What the pool needs of a driver."""

    connect: Callable[[], Awaitable[Any]]
    close: Callable[[Any], None]
    """Close a connection at once, without waiting for the server."""
    is_open: Callable[[Any], bool]
    raises: tuple[type[BaseException], ...]
    failure: Callable[[BaseException], Exception]
    """Translate one of `raises` into an error of `drivers.errors`."""
    fetch: Callable[[Any, str, dict[str, ColumnValue]], Awaitable[list[tuple[Any, ...]]]]
    execute: Callable[[Any, str, dict[str, ColumnValue]], Awaitable[int]]


class ConnectionPool:
    """Opens connections when they are needed, and keeps them."""

    def __init__(self, display_url: str, connections_max: int, driver: DriverFunctions) -> None:
        self._display_url, self._driver = display_url, driver
        self._idle: list[Any] = []
        self._free = asyncio.Semaphore(connections_max)
        self._is_closed = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """Use a connection in the block; wait while all are in use."""
        async with self._free:
            if self._is_closed:
                raise StoreDatabaseUnreachable(self._display_url, "this process has closed it")
            connection = None
            try:
                connection = await self._acquire()
                yield connection
            except self._driver.raises as cause:
                failure = self._driver.failure(cause)
                if isinstance(failure, StoreDatabaseUnreachable):  # the others have most likely failed, too
                    self._drop(connection)
                    self._drop_idle()
                    connection = None
                raise failure from cause
            except BaseException as cause:  # such as a cancellation: the answer may still arrive
                if not isinstance(cause, Exception):
                    self._drop(connection)
                    connection = None
                raise
            finally:
                self._release(connection)

    async def _acquire(self) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if self._driver.is_open(connection):  # the server may have closed it while it was idle
                return connection
        return await self._driver.connect()

    def _release(self, connection: Any) -> None:
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
        """Return a session that executes the statements of one transaction."""
        return PooledSession(connection, self._driver)


class PooledSession:
    """Executes statements on one connection."""

    def __init__(self, connection: Any, driver: DriverFunctions) -> None:
        self._connection, self._driver = connection, driver

    async def fetch(self, sql: str, **values: ColumnValue) -> list[tuple[Any, ...]]:
        return await self._driver.fetch(self._connection, sql, values)

    async def execute(self, sql: str, **values: ColumnValue) -> int:
        return await self._driver.execute(self._connection, sql, values)
