"""Cancelled deliveries of a log store: which messages are dropped when they are due."""

from __future__ import annotations

import heapq

import numpy as np

from sparrow.broker.delay.timer_wheel import Ints


class Cancellations:
    """Cancelled messages by topic and unique key, until their delivery time has passed."""

    def __init__(self) -> None:
        self._records: dict[str, tuple[int, int]] = {}
        """`topic+key` of cancelled messages, their delivery time, and the reference of the cancellation."""
        self._order: list[tuple[int, str]] = []

    def __bool__(self) -> bool:
        return bool(self._records)

    def add(self, name: str, due_ms: int, reference: int) -> None:
        """Cancel a delivery. `name` is `topic+key`, as RocketMQ writes it."""
        self._records[name] = due_ms, reference
        heapq.heappush(self._order, (due_ms, name))

    def has(self, topic: str, unique_key: str | None, due_ms: int) -> bool:
        """Return whether this delivery is cancelled. Retries of a message have one key and different times."""
        found = self._records.get(f"{topic}+{unique_key}")
        return found is not None and found[0] == due_ms

    def references(self) -> Ints:
        """Return the references of the cancellations, which a restart has to read again."""
        return np.array([reference for _, reference in self._records.values()], np.int64)

    def forget_until(self, delivered_ms: int) -> None:
        """Forget the deliveries whose time has passed."""
        while self._order and self._order[0][0] <= delivered_ms:
            due_ms, name = heapq.heappop(self._order)
            if name in self._records and self._records[name][0] == due_ms:
                del self._records[name]
