"""The interface of delayed messages, implemented for log stores (`log`) and databases (`sql`)."""

from __future__ import annotations

from typing import Protocol

from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.store.spi import AppendResult, PendingAppend
from sparrow.wire.bodies import DelayedMessages, ListDelayed

SCANNED_MAX = 2_000
"""Delayed messages that one request for a list may read."""


class DelayScheduler(Protocol):
    """Stores delayed messages and appends each to its queue when it is due."""

    def schedule_level(self, queue: Queue, draft: Draft, level: int) -> PendingAppend:
        """Store a message that is due after the time of a delay level. Levels above the highest mean the highest."""
        ...

    def schedule_at(self, queue: Queue, draft: Draft, due_ms: int) -> PendingAppend | None:
        """Store a message that is due at a time. Return None if that time has passed: the caller appends it."""
        ...

    async def cancel(self, topic: str, unique_key: str, due_ms: int) -> AppendResult | None:
        """Cancel a delivery. Return None if the message is delivered already, or being delivered."""
        ...

    async def count_waiting(self) -> int:
        """Return the number of messages that wait for their delivery time."""
        ...

    async def list_waiting(self, request: ListDelayed) -> DelayedMessages:
        """Return waiting messages by delivery time, without those in delivery. At most `SCANNED_MAX` are read."""
        ...
