"""Delayed delivery on a log store: messages wait in topics of their own, and a timer wheel holds their delivery times.

1. The log is the source of truth (`timer_records`). The timer wheel is rebuilt from it at startup, from the oldest
   message that was still waiting.
2. Delivering appends the message to its destination. After each round a mark stores the time up to which everything is
   delivered. The mark follows the deliveries in the log, so a crash may repeat the last round but never loses one.
3. By the log's times, waiting messages are due after the newest mark. If a clock that was set back would break this,
   the mark is lowered first; then a restart may repeat messages, but loses none.
4. Delays may be longer than retention: after half the retention time a message is appended again at the log's end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sparrow.broker.delay import timer_records
from sparrow.broker.delay.cancellations import Cancellations
from sparrow.broker.delay.delay_queues import DELAY_QUEUES, TIMER_QUEUE_INDEX, is_due
from sparrow.broker.delay.timer_list import list_timers
from sparrow.broker.delay.timer_records import recorded_due_ms, timer_reference
from sparrow.broker.delay.timer_wheel import Ints, TimerWheel
from sparrow.broker.query.store_time import store_ms_of
from sparrow.log_intervals import LogIntervals
from sparrow.model.delay_levels import DELAY_LEVELS_MS
from sparrow.model.errors import Refused, SparrowError
from sparrow.model.message import Draft
from sparrow.model.protocol import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_CANCEL_KEY,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    PROPERTY_TIMER_ROLLED_FROM,
    PROPERTY_UNIQUE_KEY,
)
from sparrow.model.queue import Queue
from sparrow.store.log import LogStore
from sparrow.store.spi import AppendResult, Slice
from sparrow.wire import record
from sparrow.wire.bodies import DelayedMessages, ListDelayed
from sparrow.wire.properties import parse_whole_number, property_value, set_properties

log = logging.getLogger(__name__)

DELIVERED_MARK = "timers.delivered_ms"
ROCKETMQ_WHEEL_MARK = "timers.wheel_ms"
"""Where a directory was RocketMQ's: the time up to which its timer topic is delivered."""

DELIVERIES_PER_ROUND = 512
"""Deliveries between two checks of the clock. Other tasks run in between."""
_READ_PER_BATCH, _ROUND_BYTES, _APPEND_BYTES = 128, 8 << 20, 512 << 10
TICK_S = 0.005
"""Messages that are due within this time are delivered together."""
SLEEP_MAX_S = 1.0
"""The longest sleep, in case the wall clock is set."""
SAVE_INTERVAL_S = 10.0
ROLL_AFTER_MS_MIN, _ROLLED_PER_ROUND = 60_000, 20_000
_DUE_SOON_MS = 60_000
"""Messages that are due this soon are not appended again: they could become due between the copy and the removal."""
_NO_REFERENCES: Ints = np.empty(0, np.int64)


