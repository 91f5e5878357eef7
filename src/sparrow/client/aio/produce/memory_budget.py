"""The memory budget of a producer: limits unacknowledged bytes.

A sender waits for memory (`acquire`), or takes it only if it is free (`try_acquire`). Waiting senders are served in
order. A message larger than the whole budget is admitted when nothing else is.
"""

from __future__ import annotations

import asyncio
from collections import deque


class MemoryBudget:
    """Bytes that may be unacknowledged at a time."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.lost_count = 0
        """Messages that were cancelled before they were stored."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_acquire(self, size: int) -> bool:
        """Acquire memory if it is free and no sender waits; return whether it was."""
        if self._waiting or (self.used_bytes + size > self.bytes_max and self.used_bytes):
            return False
        self.used_bytes += size
        return True

    async def acquire(self, size: int) -> None:
        """Wait until the memory is free, and acquire it."""
        if self.try_acquire(size):
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release(size)  # it was granted just before the cancellation
            else:
                self._waiting.remove((size, future))
                self._grant()
            raise

    def release(self, size: int, *, is_lost: bool = False) -> None:
        """Release memory, and admit the senders that wait for it. `is_lost`: the message was cancelled."""
        self.used_bytes -= size
        self.lost_count += is_lost
        assert self.used_bytes >= 0
        if self._waiting:
            self._grant()

    def _grant(self) -> None:
        while self._waiting:
            size, future = self._waiting[0]
            if self.used_bytes + size > self.bytes_max and self.used_bytes:
                return
            self._waiting.popleft()
            self.used_bytes += size
            future.set_result(None)
