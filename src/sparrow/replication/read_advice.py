"""Advice in the pull answers of a replica: whether a consumer pulls next from the leader or from a follower.

1. The leader advises a follower if it is busy, or if the consumer is so far behind that its messages are not in memory
   any more; and only a follower that is there and shows at least what the consumer has just got.
2. A queue keeps its follower, as long as the same ones are there.
3. A follower keeps its consumers for the same reasons, and while there is no leader; otherwise it sends them back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from zlib import crc32

from sparrow.broker.consume.busy_detector import HOLD_S, SAMPLE_S, WINDOW_S, BusyDetector
from sparrow.broker.consume.references import may_hold_references
from sparrow.model.protocol import MASTER_BROKER_ID
from sparrow.model.queue import Queue
from sparrow.replication.node import ReplicaNode
from sparrow.settings import ReplicationSettings
from sparrow.store.spi import ReadResult, Slice
from sparrow.wire.record import PHYSICAL_OFFSET_POSITION

log = logging.getLogger(__name__)


class ReadAdvisor:
    """Measures the load of this replica, and advises consumers."""

    def __init__(self, node: ReplicaNode, settings: ReplicationSettings, *, own_id: int) -> None:
        """`own_id`: the id in routes of this replica while it follows."""
        self._node, self._own_id = node, own_id
        self._is_enabled = settings.slave_read_enable
        self._memory_bytes = settings.memory_read_ratio * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limit_ms = settings.leader_busy_delay_ms if settings.slave_read_enable else 0
        self._detector = BusyDetector(limit_ms / 1000, window_s=WINDOW_S, hold_s=HOLD_S) if limit_ms else None
        self._task: asyncio.Task[None] | None = None
        node.fetch_server.is_busy = self.is_busy

    def is_busy(self) -> bool:
        """Return whether this replica's event loop is busy."""
        return self._detector is not None and self._detector.is_busy

    async def start(self) -> None:
        if self._detector is not None:
            self._task = asyncio.create_task(self._measure(self._detector))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _measure(self, detector: BusyDetector) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s, was_busy = loop.time() + SAMPLE_S, detector.is_busy
            await asyncio.sleep(SAMPLE_S)
            if detector.add(loop.time(), max(0.0, loop.time() - due_s)) != was_busy:
                log.info("this replica is %(state)s", {"state": "not busy any more" if was_busy else "busy"})

    def advise_at_leader(self, queue: Queue, found: ReadResult | None) -> int:
        """Return the id of the broker to which the next pull should go, after what the leader has found."""
        end = end_of(queue, found) if self._is_enabled else None
        if end is None or not (self.is_busy() or self._is_beyond_memory(end)):
            return MASTER_BROKER_ID
        followers = self._node.followers_with(end)
        return followers[(crc32(queue.topic.encode()) + queue.id) % len(followers)] if followers else MASTER_BROKER_ID

    def advise_at_follower(self, queue: Queue, found: ReadResult | None) -> int:
        """Return the id of the broker to which the next pull should go, after what a follower has found."""
        if not self._node.knows_leader:
            return self._own_id
        end = end_of(queue, found) if self._is_enabled else None
        stays = end is not None and (self._node.is_leader_busy or self._is_beyond_memory(end))
        return self._own_id if stays else MASTER_BROKER_ID

    def _is_beyond_memory(self, end: int) -> bool:
        return self._node.store.written - end > self._memory_bytes


def end_of(queue: Queue, found: ReadResult | None) -> int | None:
    """Return where the last record that was found ends in the log; None if there is none."""
    # What a reference stands for lies elsewhere in the log.
    if not isinstance(found, Slice) or not found.sizes or may_hold_references(queue.topic):
        return None
    last, size = found.buffers[-1], found.sizes[-1]
    at = len(last) - size + PHYSICAL_OFFSET_POSITION
    return int.from_bytes(last[at : at + 8], "big") + size
