"""How much a producer may have on its way: whoever wants more waits, or is told to.

Those who wait are served in the order in which they came. Something larger than the whole allowance goes when nothing
else does.
"""

from __future__ import annotations

import asyncio
from collections import deque


class MemoryBudget:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_acquire(self, size: int) -> bool:
        """Whether there was room; nobody who waits is overtaken."""
        if self._waiting or (self.taken + size > self.bytes_max and self.taken):
            return False
        self.taken += size
        return True

    async def take(self, size: int) -> None:
        if self.try_acquire(size):
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(size)  # it was granted in the moment we were cancelled
            else:
                self._waiting.remove((size, future))
                self._grant()
            raise

    def give(self, size: int) -> None:
        self.taken -= size
        assert self.taken >= 0
        if self._waiting:
            self._grant()

    def _grant(self) -> None:
        while self._waiting:
            size, future = self._waiting[0]
            if self.taken + size > self.bytes_max and self.taken:
                return
            self._waiting.popleft()
            self.taken += size
            future.set_result(None)
