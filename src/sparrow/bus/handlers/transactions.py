"""The transaction in which a handler runs and its message is completed.

There are three kinds, by what the handler asks for: an AsyncSession, a Session (in a thread), or nothing. With a
session the handler's rows, the events it publishes and the completion of the message are one commit. Without one only
the message is completed here.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from typing import Any, Protocol

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sparrow.bus.errors import SubscriptionError
from sparrow.bus.handlers.call_plan import CallPlan
from sparrow.bus.sql.database import BusDatabase

FinishMessage = Callable[[Connection], None]
"""Completes the message; raises `LeaseLost` if another worker holds it."""


class HandlerTransaction(Protocol):
    handle: Any
    """The session or connection for the handler, and for publishing inside it; None: there is none."""

    async def begin(self) -> None: ...

    async def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the handler."""
        ...

    async def commit(self, finish: FinishMessage) -> None: ...

    async def abandon(self) -> None:
        """Roll back. Called unless `commit` has returned."""
        ...


class AsyncSessionTransaction:
    def __init__(self, database: BusDatabase, plan: CallPlan, spare: list[AsyncSession]) -> None:
        """Take a session.

        `spare` holds closed sessions for reuse; creating one costs about as much as a statement.
        """
        self._spare = spare
        self._session = spare.pop() if spare else AsyncSession(database.async_engine, expire_on_commit=False)
        self._wants_connection = plan.wants_connection
        self.handle: Any = self._session

    async def begin(self) -> None:
        if self._wants_connection:
            self.handle = await self._session.connection()

    async def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await function(*args, **kwargs)

    async def commit(self, finish: FinishMessage) -> None:
        def work(session: Session) -> None:
            session.flush()
            finish(session.connection())
            session.commit()
            session.close()

        await self._session.run_sync(work)
        self._spare.append(self._session)

    async def abandon(self) -> None:
        await self._session.close()


class SessionTransaction:
    def __init__(self, database: BusDatabase, plan: CallPlan, pool: Pool) -> None:
        self._session = Session(database.engine, expire_on_commit=False)
        self._wants_connection = plan.wants_connection
        self._pool = pool
        self._calling: Future[Any] | None = None
        self.handle: Any = self._session

    async def begin(self) -> None:
        if self._wants_connection:
            self.handle = await run_in_pool(self._pool, self._session.connection)

    async def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # submit instead of run_in_executor: after a cancellation the thread may still run and use the session
        self._calling = _submit(self._pool, functools.partial(_called, function, args, kwargs))
        return checked_result(await asyncio.wrap_future(self._calling), function)

    async def commit(self, finish: FinishMessage) -> None:
        def work() -> None:
            self._session.flush()
            finish(self._session.connection())
            self._session.commit()
            self._session.close()

        await run_in_pool(self._pool, work)

    async def abandon(self) -> None:
        calling = self._calling
        if calling is not None and not calling.done():
            calling.add_done_callback(lambda _: self._session.close())  # the thread that still uses it closes it
            return
        await run_in_pool(self._pool, self._session.close)


class NoTransaction:
    """The handler runs without a transaction of the bus: its side effects happen at least once."""

    def __init__(self, database: BusDatabase, plan: CallPlan, pool: Pool | None) -> None:
        self._database, self._pool, self._is_async = database, pool, plan.is_async
        self.handle: Any = None

    async def begin(self) -> None: ...

    async def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._is_async:
            return await function(*args, **kwargs)
        assert self._pool is not None
        return checked_result(
            await run_in_pool(self._pool, functools.partial(_called, function, args, kwargs)), function
        )

    async def commit(self, finish: FinishMessage) -> None:
        await self._database.run(finish)

    async def abandon(self) -> None: ...


class NoTransactionInProcess(NoTransaction):
    """The handler runs in another process, without a transaction of the bus."""

    async def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self._pool is not None
        return await asyncio.wrap_future(self._pool.submit(_called, function, args, kwargs))


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except StopIteration as error:  # a future cannot carry it: its caller would wait forever
        raise RuntimeError("the handler raised StopIteration") from error


def checked_result(result: Any, function: Callable[..., Any]) -> Any:
    """Return the result of a blocking handler; raise if it is an awaitable, because then nothing has run yet."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise SubscriptionError(
            f"{function!r} looks like a plain function and returned a coroutine: wrap async handlers in async functions"
        )
    return result


async def run_in_pool(pool: Pool, function: Callable[[], Any]) -> Any:
    return await asyncio.wrap_future(_submit(pool, function))


def _submit(pool: Pool, function: Callable[[], Any]) -> Future[Any]:
    """Submit with the caller's context, so that a bound transaction stays bound."""
    return pool.submit(contextvars.copy_context().run, function)
