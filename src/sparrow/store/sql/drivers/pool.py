"""A pool of connections to a server, or to the first writable one of several.

1. A connection that failed is closed, not reused.
2. All connections lead to the same host: when a new one finds another host writable, the others are closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from sparrow.databases.url import DatabaseHost, DatabaseUrl
from sparrow.databases.writable import GALERA_SESSION, ROLE_QUERIES, HostOrder, is_galera, refusal
from sparrow.store.sql.drivers.database import ColumnValue
from sparrow.store.sql.drivers.errors import StoreDatabaseUnreachable


class DriverFunctions(NamedTuple):
    """What the pool needs of a driver."""

    connect: Callable[[DatabaseHost], Awaitable[Any]]
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

    def __init__(self, address: DatabaseUrl, connections_max: int, driver: DriverFunctions) -> None:
        self._display_url, self._driver, self._dialect = str(address), driver, address.dialect
        self._hosts = HostOrder(address.hosts)
        self._idle: list[Any] = []
        self._stale: set[Any] = set()
        """Connections in use that lead to a host which is no longer the one to write."""
        self._in_use: set[Any] = set()
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
        if self._hosts.is_recheck_due():
            self._drop_idle()
        connection = None
        while self._idle and connection is None:
            connection = self._idle.pop()
            if not self._driver.is_open(connection):  # the server may have closed it while it was idle
                connection = None
        if connection is None:
            connection = await self._open()
        self._in_use.add(connection)
        return connection

    async def _open(self) -> Any:
        """Connect to the first host that may be written; to the only one without a check."""
        if len(self._hosts.hosts) == 1:
            return await self._driver.connect(self._hosts.hosts[0])
        for host in self._hosts.to_try():
            try:
                connection = await self._driver.connect(host)
            except self._driver.raises as cause:
                self._hosts.failed(host, cause)
                continue
            try:
                reason = await self._check_role(connection)
            except BaseException as cause:
                self._driver.close(connection)
                if not isinstance(cause, self._driver.raises):
                    raise
                self._hosts.failed(host, cause)
                continue
            if reason is None:
                if self._hosts.connected(host):
                    self._drop_idle()
                    self._stale |= self._in_use
                return connection
            self._driver.close(connection)
            self._hosts.refused(host, reason)
        raise self._hosts.no_host()

    async def _check_role(self, connection: Any) -> str | None:
        """Return why the host may not be written; None if it may."""
        rows = []
        for query in ROLE_QUERIES[self._dialect]:
            rows += await self._driver.fetch(connection, query, {})
        if is_galera(rows):
            await self._driver.execute(connection, GALERA_SESSION, {})
        return refusal(rows)

    def _release(self, connection: Any) -> None:
        if connection is None:
            return
        is_stale = connection in self._stale
        self._in_use.discard(connection)
        self._stale.discard(connection)
        if self._is_closed or is_stale or not self._driver.is_open(connection):
            self._driver.close(connection)
        else:
            self._idle.append(connection)

    def _drop(self, connection: Any) -> None:
        if connection is not None:
            self._in_use.discard(connection)
            self._stale.discard(connection)
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
