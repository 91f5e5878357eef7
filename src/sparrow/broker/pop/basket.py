"""What one pop takes with it, and how the answer speaks of it."""

from __future__ import annotations

from collections.abc import Sequence

from sparrow.broker.pop import handles
from sparrow.broker.pop.inflight import Lot
from sparrow.broker.subscriptions import Filter
from sparrow.model.queue import Queue
from sparrow.wire.headers import PopMessage, Popped

ANSWER_BYTES = 256 * 1024
"""What an answer holds; more only if a single message is larger."""
REVIVE_QUEUE = 0
"""Ours has one queue; RocketMQ's has eight, and handles say which."""


class Basket:
    """Empty at first. `now_ms` becomes the time in its handles."""

    def __init__(self, request: PopMessage, wanted: Filter, now_ms: int) -> None:
        self.request, self.wanted, self.now_ms = request, wanted, now_ms
        self.room, self.room_bytes = request.messages_max, ANSWER_BYTES
        self.kept = 0
        """Places that the next queue must leave to lanes behind it."""
        self.records: list[bytes | memoryview] = []
        self.rest = 0
        """Messages left in the queues."""
        self.is_cut_short = False
        """There is more to look at, though nothing was found yet."""
        self.lots: list[Lot] = []
        self.runs: list[tuple[Queue, Sequence[int], int]] = []
        self.offsets: dict[Queue, int] = {}
        """How far the group gets in each queue."""
        self.starts: list[str] = []
        self.taken: list[str] = []
        self.counts: list[str] = []

    @property
    def count(self) -> int:
        return self.request.messages_max - self.room

    @property
    def free(self) -> int:
        """Places that the next queue may fill."""
        return self.room - self.kept

    @property
    def is_full(self) -> bool:
        return self.free <= 0 or self.room_bytes <= 0

    def header(self) -> Popped:
        return Popped(
            pop_ms=self.now_ms,
            invisible_ms=self.request.invisible_ms,
            revive_queue=handles.IN_ORDER if self.request.in_order else REVIVE_QUEUE,
            rest=self.rest,
            start_offsets=";".join(self.starts),
            message_offsets=";".join(self.taken),
            order_counts=";".join(self.counts) or None,
        )
