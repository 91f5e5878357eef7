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
import time
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from sparrow.bus.errors import SubscriptionError
from sparrow.bus.handlers.call_plan import CallPlan
from sparrow.bus.sql.connections.database import BusDatabase

KEEP_S = 1.0
"""How long a session keeps its connection from one message to the next."""

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


class SpareSession(NamedTuple):
    """A session that waits for its next message, bound to a connection of its own."""

    session: AsyncSession
    until_s: float
    """Then the connection goes back to the pool, which may replace it."""


class AsyncSessionTransaction:
    """A transaction of an AsyncSession. Session and connection serve one message after the other."""

    def __init__(self, database: BusDatabase, plan: CallPlan, spare: list[SpareSession]) -> None:
        """Prepare a transaction; `spare` holds sessions for reuse.

        A new session costs about as much as a statement, and so does taking a connection from the pool.
        """
        self._engine, self._spare = database.async_engine, spare
        self._wants_connection = plan.wants_connection
        self._session: AsyncSession | None = None
        self._keep_until_s = 0.0
        self.handle: Any = None

    async def begin(self) -> None:
        if self._spare and time.monotonic() >= self._spare[-1].until_s:
            await close_sessions(self._spare)
        if self._spare:
            session, self._keep_until_s = self._spare.pop()
        elif self._has_room():
            session = AsyncSession(await self._engine.connect(), expire_on_commit=False)
            self._keep_until_s = time.monotonic() + KEEP_S
        else:
            session = AsyncSession(self._engine, expire_on_commit=False)
        self._session = session
        self.handle = await session.connection() if self._wants_connection else session

    def _has_room(self) -> bool:
        """Return whether a session may keep its connection: then the pool still has some for all others."""
        pool = self._engine.pool
        return isinstance(pool, QueuePool) and pool.checkedout() < pool.size()

    async def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await function(*args, **kwargs)

    async def commit(self, finish: FinishMessage) -> None:
        def work(session: Session) -> None:
            session.flush()
            finish(session.connection())
            session.commit()
            session.close()

        assert self._session is not None
        await self._session.run_sync(work)
        if time.monotonic() < self._keep_until_s:
            self._spare.append(SpareSession(self._session, self._keep_until_s))
        else:
            await close_session(self._session)

    async def abandon(self) -> None:
        # The next attempt gets another connection. If this one was lost, so are the spare ones.
        if self._session is not None:
            await close_session(self._session)
        await close_sessions(self._spare)


async def close_sessions(spare: list[SpareSession]) -> None:
    """Close and remove sessions, and return their connections to the pool."""
    while spare:
        await close_session(spare.pop().session)


async def close_session(session: AsyncSession) -> None:
    try:
        await session.close()
    finally:
        if isinstance(session.bind, AsyncConnection):
            await session.bind.close()


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
