"""Whose turn it is among the lanes of a topic: what groups have waiting, and what they are owed.

Nobody looks unless lower lanes may starve, and then once a second: to look is to read a record of each queue.
"""

from __future__ import annotations

from collections.abc import Collection

from sparrow.broker.context import Broker
from sparrow.broker.pop.lane_deficits import (
    STRICT_PRIORITY,
    LaneDeficits,
    LanePlan,
    accrue_deficits,
    plan_batch,
    repay_deficit,
    starvation_candidates,
)
from sparrow.broker.query.store_time import store_ms_of
from sparrow.model.priority import Priority, priority_of_queue, read_queue_id, write_queue_id
from sparrow.model.queue import Queue
from sparrow.store.spi import Slice

_LOOK_MS = 1_000
_READERS_MAX = 10_000
"""Groups and topics to remember. What is forgotten is only who was owed how much."""


class _Reader:
    """A group on a topic."""

    __slots__ = ("deficits", "looked_ms", "starving")

    def __init__(self) -> None:
        self.looked_ms: int | None = None
        self.starving: Collection[Priority] = ()
        self.deficits: LaneDeficits = {}


class LaneFairness:
    def __init__(self, broker: Broker) -> None:
        self._store, self._topics, self._pop_state = broker.store, broker.topics, broker.pop_state
        self._starvation_ms = broker.settings.lane_starvation_ms
        self._readers: dict[tuple[str, str], _Reader] = {}

    def next_plan(self, group: str, topic: str, *, places: int, now_ms: int) -> LanePlan:
        """How the group's next batch is to be filled."""
        if not self._starvation_ms:
            return STRICT_PRIORITY
        reader = self._readers.get((group, topic))
        if reader is None:
            if len(self._readers) >= _READERS_MAX:
                self._readers.clear()
            reader = self._readers[group, topic] = _Reader()
        if reader.looked_ms is None or not 0 <= now_ms - reader.looked_ms < _LOOK_MS:
            reader.looked_ms, reader.starving = now_ms, self._starving(group, topic, places, now_ms)
        if not reader.starving:
            reader.deficits = {}
            return STRICT_PRIORITY
        reader.deficits = accrue_deficits(reader.deficits, reader.starving, places=places)
        chosen = plan_batch(reader.deficits, places=places)
        # A place reserved for what is not there would stay empty.
        reserved = {lane: min(count, self._waiting(group, topic, lane)) for lane, count in chosen.reserved.items()}
        return LanePlan(chosen.order, reserved)

    def record_taken(self, group: str, queue: Queue, count: int) -> None:
        reader = self._readers.get((group, queue.topic))
        if reader is not None and reader.deficits:
            reader.deficits = repay_deficit(reader.deficits, priority_of_queue(queue.id), count=count)

    def _starving(self, group: str, topic: str, places: int, now_ms: int) -> list[Priority]:
        waiting = [self._waiting(group, topic, lane) for lane in Priority]
        long_ago_ms = now_ms - self._starvation_ms
        return [
            lane
            for lane in starvation_candidates(waiting, places=places)
            if any(self._waits_since(group, queue, long_ago_ms) for queue in self._queues(topic, lane))
        ]

    def _queues(self, topic: str, lane: Priority) -> list[Queue]:
        parts = write_queue_id(self._topics[topic].read_queues)
        return [Queue(topic, read_queue_id(part, lane)) for part in range(parts)]

    def _waiting(self, group: str, topic: str, lane: Priority) -> int:
        """How many messages."""
        count = 0
        for queue in self._queues(topic, lane):
            first, end = self._store.bounds_nowait(queue)
            count += max(0, end - max(self._pop_state.position(group, queue) or 0, first))
        return count

    def _waits_since(self, group: str, queue: Queue, time_ms: int) -> bool:
        """Whether the group's next message was stored before that."""
        first, end = self._store.bounds_nowait(queue)
        at = max(self._pop_state.position(group, queue) or 0, first)
        if at >= end:
            return False
        found = self._store.read_nowait(queue, at, count_max=1, bytes_max=1)
        if found is None:
            return True  # so much has come since that it is on the disk only
        return isinstance(found, Slice) and bool(found.sizes) and store_ms_of(found.buffers[0]) < time_ms
