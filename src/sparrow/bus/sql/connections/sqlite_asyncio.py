"""An aiosqlite connection that makes few calls to its thread, because no other transaction can write meanwhile.

aiosqlite runs all calls of a connection in a thread. SQLAlchemy makes three for a statement without rows: open a
cursor, execute, close the cursor. Here it is one, and:

1. BEGIN is part of the call that executes the first statement of the transaction, which waits for the turn to write
   as late as that. If it fails, the next statement begins the transaction.
2. Statements whose result nobody needs before the commit are part of the call that commits. If they fail, nothing is
   committed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from aiosqlite import Connection, Cursor
from aiosqlite.context import contextmanager

T = TypeVar("T")


def connect(database: str, **options: Any) -> QuickConnection:
    """Return a connection, to be awaited before its first use."""
    connection = QuickConnection(partial(sqlite3.connect, database, **options), iter_chunk_size=64)
    connection._thread.daemon = True  # as SQLAlchemy does: a connection that was not closed must not keep the process
    return connection


class _Begin(NamedTuple):
    statement: str
    wait_for_turn: Callable[[], Awaitable[None]]
    """Returns when no other transaction of this process writes."""


class QuickConnection(Connection):
    """A connection whose transactions, and whose cursors, begin in the calls that execute statements."""

    _begin: _Begin | None = None
    """How the transaction begins, before its next statement is executed; None: it has begun, or there is none."""

    def __init__(self, connector: Callable[[], sqlite3.Connection], iter_chunk_size: int) -> None:
        super().__init__(connector, iter_chunk_size)
        self._last_works: list[Callable[[sqlite3.Connection], None]] = []

    def begin_with_next_statement(self, statement: str, wait_for_turn: Callable[[], Awaitable[None]]) -> None:
        """Begin a transaction in the call that executes its first statement."""
        self._begin = _Begin(statement, wait_for_turn)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun, or begins with the next statement."""
        return self._begin is not None or super().in_transaction

    def run_before_commit(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Run the last statements of the transaction in the call that commits it."""
        self._last_works.append(work)

    async def commit(self) -> None:
        works, self._last_works = self._last_works, []
        if self._begin is None or works:
            await self._execute(self._run_and_commit, works)
        self._begin = None

    async def rollback(self) -> None:
        self._last_works.clear()
        if self._begin is None:
            await self._execute(self._roll_back)
        self._begin = None

    def _run_and_commit(self, works: list[Callable[[sqlite3.Connection], None]]) -> None:
        try:
            for work in works:
                work(self._conn)
            self._conn.commit()
        except BaseException:
            self._conn.rollback()  # SQLAlchemy does not: it takes the transaction as ended
            raise

    def _roll_back(self) -> None:
        self._begin = None  # a statement before this call, which was cancelled, may have failed to begin
        self._conn.rollback()

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # Taken here, and not in the thread: a rollback after a cancelled statement must know that it may have begun.
        begin, self._begin = self._begin, None
        if begin is not None:
            try:
                await begin.wait_for_turn()
            except BaseException:
                self._begin = begin
                raise
            fn = partial(self._begin_and_call, begin, fn)
        return await super()._execute(fn, *args, **kwargs)  # type: ignore[no-untyped-call]

    def _begin_and_call(self, begin: _Begin, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            self._conn.execute(begin.statement)
        except BaseException:
            self._begin = begin
            raise
        return call(*args, **kwargs)

    @contextmanager
    async def cursor(self) -> Cursor:
        """Return a cursor; its thread opens it with the first statement."""
        return _QuickCursor(self)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run several statements in the thread of the connection."""
        return cast(T, await self._execute(work, self._conn))


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
