"""Snowflake ids for messages: 63 bits, unique, ascending in time, generated without coordination.

| bits | meaning |
| --- | --- |
| 41 | milliseconds since 2024 |
| 10 | worker number: leased while the bus runs (below `LEASED_WORKER_NUMBERS`), random otherwise |
| 12 | counter within the millisecond |
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable

EPOCH_MS = 1_704_067_200_000
WORKER_NUMBERS = 1024
LEASED_WORKER_NUMBERS = 512
"""Processes without a lease choose a random number from here on: a collision is unlikely, not impossible."""
_PER_MS = 4096


class SnowflakeGenerator:
    """Generates ids; safe in threads and after a fork, where the child chooses another worker number."""

    def __init__(self, worker: int | None = None, *, now_ms: Callable[[], int] | None = None) -> None:
        self._now_ms = now_ms or _now_ms
        self._lock = threading.Lock()
        self._last_ms, self._count = 0, 0
        self._pid = os.getpid()
        self.worker = self._drawn() if worker is None else worker

    def use(self, worker: int | None) -> None:
        """Use a leased worker number; None: the lease is over."""
        self.worker = self._drawn() if worker is None else worker

    def next(self) -> int:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.Lock()
            self.worker = self._drawn()
        with self._lock:
            now_ms = max(self._now_ms(), self._last_ms)  # an id is never repeated when the clock is set back
            if now_ms > self._last_ms:
                self._last_ms, self._count = now_ms, 0
            elif self._count == _PER_MS - 1:
                self._last_ms, self._count = now_ms + 1, 0  # ahead of the clock by a millisecond
            else:
                self._count += 1
            return (self._last_ms - EPOCH_MS) << 22 | self.worker << 12 | self._count

    @staticmethod
    def _drawn() -> int:
        return LEASED_WORKER_NUMBERS + secrets.randbelow(WORKER_NUMBERS - LEASED_WORKER_NUMBERS)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
