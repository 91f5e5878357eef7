"""Messages that wait for their time: in topics of their own, and in `Timers` by the time they are due.

1. A message waits in the log, in a queue of the schedule topic (a level) or of the timer topic (any time). What is due
   when is a view of those queues: read again at a start, from the oldest message that was still waiting.
2. Delivering appends it to the topic and queue it was meant for. After each round a mark says up to which time all are
   delivered; it lies behind what was delivered, so a crash can repeat the last round but never lose one.
3. A message due when it arrives is not delayed at all, so what waits is always due after the newest mark.
4. Long waits outlive retention: what has waited for half of it is written once more at the log's head.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from sparrow.broker.timers import Ints, Timers
from sparrow.broker.topics import TIMER_TOPIC
from sparrow.model.delay import DELAY_LEVELS_MS, SCHEDULE_TOPIC
from sparrow.model.errors import IllegalMessage, Refused, SparrowError
from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.store.log import LogStore
from sparrow.store.spi import Appended, Slice
from sparrow.wire import columns, record
from sparrow.wire.properties import value_of, with_values

log = logging.getLogger(__name__)

DELIVERED_MARK = "timers.delivered_ms"
_SOURCES = (*(Queue(SCHEDULE_TOPIC, number) for number in range(len(DELAY_LEVELS_MS))), Queue(TIMER_TOPIC, 0))
"""A reference is the number of one of these, and an offset in it."""
_TIMER_SOURCE = len(_SOURCES) - 1
_OFFSET_BITS = 56
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1

ROUND_MAX = 2_000
"""Deliveries between two looks at the clock: other requests are served in between."""
TURN_MAX_S = 1.0
"""The loop looks at least so often: a wall clock that was set shall not make it sleep for long."""
POINTERS_INTERVAL_S = 10.0
_LOADED_AT_ONCE = 65_536
_CANCELLED = "TIMER_DEL_UNIQKEY"


class Delay:
    """All waiting messages of a broker."""

    def __init__(self, store: LogStore, *, horizon_ms: int, rolls_after_ms: int, now_ms: Callable[[], int]) -> None:
        self._store, self._now_ms = store, now_ms
        self._horizon_ms, self._rolls_after_ms = horizon_ms, rolls_after_ms
        self._timers = Timers()
        self._cancelled: dict[str, int] = {}
        """Unique ids that shall not be delivered, and when they would have been."""
        self._delivered_ms = 0
        self._something_sooner = asyncio.Event()
        self._next_look_ms = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def count(self) -> int:
        """Messages that are waiting."""
        return self._timers.count

    # -- taking messages in -------------------------------------------------------------------------------------------

    def put_level(self, queue: Queue, draft: Draft, level: int) -> Appended:
        """Store a message for that queue, to be delivered after a level's time; levels above the highest are that."""
        source = min(level, len(DELAY_LEVELS_MS)) - 1
        appended = self._put(source, queue, draft, {})
        self._add(appended.store_ms + DELAY_LEVELS_MS[source], source, appended.offset)
        return appended

    def put_at(self, queue: Queue, draft: Draft, due_ms: int) -> Appended | None:
        """Store a message to be delivered at a time. None: that time has come already."""
        delay_ms = due_ms - max(self._now_ms(), self._delivered_ms)
        if delay_ms <= 0:
            return None
        if delay_ms > self._horizon_ms:
            raise IllegalMessage(
                f"a delay of {delay_ms} ms is beyond the horizon of {self._horizon_ms} ms: raise that, or send later"
            )
        appended = self._put(_TIMER_SOURCE, queue, draft, {"TIMER_OUT_MS": str(due_ms)})
        self._add(max(due_ms, appended.store_ms), _TIMER_SOURCE, appended.offset)
        return appended

    def cancel(self, topic: str, unique_key: str, due_ms: int) -> bool:
        """Whether it can still be stopped; then it is."""
        if due_ms <= self._delivered_ms:
            return False
        words = with_values(b"", {_CANCELLED: f"{topic}+{unique_key}", "TIMER_OUT_MS": str(due_ms)})
        self._store.append_now(_SOURCES[_TIMER_SOURCE], (Draft(body=b"cancelled", properties=words),))
        self._cancelled[f"{topic}+{unique_key}"] = due_ms
        return True

    @staticmethod
    def handle_of(topic: str, broker_name: str, due_ms: int, unique_key: str) -> str:
        """By which a sender may take a timed message back (RocketMQ 5.3's recall handle)."""
        return base64.urlsafe_b64encode(f"v1 {topic} {broker_name} {due_ms} {unique_key}".encode()).decode()

    def _put(self, source: int, queue: Queue, draft: Draft, more: dict[str, str]) -> Appended:
        words = {"REAL_TOPIC": queue.topic, "REAL_QID": str(queue.id), **more}
        draft.properties = with_values(draft.properties, words)
        return self._store.append_now(_SOURCES[source], (draft,))

    def _add(self, due_ms: int, source: int, offset: int) -> None:
        self._timers.add(due_ms, source << _OFFSET_BITS | offset)
        if due_ms < self._next_look_ms:
            self._something_sooner.set()

    # -- starting and stopping ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find out what was waiting, and go on delivering."""
        self._delivered_ms = await self._store.mark(DELIVERED_MARK) or 0
        for source in range(len(_SOURCES)):
            await self._load(source)
        self._tasks = [asyncio.create_task(self._keep_delivering()), asyncio.create_task(self._keep_pointers())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _load(self, source: int) -> None:
        queue = _SOURCES[source]
        offset = max(await self._store.mark(_pointer(source)) or 0, (await self._store.bounds(queue)).first)
        while True:
            found = await self._store.read(queue, offset, count_max=_LOADED_AT_ONCE, bytes_max=16 << 20)
            if not isinstance(found, Slice):
                return
            if found.sizes:
                self._take_in(source, found)
            offset = found.next_offset

    def _take_in(self, source: int, found: Slice) -> None:
        wanted = ["queue_offset", "store_timestamp", "properties_raw"]
        batch = columns.decode(found.tobytes(), sizes=found.sizes, columns=wanted)
        offsets = batch.column(0).to_numpy()
        stored_ms = batch.column(1).cast("int64").to_numpy() // 1000
        if source == _TIMER_SOURCE:
            due_ms, is_timer = self._timer_times(batch.column(2), stored_ms)
            offsets, due_ms = offsets[is_timer], due_ms[is_timer]
        else:
            due_ms = stored_ms + DELAY_LEVELS_MS[source]
        is_waiting = due_ms > self._delivered_ms
        self._timers.add_many(due_ms[is_waiting], offsets[is_waiting] | source << _OFFSET_BITS)

    def _timer_times(self, raw: object, stored_ms: Ints) -> tuple[Ints, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        """When each is due, and which are messages at all: cancellations lie among them."""
        from sparrow.wire.column_properties import Properties

        properties = Properties(raw)
        text = properties.get("TIMER_OUT_MS").to_pylist()
        cancelled = properties.get(_CANCELLED).to_pylist()
        due_ms = np.array([int(each) if each and each.isdigit() else 0 for each in text], np.int64)
        for name, due in zip(cancelled, due_ms.tolist(), strict=True):
            if name is not None:
                self._cancelled[name] = due
        return np.maximum(due_ms, stored_ms), np.array([name is None for name in cancelled], np.bool_)

    # -- delivering ---------------------------------------------------------------------------------------------------

    async def _keep_delivering(self) -> None:
        while True:
            try:
                await self._deliver_due()
            except SparrowError as error:  # a full disk, say: they stay in the log, and are tried again
                log.error("delayed messages not delivered", extra={"why": str(error)})
                await asyncio.sleep(TURN_MAX_S)
                continue
            now_ms = self._now_ms()
            next_ms = self._timers.next_due_ms()
            self._next_look_ms = min(next_ms if next_ms is not None else now_ms + 3_600_000, now_ms + 3_600_000)
            wait_s = min(max(0.0, (self._next_look_ms - now_ms) / 1000), TURN_MAX_S)
            self._something_sooner.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._something_sooner.wait()
            except TimeoutError:
                pass

    async def _deliver_due(self) -> None:
        """Everything that is due by now, in rounds."""
        while True:
            now_ms = self._now_ms()
            taken = self._timers.take(now_ms, ROUND_MAX)
            if not taken:
                return
            try:
                await self._deliver([reference for _, reference in taken])
            except BaseException:
                for due_ms, reference in taken:
                    self._timers.add(due_ms, reference)
                raise
            next_ms = self._timers.next_due_ms()
            self._delivered_ms = now_ms if next_ms is None or next_ms > now_ms else next_ms - 1
            self._store.put_mark_now(DELIVERED_MARK, self._delivered_ms)
            self._forget_cancelled()

    async def _deliver(self, references: Sequence[int]) -> None:
        """One append a stretch of messages for one queue, in the order in which they are due."""
        found = await self._records(references)
        drafts: list[Draft] = []
        target: Queue | None = None
        for reference in references:
            raw = found.get(reference)
            if raw is None:
                continue  # retention, or damage, took it
            draft = record.redraft(raw)
            queue = self._target(draft)
            if queue is None:
                continue
            if drafts and queue != target:
                self._append(target, drafts)
                drafts = []
            target = queue
            drafts.append(draft)
        self._append(target, drafts)

    def _target(self, draft: Draft) -> Queue | None:
        topic, number = value_of(draft.properties, b"REAL_TOPIC"), value_of(draft.properties, b"REAL_QID")
        if topic is None or number is None or not number.isdigit():
            return None
        if self._cancelled and self._cancelled.get(f"{topic}+{value_of(draft.properties, b'UNIQ_KEY')}") == _due_of(
            draft
        ):
            return None
        return Queue(topic, int(number))

    def _append(self, queue: Queue | None, drafts: list[Draft]) -> None:
        if queue is None or not drafts:
            return
        try:
            self._store.append_now(queue, drafts)
        except Refused as refusal:  # the topic is gone, say: nobody could ever get them
            log.warning("delayed messages dropped", extra={"queue": str(queue), "why": str(refusal)})

    async def _records(self, references: Iterable[int]) -> dict[int, memoryview]:
        """The stored records, read in stretches where they lie side by side."""
        found: dict[int, memoryview] = {}
        ordered = sorted(references)
        at = 0
        while at < len(ordered):
            stop = at + 1
            while stop < len(ordered) and ordered[stop] == ordered[stop - 1] + 1:
                stop += 1
            source, offset = ordered[at] >> _OFFSET_BITS, ordered[at] & _OFFSET_MASK
            end = offset + stop - at
            while offset < end:
                slice_ = await self._store.read(_SOURCES[source], offset, count_max=end - offset, bytes_max=4 << 20)
                if not isinstance(slice_, Slice):
                    break
                for raw in _cut(slice_):
                    place = record.place_of(raw)
                    found[source << _OFFSET_BITS | place] = raw
                offset = slice_.next_offset
            at = stop
        return found

    def _forget_cancelled(self) -> None:
        if self._cancelled:
            self._cancelled = {name: due for name, due in self._cancelled.items() if due > self._delivered_ms}

    # -- how far back a restart must read -----------------------------------------------------------------------------

    async def _keep_pointers(self) -> None:
        while True:
            await asyncio.sleep(POINTERS_INTERVAL_S)
            try:
                await self._roll()
                await self.save_pointers()
            except SparrowError as error:
                log.error("timers not kept up", extra={"why": str(error)})

    async def save_pointers(self) -> None:
        """Say of each source where the oldest message lies that still waits."""
        references = self._timers.references()
        sources, offsets = references >> _OFFSET_BITS, references & _OFFSET_MASK
        for source, queue in enumerate(_SOURCES):
            of_source = offsets[sources == source]
            first = int(of_source.min()) if len(of_source) else int((await self._store.bounds(queue)).end)
            if await self._store.mark(_pointer(source)) != first:
                await self._store.put_mark(_pointer(source), first)

    async def _roll(self) -> None:
        """Write messages that have waited long once more at the head, before retention takes them."""
        queue = _SOURCES[_TIMER_SOURCE]
        limit = await self._store.offset_at(queue, self._now_ms() - self._rolls_after_ms)
        references = self._timers.references()
        old = references[(references >> _OFFSET_BITS == _TIMER_SOURCE) & (references & _OFFSET_MASK < limit)].tolist()
        for start in range(0, len(old), ROUND_MAX):
            some = old[start : start + ROUND_MAX]
            for raw in (await self._records(some)).values():
                draft = record.redraft(raw)
                times = int(value_of(draft.properties, b"TIMER_ROLL_TIMES") or 0) + 1
                draft.properties = with_values(draft.properties, {"TIMER_ROLL_TIMES": str(times)})
                appended = self._store.append_now(queue, (draft,))
                self._add(_due_of(draft), _TIMER_SOURCE, appended.offset)
            self._timers.drop(some)


def _pointer(source: int) -> str:
    return f"timers.from.{source}"


def _due_of(draft: Draft) -> int:
    return int(value_of(draft.properties, b"TIMER_OUT_MS") or 0)


def _cut(found: Slice) -> Iterable[memoryview]:
    """The records one by one. Those of a run lie end to end."""
    data, at = memoryview(found.tobytes()), 0
    for size in found.sizes:
        yield data[at : at + size]
        at += size
