"""An aiosqlite connection that passes each statement to its thread once.

aiosqlite runs all calls of a connection in a thread. SQLAlchemy makes three for a statement without rows: open a
cursor, execute, close the cursor. While a transaction waits for them, no other one can write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar, cast

from aiosqlite import Connection, Cursor
from aiosqlite.context import contextmanager

T = TypeVar("T")


def connect(database: str, **options: Any) -> QuickConnection:
    """Return a connection, to be awaited before its first use."""
    connection = QuickConnection(partial(sqlite3.connect, database, **options), iter_chunk_size=64)
    connection._thread.daemon = True  # as SQLAlchemy does: a connection that was not closed must not keep the process
    return connection


class QuickConnection(Connection):
    """A connection whose cursors open and close themselves in the calls that execute statements."""

    @contextmanager
    async def cursor(self) -> Cursor:
        """Return a cursor; its thread opens it with the first statement."""
        return _QuickCursor(self)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run several statements in the thread of the connection."""
        return cast(T, await self._execute(work, self._conn))  # type: ignore[no-untyped-call]


class _QuickCursor(Cursor):
    _is_open = False

    def __init__(self, connection: QuickConnection) -> None:
        super().__init__(connection, cast(sqlite3.Cursor, None))

    async def execute(self, sql: str, parameters: Iterable[Any] | None = None) -> Cursor:
        await self._execute(self._open_and_call, "execute", sql, parameters or ())  # type: ignore[no-untyped-call]
        return self

    async def executemany(self, sql: str, parameters: Iterable[Iterable[Any]]) -> Cursor:
        await self._execute(self._open_and_call, "executemany", sql, parameters)  # type: ignore[no-untyped-call]
        return self

    def _open_and_call(self, method: str, sql: str, parameters: Any) -> None:
        if not self._is_open:
            self._cursor, self._is_open = self._conn._conn.cursor(), True
        getattr(self._cursor, method)(sql, parameters)

    async def close(self) -> None:
        # Rows may be left to fetch. A statement without rows has been closed when it was done.
        if self._is_open and self.description is not None:
            await super().close()
