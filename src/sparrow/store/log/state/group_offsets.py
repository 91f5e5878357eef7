"""Committed offsets of a log store: the `GroupOffsets` of the store interface."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from sparrow.model.errors import Refused, UnknownTopic
from sparrow.model.queue import Queue, QueueOffset
from sparrow.model.topic import validate_group_name
from sparrow.store.log.state.state_store import StateStore


class LogGroupOffsets:
    """Offsets take effect at once; `StateStore.flush_offsets` appends the changed ones to the log together."""

    def __init__(
        self, state: StateStore, lock: threading.RLock, wait_durable: Callable[[int], Awaitable[None]]
    ) -> None:
        """Create it. `wait_durable` waits until the log is as safe up to an offset as the policy promises."""
        self._state, self._tables, self._lock, self._wait_durable = state, state.tables, lock, wait_durable

    async def committed(self, group: str, queue: Queue) -> QueueOffset | None:
        return self.committed_nowait(group, queue)

    def committed_nowait(self, group: str, queue: Queue) -> QueueOffset | None:
        offset = self._tables.offsets.get((queue.topic, group), {}).get(queue.id)
        return None if offset is None else QueueOffset(offset)

    async def commit(self, group: str, queue: Queue, offset: int) -> QueueOffset | None:
        return self.commit_nowait(group, queue, offset)

    def commit_nowait(self, group: str, queue: Queue, offset: int) -> QueueOffset | None:
        """Commit an offset and return the previous one. It reaches the log within `offset_flush_interval_ms`."""
        tables = self._tables
        if queue.topic not in tables.topics:
            raise UnknownTopic(queue.topic)
        if offset < 0:
            raise Refused(f"{offset} is no offset: they start at 0")
        if (queue.topic, group) not in tables.offsets:
            validate_group_name(group)
        with self._lock:
            offsets = tables.offsets.setdefault((queue.topic, group), {})
            previous = offsets.get(queue.id)
            if previous != offset:
                offsets[queue.id] = offset
                tables.unflushed_offsets.add((queue.topic, group))
        return None if previous is None else QueueOffset(previous)

    async def commit_if(self, group: str, queue: Queue, offset: int, *, expected: int | None) -> bool:
        if self.committed_nowait(group, queue) != expected:
            return False
        self.commit_nowait(group, queue, offset)
        await self._wait_durable(self._state.flush_offsets())
        return True

    async def all(self) -> Mapping[tuple[str, str], Mapping[int, QueueOffset]]:
        with self._lock:  # another thread may be deleting a topic
            copies = {key: dict(offsets) for key, offsets in self._tables.offsets.items()}
        return cast("dict[tuple[str, str], dict[int, QueueOffset]]", copies)

    def of_group(self, group: str) -> dict[str, dict[int, int]]:
        """Return a copy of a group's offsets: topic to queue id to the offset to be read next."""
        with self._lock:
            return {topic: dict(at) for (topic, name), at in self._tables.offsets.items() if name == group}

    def record_at(self, group: str, topic: str) -> int:
        """Return the physical offset of the newest state record with the group's offsets of a topic; -1 if none.

        Later commits are not in that record.
        """
        return self._tables.offsets_record_at(topic, group)
