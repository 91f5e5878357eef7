"""Django's transaction as the transaction of a handler: its rows and the completion of its message are one commit.

A Django connection belongs to a thread. So one thread of the pool does everything for a message, step by step: begin,
the handler, the completion, commit.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

from django.db import close_old_connections, connections, transaction
from sqlalchemy import Connection

from sparrow.bus.handlers.transactions import FinishMessage, checked_result


class DjangoTransaction:
    """The transaction of blocking handlers that ask for no SQLAlchemy session."""

    def __init__(self, using: str, pool: Pool) -> None:
        self._using, self._pool = using, pool
        # Publishing inside the handler is bound to the alias, since each thread has its own connection.
        self.handle: Any = SimpleNamespace(vendor=connections[using].vendor, alias=using)
        self._steps: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._atomic: Any = None
        self._calling: Future[Any] | None = None

    async def begin(self) -> None:
        self._pool.submit(self._serve)
        await self._in_thread(self._enter)

    async def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._calling = self._ask(lambda: function(*args, **kwargs))
        return checked_result(await asyncio.wrap_future(self._calling), function)

    async def commit(self, finish: FinishMessage) -> None:
        def work() -> None:
            finish(cast("Connection", _DjangoConnection(self._using)))
            atomic, self._atomic = self._atomic, None
            atomic.__exit__(None, None, None)

        await self._in_thread(work)
        self._steps.put(None)

    async def abandon(self) -> None:
        # Queued behind the running step: a handler cannot be stopped, only rolled back.
        undone = self._ask(self._undo)
        self._steps.put(None)
        if self._calling is None or self._calling.done():
            await asyncio.wrap_future(undone)

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        close_old_connections()
        self._atomic = transaction.atomic(using=self._using, durable=True)
        self._atomic.__enter__()

    def _undo(self) -> None:
        atomic, self._atomic = self._atomic, None
        if atomic is None:
            return
        try:
            atomic.__exit__(RuntimeError, RuntimeError("rolled back"), None)
        except Exception:
            connections[self._using].close()  # the connection broke, and its transaction with it

    def _serve(self) -> None:
        try:
            while (step := self._steps.get()) is not None:
                work, answer = step
                try:
                    answer.set_result(work())
                except BaseException as error:
                    answer.set_exception(error)
        finally:
            close_old_connections()

    def _ask(self, work: Callable[[], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()  # from here on it cannot be cancelled: the thread sets the result
        context = contextvars.copy_context()
        self._steps.put((lambda: context.run(work), answer))
        return answer

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self._ask(work))


class _DjangoConnection:
    """The part of SQLAlchemy's Connection that the statements use, on Django's connection of this thread."""

    def __init__(self, using: str) -> None:
        self._connection = connections[using]
        self.dialect = SimpleNamespace(name=self._connection.vendor, driver="django", paramstyle="format")

    def exec_driver_sql(self, statement: str, values: tuple[Any, ...] = ()) -> _CursorResult:
        cursor = self._connection.cursor()
        cursor.execute(statement, list(values))
        return _CursorResult(cursor)


class _CursorResult:
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.rowcount = int(cursor.rowcount)

    def all(self) -> list[Any]:
        return list(self._cursor.fetchall())