class LogDelayScheduler:
    """Delayed messages of a broker on a log store."""

    def __init__(self, store: LogStore, *, horizon_ms: int, roll_after_ms: int, now_ms: Callable[[], int]) -> None:
        self._store, self._now_ms = store, now_ms
        self._horizon_ms, self._rolls_after_ms = horizon_ms, max(roll_after_ms, ROLL_AFTER_MS_MIN)
        self._timers = TimerWheel()
        self._delivering = _NO_REFERENCES
        """References taken from the timer wheel and not delivered yet."""
        self._cancelled = Cancellations()
        self._startup_end = 0
        """The end of the log at startup."""
        self._delivered_ms = 0
        self._taken_ms = 0
        """Messages that are due by then may be in delivery."""
        self._earlier_due, self._failures = asyncio.Event(), LogIntervals()
        self._next_check_ms = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def count(self) -> int:
        """The number of waiting messages."""
        return self._timers.count + len(self._delivering)

    async def count_waiting(self) -> int:
        """Return the number of waiting messages."""
        return self.count

    async def list_waiting(self, request: ListDelayed) -> DelayedMessages:
        """Return waiting messages by delivery time, without those that are cancelled or in delivery."""
        return await list_timers(request, self._timers, self._cancelled, self._records)

    # -- scheduling ---------------------------------------------------------------------------------------------------

    def schedule_level(self, queue: Queue, draft: Draft, level: int) -> AppendResult:
        """Store a message that is due after the time of a delay level. Levels above the highest mean the highest."""
        source = min(level, len(DELAY_LEVELS_MS)) - 1
        delay_ms = DELAY_LEVELS_MS[source]
        appended = self._append_delayed(source, queue, draft, {})
        self._lower_mark_below(appended.store_ms + delay_ms)
        # The log's time never decreases. If the clock was set back, the delay counts from the clock.
        self._add(min(appended.store_ms, self._now_ms()) + delay_ms, source, appended)
        return appended

    def schedule_at(self, queue: Queue, draft: Draft, due_ms: int) -> AppendResult | None:
        """Store a message that is due at a time. Return None if that time has passed: the caller appends it."""
        cancelled = property_value(draft.properties, PROPERTY_TIMER_CANCEL_KEY)
        if is_due(due_ms, self._now_ms(), horizon_ms=self._horizon_ms, cancels=cancelled is not None):
            return None
        if cancelled is not None:  # how RocketMQ's clients before 5.3 cancel a message
            return self._cancel(cancelled if "+" in cancelled else f"{queue.topic}+{cancelled}", due_ms)
        self._lower_mark_below(due_ms)
        appended = self._append_delayed(TIMER_QUEUE_INDEX, queue, draft, {PROPERTY_TIMER_OUT_MS: str(due_ms)})
        self._add(due_ms, TIMER_QUEUE_INDEX, appended)
        return appended

    async def cancel(self, topic: str, unique_key: str, due_ms: int) -> AppendResult | None:
        """Cancel a delivery. Return None if the message is delivered already, or being delivered."""
        if due_ms <= max(self._now_ms(), self._taken_ms):
            return None
        return self._cancel(f"{topic}+{unique_key}", due_ms)

    def _append_delayed(self, source: int, queue: Queue, draft: Draft, extra: dict[str, str]) -> AppendResult:
        # Properties that only the broker sets are removed.
        reserved = {PROPERTY_TIMER_OUT_MS: "", PROPERTY_TIMER_CANCEL_KEY: "", PROPERTY_TIMER_ROLLED_FROM: ""}
        values = {**reserved, PROPERTY_REAL_TOPIC: queue.topic, PROPERTY_REAL_QUEUE_ID: str(queue.id), **extra}
        draft.properties = set_properties(draft.properties, values)
        return self._store.append_nowait(DELAY_QUEUES[source], (draft,))

    def _cancel(self, name: str, due_ms: int) -> AppendResult:
        values = set_properties(b"", {PROPERTY_TIMER_CANCEL_KEY: name, PROPERTY_TIMER_OUT_MS: str(due_ms)})
        appended = self._store.append_nowait(
            DELAY_QUEUES[TIMER_QUEUE_INDEX], (Draft(body=b"cancelled", properties=values),)
        )
        self._cancelled.add(name, due_ms, timer_reference(TIMER_QUEUE_INDEX, appended.physical_offsets[0]))
        return appended

    def _add(self, due_ms: int, source: int, appended: AppendResult) -> None:
        self._timers.add(due_ms, timer_reference(source, appended.physical_offsets[0]))
        if due_ms < self._next_check_ms:
            self._earlier_due.set()

    def _lower_mark_below(self, due_ms: int) -> None:
        if due_ms <= self._delivered_ms:
            self._delivered_ms = due_ms - 1
            self._store.marks.put_nowait(DELIVERED_MARK, self._delivered_ms)

    # -- starting and stopping ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the waiting messages, and start to deliver."""
        self._startup_end = self._store.written
        self._delivered_ms = await self._store.marks.get(DELIVERED_MARK) or 0
        wheel_ms = await self._store.marks.get(ROCKETMQ_WHEEL_MARK) or 0
        replaced = [_NO_REFERENCES]
        for source, queue in enumerate(DELAY_QUEUES):
            delivered_ms = self._delivered_ms if source != TIMER_QUEUE_INDEX else max(self._delivered_ms, wheel_ms)
            first = max(await self._store.marks.get(_pointer(source)) or 0, (await self._store.bounds(queue)).first)
            async for found in timer_records.load_timers(self._store, source, first):
                is_waiting = found.due_ms > delivered_ms
                due_ms = found.due_ms[is_waiting]
                if source != TIMER_QUEUE_INDEX:
                    due_ms = np.minimum(due_ms, self._now_ms() + DELAY_LEVELS_MS[source])  # as in `schedule_level`
                self._timers.add_many(due_ms, found.references[is_waiting])
                for name, due, reference in found.cancelled:
                    self._cancelled.add(name, due, reference)
                replaced.append(found.replaced)
        self._timers.drop(np.concatenate(replaced))
        self._cancelled.forget_until(self._delivered_ms)
        self._tasks = [asyncio.create_task(self._keep_delivering()), asyncio.create_task(self._keep_rolling())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.save_recovery_offsets()
        except SparrowError as error:  # the next start reads more than necessary
            log.warning("recovery offsets of delayed messages are not saved: %(error)s", {"error": error})

    def wake(self) -> None:
        """Check the clock now, because it was set."""
        self._earlier_due.set()

    # -- delivering ---------------------------------------------------------------------------------------------------

    async def _keep_delivering(self) -> None:
        while True:
            self._earlier_due.clear()
            try:
                is_stuck = await self._deliver_due()
            except Exception as error:  # a full disk, for instance: they stay in the log, and are retried
                if self._failures.is_due("deliver", type(error)):
                    log.error(
                        "delayed messages cannot be delivered: %(error)s; retrying",
                        {"error": error},
                        exc_info=_trace_unless_expected(error),
                    )
                await asyncio.sleep(SLEEP_MAX_S)
                continue
            if self._failures.end("deliver"):
                log.info("delayed messages are delivered again")
            now_ms = self._now_ms()
            next_ms = self._timers.next_due_ms(now_ms)
            self._next_check_ms = now_ms + 3_600_000 if next_ms is None else next_ms
            wait_s = min(max(TICK_S, (self._next_check_ms - now_ms) / 1000), SLEEP_MAX_S)
            if is_stuck:
                await asyncio.sleep(TICK_S)
                continue
            try:
                async with asyncio.timeout(wait_s):
                    await self._earlier_due.wait()
            except TimeoutError:
                pass

    async def _deliver_due(self) -> bool:
        """Deliver everything that is due, in rounds. Return True if some records are not readable yet."""
        while True:
            now_ms = self._now_ms()
            due_ms, references = self._timers.take(now_ms, DELIVERIES_PER_ROUND)
            if not len(references):
                return False
            self._delivering, self._taken_ms = references, max(self._taken_ms, now_ms)
            is_done = np.zeros(len(references), np.bool_)
            try:
                found, is_readable = await self._read(references)
                self._deliver(references.tolist(), found, is_done[:is_readable])
            finally:
                self._delivering = _NO_REFERENCES
                if not is_done.all():
                    self._timers.restore(due_ms[~is_done], references[~is_done])
            self._save_delivered(now_ms)
            if not is_readable:
                return True
            await asyncio.sleep(0)

    async def _read(self, references: Ints) -> tuple[dict[int, bytes], int]:
        """Read the records of the first references. Return them with their number, which their size limits."""
        found: dict[int, bytes] = {}
        # A message is delivered only when it is as safe as a visible one.
        visible_end = self._store.watermark(self._store.settings.visible_after)
        is_hidden = timer_records.physical_offsets_of(references) >= visible_end
        readable = int(np.argmax(is_hidden)) if is_hidden.any() else len(references)
        for start in range(0, readable, _READ_PER_BATCH):
            stop = min(start + _READ_PER_BATCH, readable)
            found |= await self._records(references[start:stop])
            if sum(map(len, found.values())) > _ROUND_BYTES:
                return found, stop
        return found, readable

    async def _records(self, references: Ints) -> dict[int, bytes]:
        """Read records. Recent ones are in memory; otherwise a thread reads all of them."""
        hot_from = max(self._startup_end, self._store.written - self._store.settings.hot_bytes)
        if int(timer_records.physical_offsets_of(references).min()) >= hot_from:
            return timer_records.read_records(self._store, references.tolist())
        return await asyncio.to_thread(timer_records.read_records, self._store, references.tolist())

    def _deliver(self, references: list[int], found: dict[int, bytes], is_done: npt.NDArray[np.bool_]) -> None:
        """Append messages, in order for each queue.

        `is_done` marks those that need no retry, even if a later append fails.
        """
        batches: dict[Queue, list[tuple[int, Draft]]] = {}
        for index in range(len(is_done)):
            raw = found.get(references[index])
            if raw is None:
                log.error("delayed message %(reference)s is lost or damaged", {"reference": references[index]})
            draft, queue = timer_records.parse_delayed(raw) if raw is not None else (None, None)
            if raw is None or draft is None or queue is None or self._is_cancelled(references[index], raw, queue.topic):
                is_done[index] = True
            else:
                batches.setdefault(queue, []).append((index, draft))
        for queue, batch in batches.items():
            start, batch_bytes = 0, 0
            for at, (_, draft) in enumerate(batch):
                batch_bytes += len(draft.body) + len(draft.properties)
                if batch_bytes > _APPEND_BYTES or at == len(batch) - 1:
                    self._append(queue, [draft for _, draft in batch[start : at + 1]])
                    is_done[[index for index, _ in batch[start : at + 1]]] = True
                    start, batch_bytes = at + 1, 0

    def _append(self, queue: Queue, drafts: list[Draft]) -> None:
        try:
            self._store.append_nowait(queue, drafts)
        except Refused as refusal:
            if len(drafts) > 1:  # one message may be refused, or only their number: append them one by one
                for draft in drafts:
                    self._append(queue, [draft])
            else:  # the topic is deleted, for instance: the message has no destination
                log.warning("a delayed message for %(queue)s is dropped: %(error)s", {"queue": queue, "error": refusal})

    def _is_cancelled(self, reference: int, raw: bytes, topic: str) -> bool:
        if not self._cancelled:
            return False
        properties = record.properties_of(raw)
        due_ms = recorded_due_ms(reference, properties, store_ms_of(raw))
        return self._cancelled.has(topic, property_value(properties, PROPERTY_UNIQUE_KEY), due_ms)

    def _save_delivered(self, now_ms: int) -> None:
        next_ms = self._timers.next_due_ms(now_ms)
        delivered_ms = now_ms if next_ms is None or next_ms > now_ms else next_ms - 1
        if delivered_ms > self._delivered_ms:
            self._delivered_ms = delivered_ms
            self._store.marks.put_nowait(DELIVERED_MARK, delivered_ms)
            self._cancelled.forget_until(delivered_ms)

    # -- recovery offsets ---------------------------------------------------------------------------------------------

    async def _keep_rolling(self) -> None:
        while True:
            await asyncio.sleep(SAVE_INTERVAL_S)
            try:
                await self.roll()
                await self.save_recovery_offsets()
                if self._failures.end("roll"):
                    log.info("delayed messages are rolled, and their recovery offsets saved, again")
            except Exception as error:
                if self._failures.is_due("roll", type(error)):
                    log.error(
                        "delayed messages cannot be rolled, or their recovery offsets not saved: %(error)s; retrying",
                        {"error": error},
                        exc_info=_trace_unless_expected(error),
                    )

    async def save_recovery_offsets(self) -> None:
        """Store, for each source, the offset of the oldest waiting message."""
        for source, first in enumerate(await self._oldest()):
            if await self._store.marks.get(_pointer(source)) != first:
                await self._store.marks.put(_pointer(source), first)

    async def _oldest(self) -> list[int]:
        """Return, for each source, the offset of the oldest message or cancellation that a restart has to read.

        The end of the queue if there is none.
        """
        # In this order and without awaiting: messages that are stored later come after these ends.
        bounds = [self._store.bounds_nowait(queue) for queue in DELAY_QUEUES]
        waiting = self._timers.all_timers()[1]
        references = np.concatenate((waiting, self._delivering, self._cancelled.references()))
        return await asyncio.to_thread(timer_records.oldest_queue_offsets, self._store, references, bounds)

    async def roll(self) -> None:
        """Append long-waiting messages again at the end of the log, so that retention can delete the old records."""
        limit_ms = self._now_ms() - self._rolls_after_ms
        for source, first in enumerate(await self._oldest()):
            limit = await self._store.offset_at(DELAY_QUEUES[source], limit_ms)
            if first >= limit:
                continue
            found = await self._store.read(DELAY_QUEUES[source], limit, count_max=1)
            records = list(timer_records.copy_records(found)) if isinstance(found, Slice) else []
            end = record.decode(records[0], expand=False).physical_offset if records else self._store.written
            while await self._roll_some(source, end):
                pass

    async def _roll_some(self, source: int, end: int) -> bool:
        """Roll the messages of a source before a physical offset. Return whether more may be left."""
        due_ms, references = self._timers.all_timers()
        is_old = (references >= timer_reference(source, 0)) & (references < timer_reference(source, end))
        rows = np.flatnonzero(is_old & (due_ms > self._now_ms() + _DUE_SOON_MS))
        rows = rows[np.argsort(references[rows])][:_ROLLED_PER_ROUND]
        for start in range(0, len(rows), _READ_PER_BATCH):
            some = rows[start : start + _READ_PER_BATCH]
            found = await self._records(references[some])
            for due, reference in zip(due_ms[some].tolist(), references[some].tolist(), strict=True):
                if reference in found:
                    self._reappend(due, reference, found[reference])
            await asyncio.sleep(0)
        self._timers.drop(references[rows])
        return len(rows) == _ROLLED_PER_ROUND

    def _reappend(self, due_ms: int, reference: int, raw: bytes) -> None:
        draft, queue = timer_records.parse_delayed(raw)
        if draft is None or queue is None or self._is_cancelled(reference, raw, queue.topic):
            return  # a restart may not read the cancellation any more
        times = (parse_whole_number(property_value(draft.properties, PROPERTY_TIMER_ROLL_TIMES)) or 0) + 1
        values = {
            PROPERTY_TIMER_OUT_MS: str(due_ms),
            PROPERTY_TIMER_ROLL_TIMES: str(times),
            PROPERTY_TIMER_ROLLED_FROM: str(reference),
        }
        self._lower_mark_below(due_ms)
        appended = self._append_delayed(TIMER_QUEUE_INDEX, queue, draft, values)
        self._add(due_ms, TIMER_QUEUE_INDEX, appended)


def _pointer(source: int) -> str:
    return f"timers.from.{source}"


def _trace_unless_expected(error: Exception) -> Exception | None:
    """Return the exception if it is unexpected, so that it is logged with a traceback."""
    return None if isinstance(error, SparrowError) else error
