"""Fairness between the priority lanes of a topic: detects starving lanes and plans each batch.

Lanes are only examined if lower ones may starve, and once a second, because that reads a record of each queue.
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

_EXAMINE_INTERVAL_MS = 1_000
_TRACKED_GROUPS_MAX = 10_000
"""(group, topic) pairs to remember. Clearing them only resets deficits."""


class _TrackedGroup:
    """A group on a topic."""

    __slots__ = ("deficits", "examined_ms", "starving")

    def __init__(self) -> None:
        self.examined_ms: int | None = None
        self.starving: Collection[Priority] = ()
        self.deficits: LaneDeficits = {}


class LaneFairness:
    def __init__(self, broker: Broker) -> None:
        self._store, self._topics, self._pop_state = broker.store, broker.topics, broker.pop_state
        self._starvation_ms = broker.settings.lane_starvation_ms
        self._tracked: dict[tuple[str, str], _TrackedGroup] = {}

    def next_plan(self, group: str, topic: str, *, slots: int, now_ms: int) -> LanePlan:
        """Return the plan for the group's next batch."""
        if not self._starvation_ms:
            return STRICT_PRIORITY
        tracked = self._tracked.get((group, topic))
        if tracked is None:
            if len(self._tracked) >= _TRACKED_GROUPS_MAX:
                self._tracked.clear()
            tracked = self._tracked[group, topic] = _TrackedGroup()
        if tracked.examined_ms is None or not 0 <= now_ms - tracked.examined_ms < _EXAMINE_INTERVAL_MS:
            tracked.examined_ms, tracked.starving = now_ms, self._starving(group, topic, slots, now_ms)
        if not tracked.starving:
            tracked.deficits = {}
            return STRICT_PRIORITY
        tracked.deficits = accrue_deficits(tracked.deficits, tracked.starving, slots=slots)
        chosen = plan_batch(tracked.deficits, slots=slots)
        # A reserved slot that its lane cannot fill would stay empty.
        reserved = {lane: min(count, self._waiting(group, topic, lane)) for lane, count in chosen.reserved.items()}
        return LanePlan(chosen.order, reserved)

    def record_taken(self, group: str, queue: Queue, count: int) -> None:
        tracked = self._tracked.get((group, queue.topic))
        if tracked is not None and tracked.deficits:
            tracked.deficits = repay_deficit(tracked.deficits, priority_of_queue(queue.id), count=count)

    def _starving(self, group: str, topic: str, slots: int, now_ms: int) -> list[Priority]:
        waiting = [self._waiting(group, topic, lane) for lane in Priority]
        long_ago_ms = now_ms - self._starvation_ms
        return [
            lane
            for lane in starvation_candidates(waiting, slots=slots)
            if any(self._waits_since(group, queue, long_ago_ms) for queue in self._queues(topic, lane))
        ]

    def _queues(self, topic: str, lane: Priority) -> list[Queue]:
        parts = write_queue_id(self._topics[topic].read_queues)
        return [Queue(topic, read_queue_id(part, lane)) for part in range(parts)]

    def _waiting(self, group: str, topic: str, lane: Priority) -> int:
        """Return the lag of the group in a lane."""
        count = 0
        for queue in self._queues(topic, lane):
            first, end = self._store.bounds_nowait(queue)
            count += max(0, end - max(self._pop_state.position(group, queue) or 0, first))
        return count

    def _waits_since(self, group: str, queue: Queue, time_ms: int) -> bool:
        """Return whether the group's next message was stored before a time."""
        first, end = self._store.bounds_nowait(queue)
        at = max(self._pop_state.position(group, queue) or 0, first)
        if at >= end:
            return False
        found = self._store.read_nowait(queue, at, count_max=1, bytes_max=1)
        if found is None:
            return True  # old enough to have left memory
        return isinstance(found, Slice) and bool(found.sizes) and store_ms_of(found.buffers[0]) < time_ms
