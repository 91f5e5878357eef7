"""Handlers that examine many queues, without keeping other requests waiting.

After every few queues other requests have a turn. A scan of more than a few queues waits until no other such scan runs:
each iteration of the event loop then does a part of one of them, however many clients ask. A scan of few queues does
not wait, so that wide ones of others do not delay it.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

QUEUES_A_TURN = 256
"""Queues that a scan examines in one iteration of the event loop; a queue takes 5 to 20 µs."""
QUEUES_AT_ONCE = 32
"""Queues that a scan examines without a turn. Many such scans may start in the same iteration."""


class QueueScan:
    """One scan: `async with QueueScan(broker.scan_turn) as scan`, and `await scan.next_queue()` for each queue."""

    def __init__(self, turn: asyncio.Lock) -> None:
        """Create a scan; `turn` is shared by all scans of a broker."""
        self._turn, self._queues, self._has_turn = turn, 0, False

    async def __aenter__(self) -> QueueScan:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._has_turn:
            self._turn.release()

    async def next_queue(self) -> None:
        """Count a queue; let others have a turn, if it is time."""
        self._queues += 1
        if self._queues % (QUEUES_A_TURN if self._has_turn else QUEUES_AT_ONCE):
            return
        await self.take_turn()
        await asyncio.sleep(0)

    async def take_turn(self) -> None:
        """Wait until no other wide scan runs. A scan that is known to be wide calls it before the first queue."""
        if not self._has_turn:
            await self._turn.acquire()
            self._has_turn = True
