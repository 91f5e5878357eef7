"""Concurrent sends with order per key and a limit of bytes in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from sparrow.client.aio.produce.memory_budget import MemoryBudget


class OrderedSends:
    """Runs sends with the same key one after the other, others concurrently. After a failure nothing more is sent."""

    def __init__(self, bytes_max: int) -> None:
        self._budget = MemoryBudget(bytes_max)
        self._last: dict[Hashable, asyncio.Task[None]] = {}
        self._failure: BaseException | None = None

    async def submit(self, order_key: Hashable, size: int, send: Callable[[], Awaitable[object]]) -> None:
        """Start a send after the previous one with this key. Return as soon as it fits the limit of bytes."""
        await self._budget.acquire(size)
        if self._failure is not None:
            self._budget.release(size)
            raise self._failure
        self._last[order_key] = asyncio.create_task(self._send_after(self._last.get(order_key), size, send))

    async def _send_after(
        self, before: asyncio.Task[None] | None, size: int, send: Callable[[], Awaitable[object]]
    ) -> None:
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
        """Wait until all sends are done; raise the first failure."""
        await asyncio.gather(*self._last.values())
        if self._failure is not None:
            raise self._failure

    async def abandon(self) -> None:
        """Cancel all sends."""
        self._failure = self._failure or asyncio.CancelledError()
        tasks = list(self._last.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
