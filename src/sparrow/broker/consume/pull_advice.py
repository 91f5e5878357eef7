"""Advice in pull answers: which of the brokers on one database a client pulls from next.

1. Clients pull from the leader. While the leader is busy, its answers advise the other brokers, a fixed one for each
   queue, and the answers of these advise themselves. Clients that follow advice (RocketMQ's and Sparrow's) so spread
   their pulls; all other requests still go to the leader.
2. Busy means: the event loop executes a timer late (`busy_detector`), by more than `leader_busy_delay_ms`.
3. The leader publishes its state as a mark with the epoch of its lease, so that the state ends with the lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from zlib import crc32

from sparrow.broker.consume.busy_detector import HOLD_S, SAMPLE_S, WINDOW_S, BusyDetector
from sparrow.broker.leadership import SEAT_PREFIX
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import SparrowError
from sparrow.model.queue import Queue
from sparrow.store.spi import ReadResult
from sparrow.store.sql.drivers.errors import LockConflict
from sparrow.store.sql.engine import SqlStore

log = logging.getLogger(__name__)

BUSY_MARK = "leader:busy"
PUBLISH_S = 1.0
"""How often the leader looks for followers, and followers for the leader's state."""


class PullAdvisor:
    """Measures this broker's event loop, exchanges the leader's state through the database, and gives advice."""

    def __init__(self, store: SqlStore) -> None:
        limit_ms = store.settings.leader_busy_delay_ms
        self._store = store
        self._detector = BusyDetector(limit_ms / 1000, window_s=WINDOW_S, hold_s=HOLD_S) if limit_ms else None
        self.broker_id = 0
        """This broker's number; 0 leads."""
        self._followers: list[int] = []
        """The numbers of the other brokers, while this broker leads and is busy."""
        self._is_leader_busy = False
        """Whether another broker leads and is busy."""
        self._published = 0
        self._task: asyncio.Task[None] | None = None
        self._failures = LogIntervals()

    def advised_broker_id(self, queue: Queue, _found: ReadResult | None = None) -> int:
        """Return the number of the broker that the next pull of this queue should go to."""
        if self.broker_id:
            return self.broker_id if self._is_leader_busy else 0
        followers = self._followers
        return followers[(crc32(queue.topic.encode()) + queue.id) % len(followers)] if followers else 0

    async def start(self) -> None:
        if self._detector is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(self._detector))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, detector: BusyDetector) -> None:
        loop = asyncio.get_running_loop()
        published_at = 0.0
        while True:
            due_s = loop.time() + SAMPLE_S
            await asyncio.sleep(SAMPLE_S)
            detector.add(loop.time(), max(0.0, loop.time() - due_s))
            if loop.time() - published_at < PUBLISH_S:
                continue
            published_at = loop.time()
            try:
                await self.exchange(is_busy=detector.is_busy)
                self._failures.end("exchange")
            except (SparrowError, LockConflict) as error:
                if self._failures.is_due("exchange", type(error)):
                    log.warning("the leader's load cannot be exchanged: %(error)s; retrying", {"error": error})
            except Exception as bug:  # the loop must continue: pulls would follow outdated advice
                if self._failures.is_due("exchange", type(bug)):
                    log.error("the leader's load cannot be exchanged because of a bug; retrying", exc_info=bug)

    async def exchange(self, *, is_busy: bool) -> None:
        """Publish this leader's state and find the followers; as a follower, read the leader's state."""
        epoch = self._store.epoch
        if self.broker_id:
            self._followers, self._published = [], 0
            self._is_leader_busy = await self._store.marks.get(BUSY_MARK) == epoch
            return
        self._is_leader_busy = False
        names = await self._store.leases.names_of_others(SEAT_PREFIX) if is_busy else []
        self._log_change(sorted(int(name.removeprefix(SEAT_PREFIX)) for name in names))
        published = epoch if self._followers else 0
        if published != self._published:
            await self._store.marks.put(BUSY_MARK, published)
            self._published = published

    def _log_change(self, followers: list[int]) -> None:
        if bool(followers) != bool(self._followers):
            what = "is busy: pulls are advised to go to" if followers else "is not busy any more: pulls come back from"
            numbers = ", ".join(map(str, followers or self._followers))
            log.info("the leader %(state)s the brokers %(numbers)s", {"state": what, "numbers": numbers})
        self._followers = followers
