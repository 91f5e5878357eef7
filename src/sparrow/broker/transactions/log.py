"""Transactional messages on a log store: half messages, commit and rollback, and check-backs for unfinished ones.

1. A half message is unfinished until an op record contains its offset in the half topic.
2. A commit appends the message to its destination, and then the op record. A finished transaction stays finished: a
   second request for it, or one of another group, changes nothing.
3. A half message older than the timeout is checked back a limited number of times. Then it is moved to a topic for
   inspection.
4. The unfinished transactions are rebuilt from both topics. Op records with another tag store the number of checks. Now
   and then a summary lists all unfinished ones, and a restart reads both topics from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from sparrow.broker.catalog.topics import TopicCatalog
from sparrow.broker.clients.registry import ClientRegistry
from sparrow.broker.delay.timer_records import copy_records
from sparrow.broker.metrics.event_counters import EventCounters
from sparrow.broker.transactions.check_back import TransactionCheckBack
from sparrow.broker.transactions.half_messages import (
    CHECKED_TAG,
    FINISHED_TAG,
    HALF_QUEUE,
    OP_QUEUE,
    HalfMessage,
    apply_op_record,
    half_message_of,
)
from sparrow.broker.transactions.log_half_list import list_half_messages
from sparrow.broker.transactions.spi import EndedTransaction, EndOutcome, PendingEnd, TransactionNotEnded
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import ProtocolError, Refused, SparrowError
from sparrow.model.message import Draft
from sparrow.model.protocol import (
    CHECK_LIMIT_TOPIC,
    PROPERTY_CHECK_TIMES,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    TRANSACTION_GROUP,
)
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.settings import BrokerSettings
from sparrow.store.log import LogStore
from sparrow.store.spi import AppendResult, Moved, Slice
from sparrow.wire import record
from sparrow.wire.bodies import HalfMessages, ListHalfMessages
from sparrow.wire.headers import EndTransaction
from sparrow.wire.properties import set_properties
from sparrow.wire.record import TRANSACTION_COMMITTED, TRANSACTION_ROLLED_BACK, TRANSACTION_TYPE_MASK

log = logging.getLogger(__name__)

HALF_MARK, OP_MARK = "transactions.half", "transactions.op"
_RECORDS_PER_READ = 4096
_CHECKS_PER_YIELD = 200
_OFFSETS_PER_RECORD = 20_000
_SUMMARY_AFTER_RECORDS = 1_000
"""The minimum number of op records between two summaries."""
_EXPIRES_SOON_RATIO = 0.9


class LogTransactionCoordinator:
    """All unfinished transactions of a broker."""

    def __init__(
        self,
        store: LogStore,
        topics: TopicCatalog,
        clients: ClientRegistry,
        settings: BrokerSettings,
        *,
        now_ms: Callable[[], int],
        events: EventCounters | None = None,
    ) -> None:
        self._store, self._topics, self._settings = store, topics, settings
        self._now_ms, self._events = now_ms, events or EventCounters()
        self._halves: dict[int, HalfMessage] = {}
        """By offset in the half queue."""
        self._unwritten: list[int] = []
        """Finished half messages whose op record could not be written."""
        self._check_back = TransactionCheckBack(clients, settings.name)
        self._task: asyncio.Task[None] | None = None
        self._failures = LogIntervals()

    @property
    def count(self) -> int:
        return len(self._halves)

    async def count_by_topic(self) -> Mapping[str, int]:
        """Return the number of half messages that wait for their end, by topic."""
        return Counter(half.topic for half in self._halves.values())

    async def list_waiting(self, request: ListHalfMessages) -> HalfMessages:
        """Return half messages that wait for their end, the oldest first."""
        return await list_half_messages(
            request,
            self._halves,
            read=self._record,
            next_check_ms=self._next_check_ms,
            checks_max=self._settings.transaction_checks_max,
        )

    # -- half messages, commit and rollback ---------------------------------------------------------------------------

    def append_half(self, queue: Queue, draft: Draft) -> AppendResult:
        """Store a half message. Consumers see it once its producer has committed it."""
        values = {PROPERTY_REAL_TOPIC: queue.topic, PROPERTY_REAL_QUEUE_ID: str(queue.id), PROPERTY_CHECK_TIMES: ""}
        draft.properties = set_properties(draft.properties, values)
        draft.sys_flag &= ~TRANSACTION_TYPE_MASK
        half = half_message_of(draft.properties)
        appended = self._store.append_nowait(HALF_QUEUE, (draft,))
        half.physical_offset, half.stored_ms = appended.physical_offsets[0], appended.store_ms
        self._halves[appended.offset] = half
        return appended

    def end(self, request: EndTransaction, *, may_publish: Callable[[str], bool] = lambda topic: True) -> PendingEnd:
        """Commit or roll back, at once if the half message is still in memory."""
        if request.verdict not in (TRANSACTION_COMMITTED, TRANSACTION_ROLLED_BACK):
            return EndedTransaction(EndOutcome.UNDECIDED)
        half = self._halves.get(request.half_queue_offset)
        if half is None or not may_publish(half.topic):
            return EndedTransaction(EndOutcome.NOT_FOUND)
        if half.physical_offset != request.half_physical_offset:
            raise TransactionNotEnded(f"there is no half message at physical offset {request.half_physical_offset}")
        if not half.group or half.group != request.group:
            raise TransactionNotEnded(f"it was not started by group {request.group!r}")
        raw = self._record_in_memory(request.half_queue_offset, half)
        return self._end_later(request, half) if raw is None else self._end(request, half, raw)

    async def _end_later(self, request: EndTransaction, half: HalfMessage) -> EndedTransaction:
        return self._end(request, half, await self._record(request.half_queue_offset, half))

    def _end(self, request: EndTransaction, half: HalfMessage, raw: bytes) -> EndedTransaction:
        offset = request.half_queue_offset
        if offset not in self._halves:  # another request has ended it while this one waited for its record
            return EndedTransaction(EndOutcome.NOT_FOUND)
        draft = record.draft_from_record(raw)
        duration_ms = self._now_ms() - half.stored_ms
        if request.verdict == TRANSACTION_COMMITTED:
            ended = EndedTransaction(EndOutcome.COMMITTED, self._commit(half, draft))
            self._events.count_commit(half.topic, duration_ms)
        else:
            ended = EndedTransaction(EndOutcome.ROLLED_BACK)
            self._events.count_rollback(half.topic, duration_ms)
        self._finish(offset)
        return ended

    def _record_in_memory(self, offset: int, half: HalfMessage) -> bytes | None:
        """Return the stored half message; None: it must be read from disk."""
        found = self._store.read_nowait(HALF_QUEUE, offset, count_max=1)
        if found is None:
            return None
        return self._checked(half, bytes(found.buffers[0]) if isinstance(found, Slice) and found.sizes else None)

    async def _record(self, offset: int, half: HalfMessage) -> bytes:
        """Return the stored half message. Most are still in memory."""
        raw = self._record_in_memory(offset, half)
        if raw is None:
            stored = await self._store.record_at(half.physical_offset)
            raw = self._checked(half, None if stored is None else bytes(stored))
        return raw

    def _checked(self, half: HalfMessage, raw: bytes | None) -> bytes:
        if raw is None or record.physical_offset_of(raw) != half.physical_offset:
            raise TransactionNotEnded("its half message cannot be read, or not yet")
        return raw

    def _commit(self, half: HalfMessage, draft: Draft) -> AppendResult:
        if not half.topic or half.queue_id is None:
            raise TransactionNotEnded("its half message has no destination")
        draft.sys_flag = draft.sys_flag & ~TRANSACTION_TYPE_MASK | TRANSACTION_COMMITTED
        draft.prepared_offset = half.physical_offset
        return self._store.append_nowait(Queue(half.topic, half.queue_id), (draft,))

    def _finish(self, offset: int) -> None:
        """Mark a transaction as finished, even if the op record cannot be written now."""
        del self._halves[offset]
        self._unwritten.append(offset)
        try:
            self._append_finished()
        except SparrowError as error:
            if self._failures.is_due("op record", type(error)):
                log.error(
                    "the op record of transaction %(half_offset)s cannot be written: %(error)s; retrying",
                    {"half_offset": offset, "error": error},
                )

    def _append_finished(self) -> None:
        while self._unwritten:
            some = self._unwritten[:_OFFSETS_PER_RECORD]
            self._append_op(",".join(map(str, some)), FINISHED_TAG)
            del self._unwritten[: len(some)]

    def _append_op(self, body: str, tag: bytes) -> AppendResult:
        return self._store.append_nowait(OP_QUEUE, (Draft(body=body.encode(), properties=tag, born_ms=self._now_ms()),))

    # -- starting and stopping ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the unfinished transactions, and start to check back."""
        await self._load()
        self._task = asyncio.create_task(self._keep_checking())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            try:
                self._append_finished()
                await self.write_summary(at_once=True)
            except SparrowError as error:  # the next start reads more than necessary
                log.warning(
                    "the summary of transactions is not written: %(error)s; the next start reads more", {"error": error}
                )

    async def _load(self) -> None:
        finished: set[int] = set()
        checked: dict[int, int] = {}
        async for raw in self._records(OP_QUEUE, await self._begin(OP_MARK, OP_QUEUE)):
            apply_op_record(raw, finished, checked)
        begin = await self._begin(HALF_MARK, HALF_QUEUE)
        for offset in sorted(checked.keys() - finished):
            if offset < begin:
                await self._reload_half(offset)
        async for raw in self._records(HALF_QUEUE, begin):
            if record.queue_offset_of(raw) not in finished:
                self._load_half(raw)
        for offset, half in self._halves.items():
            half.checks = max(half.checks, checked.get(offset, 0))
            if half.checks:  # the time of the last check is unknown: assume now
                half.next_check_ms = self._now_ms() + self._settings.transaction_check_interval_ms

    async def _begin(self, mark: str, queue: Queue) -> int:
        marked = await self._store.marks.get(mark)
        return marked if marked is not None else await self._store.offsets.committed(TRANSACTION_GROUP, queue) or 0

    async def _reload_half(self, offset: int) -> None:
        """Load a half message that the last summary lists."""
        found = await self._store.read(HALF_QUEUE, offset, count_max=1)
        if isinstance(found, Slice):
            for raw in copy_records(found):
                if record.queue_offset_of(raw) == offset:
                    self._load_half(raw)

    def _load_half(self, raw: memoryview) -> None:
        try:
            message = record.decode(raw, verify_crc=False, expand=False)
            half = half_message_of(record.properties_of(raw))
        except ProtocolError as cause:
            log.error(
                "the half message at queue offset %(offset)s cannot be decoded: %(error)s; it is skipped",
                {"offset": record.queue_offset_of(raw), "error": cause},
            )
            return
        half.physical_offset, half.stored_ms = message.physical_offset, message.store_ms
        self._halves[message.queue_offset] = half

    async def _records(self, queue: Queue, offset: int) -> AsyncIterator[memoryview]:
        offset = max(offset, (await self._store.bounds(queue)).first)
        while True:
            found = await self._store.read(queue, offset, count_max=_RECORDS_PER_READ, bytes_max=8 << 20)
            if isinstance(found, Slice):
                for raw in copy_records(found):
                    yield raw
                offset = found.next_offset
            elif isinstance(found, Moved) and found.to > offset:
                offset = found.to
            else:
                return

    # -- check-back ---------------------------------------------------------------------------------------------------

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(self._settings.transaction_scan_ms / 1000)
            try:
                self._append_finished()
                await self.check_overdue()
                await self.write_summary()
                if self._failures.end("check"):
                    log.info("transactions are checked back again")
                self._failures.end("op record")
            except Exception as error:
                if self._failures.is_due("check", type(error)):
                    log.error(
                        "transactions cannot be checked back: %(error)s; retrying",
                        {"error": error},
                        exc_info=None if isinstance(error, SparrowError) else error,
                    )

    async def check_overdue(self) -> None:
        """Check back with the producers of overdue half messages."""
        now_ms = self._now_ms()
        checked: list[tuple[int, int]] = []
        try:
            for number, (offset, half) in enumerate(list(self._halves.items())):
                if number % _CHECKS_PER_YIELD == 0:
                    await asyncio.sleep(0)  # let other tasks run
                is_old = self._expires_soon(half, now_ms)
                if (now_ms < self._next_check_ms(half) and not is_old) or offset not in self._halves:
                    continue
                try:
                    if half.checks < self._settings.transaction_checks_max and not is_old:
                        half.checks += 1  # also without an online producer, so that every transaction ends at some time
                        half.next_check_ms = now_ms + self._settings.transaction_check_interval_ms
                        checked.append((offset, half.checks))
                        await self._check(offset, half)
                    else:
                        await self._give_up(offset, half)
                except (Refused, ProtocolError) as error:  # continue with the others
                    log.warning(
                        "transaction %(half_offset)s cannot be checked back: %(error)s; retrying in %(retry_ms)s ms",
                        {
                            "half_offset": offset,
                            "error": error,
                            "retry_ms": self._settings.transaction_check_interval_ms,
                        },
                    )
                    half.next_check_ms = now_ms + self._settings.transaction_check_interval_ms
        finally:
            self._append_checked(each for each in checked if each[0] in self._halves)

    def _next_check_ms(self, half: HalfMessage) -> int:
        timeout_ms = half.immunity_ms if half.immunity_ms is not None else self._settings.transaction_timeout_ms
        return max(half.stored_ms + timeout_ms, half.next_check_ms)

    def _expires_soon(self, half: HalfMessage, now_ms: int) -> bool:
        """Return whether retention will delete the half message soon, whatever its immunity time."""
        retention_ms = self._store.settings.retention_hours * 3_600_000
        return retention_ms > 0 and now_ms - half.stored_ms > _EXPIRES_SOON_RATIO * retention_ms

    def _append_checked(self, checked: Iterable[tuple[int, int]]) -> int | None:
        """Append the numbers of checks. Return the offset of the first record, if any."""
        values = [f"{offset}:{checks}" for offset, checks in checked]
        first = None
        for at in range(0, len(values), _OFFSETS_PER_RECORD):
            appended = self._append_op(",".join(values[at : at + _OFFSETS_PER_RECORD]), CHECKED_TAG)
            first = appended.offset if first is None else first
        return first

    async def _check(self, offset: int, half: HalfMessage) -> None:
        message = record.decode(await self._record(offset, half), verify_crc=False, expand=False)
        self._check_back.check(message, half_offset=offset, checks=half.checks)

    async def _give_up(self, offset: int, half: HalfMessage) -> None:
        """Roll back a transaction, and keep its message in a topic for inspection."""
        try:
            draft = record.draft_from_record(await self._record(offset, half))
        except TransactionNotEnded:
            if half.physical_offset >= self._store.watermark(self._store.settings.visible_after):
                raise  # it exists, but is not visible yet
            log.error(
                "the half message of transaction %(half_offset)s is lost: retention deleted it, or it is damaged",
                {"half_offset": offset},
            )
            self._finish(offset)  # deleted by retention, or damaged
            return
        if CHECK_LIMIT_TOPIC not in self._topics:
            await self._topics.put(Topic(name=CHECK_LIMIT_TOPIC, read_queues=1, write_queues=1))
        if offset not in self._halves:
            return
        draft.properties = set_properties(draft.properties, {PROPERTY_CHECK_TIMES: str(half.checks)})
        self._store.append_nowait(Queue(CHECK_LIMIT_TOPIC, 0), (draft,))
        self._finish(offset)
        log.warning(
            "transaction %(half_offset)s is rolled back after %(checks)s checks without an answer; its message is in"
            " topic %(topic)s",
            {"half_offset": offset, "checks": half.checks, "topic": CHECK_LIMIT_TOPIC},
        )

    # -- recovery -----------------------------------------------------------------------------------------------------

    async def write_summary(self, *, at_once: bool = False) -> None:
        """Write a summary of all unfinished transactions, so that a restart reads nothing before it."""
        begin = await self._store.marks.get(OP_MARK) or 0
        new = self._store.bounds_nowait(OP_QUEUE).end - begin
        if self._unwritten or new <= 1 or (not at_once and new < max(_SUMMARY_AFTER_RECORDS, len(self._halves) // 4)):
            return
        # No await from here on. The half mark is first: with the old op mark, a restart still finds this summary. Half
        # messages that are not visible yet cannot be finished, and are read from the half mark on.
        end = self._store.bounds_nowait(HALF_QUEUE).end
        first = self._append_checked((offset, half.checks) for offset, half in self._halves.items() if offset < end)
        self._store.marks.put_nowait(HALF_MARK, end)
        self._store.marks.put_nowait(OP_MARK, self._store.bounds_nowait(OP_QUEUE).end if first is None else first)
