"""Transactional messages: stored out of sight first, then committed or rolled back, and asked after if nobody says.

1. A half message lies in the half topic until an op record names its offset there: then it is finished.
2. Committing appends the message to its real queue and then the op record. What was finished once stays finished: a
   second word on it, or a stranger's, changes nothing.
3. What is unfinished is a view of both topics, read again at a start from where the oldest unfinished half lies.
4. A half older than the timeout is asked after, at most so many times; then it is set aside for inspection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import msgspec

from sparrow.broker.members import Member, Members
from sparrow.broker.topics import CHECKED_OUT_TOPIC, HALF_TOPIC, OP_TOPIC, Topics
from sparrow.model.errors import Refused, SparrowError
from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.net.channel import Channel
from sparrow.settings import BrokerSettings
from sparrow.store.log import LogStore
from sparrow.store.spi import Appended, Slice
from sparrow.wire import record
from sparrow.wire.codes import Code
from sparrow.wire.headers import CheckTransaction, EndTransaction
from sparrow.wire.ids import format_offset_id
from sparrow.wire.properties import value_of, with_values
from sparrow.wire.record import COMMITTED, ROLLED_BACK, TRANSACTION_MASK

log = logging.getLogger(__name__)

HALF, OP = Queue(HALF_TOPIC, 0), Queue(OP_TOPIC, 0)
HALF_MARK, OP_MARK = "transactions.half", "transactions.op"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY = b"CHECK_IMMUNITY_TIME_IN_SECONDS"
OP_TAG = b"TAGS\x01d\x02"
_LOADED_AT_ONCE = 4096


class Half(msgspec.Struct):
    """An unfinished transaction."""

    physical_offset: int
    born_ms: int
    immunity_ms: int | None
    """How long its producer asked not to be asked."""
    checks: int = 0
    next_check_ms: int = 0


class NotEnded(Refused):
    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"the transaction cannot be ended: {self.why}"


class Transactions:
    """All unfinished transactions of a broker."""

    def __init__(
        self,
        store: LogStore,
        topics: Topics,
        members: Members,
        settings: BrokerSettings,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._store, self._topics, self._members, self._settings = store, topics, members, settings
        self._now_ms = now_ms
        self._halves: dict[int, Half] = {}
        """By offset in the half queue, in that order."""
        self._turn = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        return len(self._halves)

    # -- a transaction's way ------------------------------------------------------------------------------------------

    def put_half(self, queue: Queue, draft: Draft) -> Appended:
        """Store a message that only its producer's word will deliver."""
        draft.properties = with_values(draft.properties, {"REAL_TOPIC": queue.topic, "REAL_QID": str(queue.id)})
        draft.sys_flag &= ~TRANSACTION_MASK
        appended = self._store.append_now(HALF, (draft,))
        self._halves[appended.offset] = _half_of(draft, appended.physical_offsets[0])
        return appended

    async def end(self, request: EndTransaction) -> Appended | None:
        """Do what the producer says. None: there was nothing to deliver."""
        if request.verdict not in (COMMITTED, ROLLED_BACK):
            return None  # it does not know either: it will be asked again
        half = self._halves.get(request.half_queue_offset)
        if half is None:
            return None  # finished before, or never begun here
        if half.physical_offset != request.half_physical_offset:
            raise NotEnded(f"no half message lies at {request.half_physical_offset}")
        draft = await self._draft_at(half)
        if value_of(draft.properties, b"PGROUP") != request.group:
            raise NotEnded(f"it was not begun by group {request.group!r}")
        # Nothing awaits from here on: of two words on one transaction, one finds it unfinished.
        if self._halves.pop(request.half_queue_offset, None) is None:
            return None
        appended = self._commit(half, draft) if request.verdict == COMMITTED else None
        self._finish(request.half_queue_offset)
        return appended

    async def _draft_at(self, half: Half) -> Draft:
        raw = await self._store.record_at(half.physical_offset)
        if raw is None:
            raise NotEnded("its half message is gone")
        return record.redraft(raw)

    def _commit(self, half: Half, draft: Draft) -> Appended:
        topic, number = value_of(draft.properties, b"REAL_TOPIC"), value_of(draft.properties, b"REAL_QID")
        if topic is None or number is None or not number.isdigit():
            raise NotEnded("its half message does not say where it was to go")
        draft.sys_flag = draft.sys_flag & ~TRANSACTION_MASK | COMMITTED
        draft.prepared_offset = half.physical_offset
        return self._store.append_now(Queue(topic, int(number)), (draft,))

    def _finish(self, half_offset: int) -> None:
        self._store.append_now(OP, (Draft(body=str(half_offset).encode(), properties=OP_TAG, born_ms=self._now_ms()),))

    # -- asking -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find out what was unfinished, and go on asking."""
        await self._load()
        self._task = asyncio.create_task(self._keep_asking())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _load(self) -> None:
        finished: set[int] = set()
        async for raw in self._records(OP, await self._store.mark(OP_MARK) or 0):
            # RocketMQ 5 names several in one record.
            body = bytes(record.redraft(raw).body)
            finished.update(int(number) for number in body.split(b",") if number.strip().isdigit())
        async for raw in self._records(HALF, await self._store.mark(HALF_MARK) or 0):
            offset = record.place_of(raw)
            if offset not in finished:
                draft = record.redraft(raw)
                self._halves[offset] = _half_of(draft, record.decode(raw, expand=False).physical_offset)

    async def _records(self, queue: Queue, offset: int) -> AsyncIterator[memoryview]:
        offset = max(offset, (await self._store.bounds(queue)).first)
        while True:
            found = await self._store.read(queue, offset, count_max=_LOADED_AT_ONCE, bytes_max=8 << 20)
            if not isinstance(found, Slice):
                return
            data, at = memoryview(found.tobytes()), 0
            for size in found.sizes:
                yield data[at : at + size]
                at += size
            offset = found.next_offset

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(self._settings.transaction_scan_ms / 1000)
            try:
                await self.ask_overdue()
                await self._save_marks()
            except SparrowError as error:
                log.error("transactions not asked after", extra={"why": str(error)})

    async def ask_overdue(self) -> None:
        """Ask the producers of halves that have waited too long."""
        now_ms = self._now_ms()
        for offset, half in list(self._halves.items()):
            patience_ms = half.immunity_ms if half.immunity_ms is not None else self._settings.transaction_timeout_ms
            if now_ms < max(half.born_ms + patience_ms, half.next_check_ms) or offset not in self._halves:
                continue
            if half.checks >= self._settings.transaction_checks_max:
                await self._set_aside(offset, half)
                continue
            half.checks += 1
            half.next_check_ms = now_ms + self._settings.transaction_check_interval_ms
            await self._ask(offset, half)

    async def _ask(self, offset: int, half: Half) -> None:
        raw = await self._store.record_at(half.physical_offset)
        if raw is None:
            self._halves.pop(offset, None)
            return
        message = record.decode(raw, verify_crc=False, expand=False)
        member = self._producer(message.properties.get("PGROUP", ""))
        if member is None:
            return  # nobody to ask: the next look may find somebody
        offset_id = format_offset_id(message.store_host, message.physical_offset)
        unique = message.unique_key
        # The client must see the message as it was meant, not where it lies.
        message.topic = message.properties.get("REAL_TOPIC", message.topic)
        message.queue_id = int(message.properties.get("REAL_QID", 0))
        message.properties[CHECK_TIMES] = str(half.checks)
        header = CheckTransaction(
            half_queue_offset=offset,
            half_physical_offset=half.physical_offset,
            topic=message.topic,
            message_id=unique,
            transaction_id=unique,
            offset_message_id=offset_id,
            broker_name=self._settings.name,
        )
        channel: Channel = member.channel
        channel.tell(Code.CHECK_TRANSACTION_STATE, header, record.encode_message(message))

    def _producer(self, group: str) -> Member | None:
        """The members of a producer group are asked in turn."""
        members = self._members.producers(group)
        if not members:
            return None
        self._turn += 1
        return members[self._turn % len(members)]

    async def _set_aside(self, offset: int, half: Half) -> None:
        """Rolled back, and kept where an operator can look at it."""
        draft = await self._draft_at(half)
        if CHECKED_OUT_TOPIC not in self._topics:
            await self._topics.put(Topic(name=CHECKED_OUT_TOPIC, read_queues=1, write_queues=1))
        if self._halves.pop(offset, None) is None:
            return
        self._store.append_now(Queue(CHECKED_OUT_TOPIC, 0), (draft,))
        self._finish(offset)
        log.warning("a transaction was given up", extra={"half_offset": offset, "checks": half.checks})

    async def _save_marks(self) -> None:
        """A restart reads both topics from the oldest unfinished half on."""
        ends = await self._store.bounds(HALF), await self._store.bounds(OP)
        first = min(self._halves, default=int(ends[0].end))
        if await self._store.mark(HALF_MARK) != first:
            await self._store.put_mark(HALF_MARK, first)
        if not self._halves and await self._store.mark(OP_MARK) != ends[1].end:
            await self._store.put_mark(OP_MARK, int(ends[1].end))


def _half_of(draft: Draft, physical_offset: int) -> Half:
    said = value_of(draft.properties, IMMUNITY)
    seconds = int(said) if said is not None and said.lstrip("-").isdigit() else -1
    checks = value_of(draft.properties, CHECK_TIMES.encode())
    return Half(
        physical_offset,
        draft.born_ms,
        seconds * 1000 if seconds >= 0 else None,
        int(checks) if checks is not None and checks.isdigit() else 0,
    )
