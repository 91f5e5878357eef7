"""Things on their way to brokers: in order along each order_key, side by side otherwise, and never too much at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from sparrow.client.aio.produce.memory_budget import MemoryBudget


class OrderedSends:
    """After the first failure nothing more is sent, and everybody is told of it."""

    def __init__(self, bytes_max: int) -> None:
        self._budget = MemoryBudget(bytes_max)
        self._last: dict[Hashable, asyncio.Task[None]] = {}
        self._failure: BaseException | None = None

    async def submit(self, order_key: Hashable, size: int, send: Callable[[], Awaitable[object]]) -> None:
        """Send it once what was posted before to the order_key is there. Returns as soon as there is room for it."""
        await self._budget.acquire(size)
        if self._failure is not None:
            self._budget.release(size)
            raise self._failure
        self._last[order_key] = asyncio.create_task(self._sent(self._last.get(order_key), size, send))

    async def _sent(self, before: asyncio.Task[None] | None, size: int, send: Callable[[], Awaitable[object]]) -> None:
        try:
            if before is not None:
                await before
            if self._failure is None:
                await send()
        except Exception as failure:
            self._failure = self._failure or failure
        finally:
            self._budget.release(size)

    async def finish(self) -> None:
        """Everything has arrived when this returns."""
        await asyncio.gather(*self._last.values())
        if self._failure is not None:
            raise self._failure

    async def abandon(self) -> None:
        """Nothing more goes out."""
        self._failure = self._failure or asyncio.CancelledError()
        tasks = list(self._last.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
