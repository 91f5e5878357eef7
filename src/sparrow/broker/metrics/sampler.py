"""Samples of what is too slow for a scrape: messages of every topic, the lag of every group, what waits, and the disk.

A sample is taken at an interval, in slices between which the event loop serves requests. A scrape shows the last
sample and its age.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Mapping

import msgspec

from sparrow.broker.context import Broker
from sparrow.broker.query.store_time import store_ms_at, store_ms_of
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import SparrowError
from sparrow.model.queue import Queue

log = logging.getLogger(__name__)

SLICE_S = 0.002
"""How long a sample is taken before the event loop gets a turn."""
LOG_READS_MAX, SQL_READS_MAX = 2_000, 100
"""Messages whose store time one sample reads: with more lagging queues, the ages of the others are left out."""


class GroupTopicLag(msgspec.Struct, frozen=True):
    """The lag of a group on a topic."""

    group: str
    topic: str
    lag: int
    in_flight: int
    lag_ms: int | None
    """The age of the oldest message that is not committed; 0 without lag, None if it was not read."""
    queueing_ms: int | None
    """The age of the oldest message that no consumer has; 0 if there is none, None if it was not read."""


class BrokerSample(msgspec.Struct, frozen=True):
    """What a sample found. What could not be read is None or missing."""

    taken_ms: int = 0
    duration_s: float = 0.0
    lags: tuple[GroupTopicLag, ...] = ()
    stored_messages: Mapping[str, int] = {}
    """By topic, without system topics."""
    half_messages: Mapping[str, int] = {}
    delayed_messages: int | None = None
    disk_used_ratio: float | None = None
    disk_free_bytes: int | None = None
    oldest_message_ms: int | None = None


class BrokerSampler:
    """Takes samples of one broker."""

    def __init__(self, broker: Broker, *, interval_ms: int) -> None:
        self._broker, self._interval_s = broker, interval_ms / 1000
        self._task: asyncio.Task[None] | None = None
        self._failures = LogIntervals()
        self._slice_end_s = 0.0
        self._reads_left = 0
        self.sample = BrokerSample()

    def start(self) -> None:
        """Start to take samples."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop to take samples."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            try:
                await self.take()
                if self._failures.end("sample"):
                    log.info("metrics are sampled again")
            except Exception as error:  # metrics must not end because a database is away
                if self._failures.is_due("sample", type(error)):
                    log.warning(
                        "metrics cannot be sampled: %(error)s; /metrics shows the last sample",
                        {"error": error},
                        exc_info=None if isinstance(error, SparrowError) else error,
                    )
            await asyncio.sleep(self._interval_s)

    async def take(self) -> BrokerSample:
        """Take a sample now."""
        broker, began_s = self._broker, time.perf_counter()
        self._reads_left = LOG_READS_MAX if broker.store.files is not None else SQL_READS_MAX
        self._slice_end_s = began_s + SLICE_S
        lags = await self._lags()
        stored = await self._stored_messages()
        half_messages = await broker.transactions.count_by_topic()
        delayed = await broker.delay.count_waiting()
        used_ratio, free_bytes, oldest_ms = await self._disk()
        self.sample = BrokerSample(
            taken_ms=broker.now_ms(),
            duration_s=time.perf_counter() - began_s,
            lags=lags,
            stored_messages=stored,
            half_messages=half_messages,
            delayed_messages=delayed,
            disk_used_ratio=used_ratio,
            disk_free_bytes=free_bytes,
            oldest_message_ms=oldest_ms,
        )
        return self.sample

    async def _disk(self) -> tuple[float | None, int | None, int | None]:
        files = self._broker.store.files
        if files is None:
            return None, None, None
        disk = await asyncio.to_thread(shutil.disk_usage, files.path)
        oldest = await self._broker.store.record_at(files.first_offset)
        return disk.used / (disk.used + disk.free), disk.free, None if oldest is None else store_ms_of(oldest)

    async def _stored_messages(self) -> dict[str, int]:
        topics, stored = self._broker.topics, {}
        for topic in topics:
            if topics.is_system(topic.name):
                continue
            queues = [Queue(topic.name, number) for number in range(topic.read_queues)]
            bounds = map(self._broker.store.bounds_nowait, queues)
            stored[topic.name] = sum(end - first for first, end in bounds)
            await self._pause()
        return stored

    # -- lag ----------------------------------------------------------------------------------------------------------

    async def _lags(self) -> tuple[GroupTopicLag, ...]:
        broker = self._broker
        popped = await self._popped()
        lags = []
        for (topic, group), committed in (await broker.store.offsets.all()).items():
            queues = broker.topics[topic].read_queues if topic in broker.topics else 0
            if queues and broker.groups.get(group) is not None:
                lags.append(await self._lag(group, topic, committed, queues, popped))
        return tuple(lags)

    async def _popped(self) -> dict[tuple[str, Queue], tuple[int, int]]:
        """Return the number of messages in flight, and the offset of the oldest, by group and queue."""
        popped: dict[tuple[str, Queue], tuple[int, int]] = {}
        for batch in self._broker.pop_state.in_flight:
            count, oldest = popped.get((batch.group, batch.queue), (0, batch.start))
            popped[batch.group, batch.queue] = count + batch.mask.bit_count(), min(oldest, batch.start)
            await self._pause()
        return popped

    async def _lag(
        self,
        group: str,
        topic: str,
        committed: Mapping[int, int],
        queues: int,
        popped: Mapping[tuple[str, Queue], tuple[int, int]],
    ) -> GroupTopicLag:
        broker = self._broker
        lag = in_flight = 0
        lag_times: list[int | None] = []
        queueing_times: list[int | None] = []
        for queue in (Queue(topic, number) for number in range(queues)):
            first, end = broker.store.bounds_nowait(queue)
            done = max(first, committed.get(queue.id, 0))
            next_offset = max(done, broker.positions.handed_out.get((group, queue), 0))
            popped_count, oldest = popped.get((group, queue), (0, done))
            if popped_count:
                # On a log store the committed offset is the position; on a database it is the ack floor.
                next_offset = max(next_offset, broker.pop_state.position(group, queue) or 0)
            next_offset = min(next_offset, end)
            ready = end - next_offset
            lag += max(end - done, ready + popped_count)
            in_flight += popped_count or max(0, next_offset - done)
            oldest = max(first, min(done, oldest))
            if oldest < end and (popped_count or done < end):
                lag_times.append(await self._stored_ms(queue, oldest))
            if ready > 0:
                is_same = next_offset == oldest and lag_times
                queueing_times.append(lag_times[-1] if is_same else await self._stored_ms(queue, next_offset))
            await self._pause()
        now_ms = broker.now_ms()
        return GroupTopicLag(group, topic, lag, in_flight, _age_ms(lag_times, now_ms), _age_ms(queueing_times, now_ms))

    async def _stored_ms(self, queue: Queue, offset: int) -> int | None:
        if self._reads_left <= 0:
            return None
        self._reads_left -= 1
        return await store_ms_at(self._broker.store, queue, offset)

    async def _pause(self) -> None:
        """Give the event loop a turn if this slice has lasted long enough."""
        if time.perf_counter() >= self._slice_end_s:
            await asyncio.sleep(0)
            self._slice_end_s = time.perf_counter() + SLICE_S


def _age_ms(stored_ms: list[int | None], now_ms: int) -> int | None:
    """Return the age of the oldest message; 0 if there is none, None if one of them is unknown."""
    known = [each for each in stored_ms if each is not None]
    if len(known) < len(stored_ms):
        return None
    return max(0, now_ms - min(known)) if known else 0
