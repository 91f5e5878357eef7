"""The transaction a handler works in, which is also the one its message is finished in.

Three kinds, by what the handler asks for: an AsyncSession, a Session (in a thread), or nothing. In the first two the
handler's rows, what it publishes and the end of its message are one commit. In the third only the message is ours.
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
"""Writes the end of the message; raises `LeaseLost` when it is no longer ours to end."""


class HandlerTransaction(Protocol):
    handle: Any
    """What the handler is given, and what publishing inside it is bound to; None: nothing."""

    async def begin(self) -> None: ...

    async def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the handler."""
        ...

    async def commit(self, finish: FinishMessage) -> None: ...

    async def abandon(self) -> None:
        """Nothing of it happened. Called unless `commit` has returned."""
        ...


class AsyncSessionTransaction:
    def __init__(self, database: BusDatabase, plan: CallPlan, spare: list[AsyncSession]) -> None:
        """`spare`: sessions that are closed and as good as new; making one costs about as much as a statement."""
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
        # submit, not run_in_executor: what was cancelled here may still be running there, and owns the session
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
            calling.add_done_callback(lambda _: self._session.close())  # by the thread that still uses it
            return
        await run_in_pool(self._pool, self._session.close)


class NoTransaction:
    """The handler has no transaction of ours. What it does elsewhere happens at least once."""

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
    """The handler runs in a process of its own: it is given what can be sent there."""

    async def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self._pool is not None
        return await asyncio.wrap_future(self._pool.submit(_called, function, args, kwargs))


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except StopIteration as error:  # no future takes it: whoever waits for this one would wait for ever
        raise RuntimeError("the handler raised StopIteration") from error


def checked_result(result: Any, function: Callable[..., Any]) -> Any:
    """What a blocking handler returned. An awaitable means that nothing has run yet: that is no success."""
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
    """With the caller's context: what is bound here is bound there."""
    return pool.submit(contextvars.copy_context().run, function)
