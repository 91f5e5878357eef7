"""What is in flight, as a view of the log: every change is written to a topic of its own, and heard again at a start.

1. A pop is written before the group's offset moves, in the same log: whatever a crash cuts off, it never leaves an
   offset behind messages that nobody knows to be in flight.
2. Acknowledgements of one turn of the loop are written in one record, at its end. A crash may lose the last of them,
   and then messages come again; none is ever lost.
3. A mark says where the oldest word lies that still counts. Lots that stay long in flight are written anew at the
   head, so that a start never has much to read, and retention takes none of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from sparrow.broker.catalog.topics import TopicCatalog
from sparrow.broker.pop.state.fifo import FifoBatch, FifoTable
from sparrow.broker.pop.state.in_flight import IN_FLIGHT_BATCHES_MAX, InFlightBatch, InFlightTable
from sparrow.broker.pop.state.journal import (
    BatchesSettled,
    BatchPopped,
    FifoChanged,
    JournalEntry,
    decode_entry,
    encode_entry,
    pack_mask,
    unpack_mask,
)
from sparrow.model.errors import SparrowError
from sparrow.model.protocol import REVIVE_TOPIC_PREFIX
from sparrow.model.queue import Queue
from sparrow.store.log import LogStore
from sparrow.store.spi import Slice
from sparrow.wire import record

log = logging.getLogger(__name__)

JOURNAL_START_MARK = "pop.from"
ROLL_AFTER_RECORDS = 200_000
"""A lot whose word lies so many records back is written anew."""
_LOTS_A_WORD = 1_000
_WORDS_A_BATCH = 500
_HEARD_AT_ONCE = 65_536


class LogPopState:
    """Everything in flight at a broker, and its words in the log."""

    cold_reads_max = 1
    """A disk is slow: what it holds comes in pops of its own."""

    def __init__(self, store: LogStore, topics: TopicCatalog, *, cluster: str, now_ms: Callable[[], int]) -> None:
        self._store, self._topics, self._now_ms = store, topics, now_ms
        self._queue = Queue(REVIVE_TOPIC_PREFIX + cluster, 0)
        self.in_flight, self.in_order = InFlightTable(), FifoTable()
        self.earlier_due = asyncio.Event()
        """Something may be due before anything was before."""
        self._settled: dict[InFlightBatch, int] = {}
        self._run: dict[tuple[str, Queue], FifoBatch] = {}
        self._is_writing_soon = False
        self._saved = -1

    async def load(self) -> None:
        """Hear again what is in flight, and how far groups had got by it."""
        offset = max(
            await self._store.marks.get(JOURNAL_START_MARK) or 0, (await self._store.bounds(self._queue)).first
        )
        reached: dict[tuple[str, Queue], int] = {}
        while isinstance(
            found := await self._store.read(self._queue, offset, count_max=_HEARD_AT_ONCE, bytes_max=16 << 20), Slice
        ):
            for message in record.decode_all(found.tobytes(), verify_crc=False):
                word = decode_entry(message.body)
                self._hear(message.queue_offset, word)
                if isinstance(word, BatchPopped) and message.physical_offset > self._store.offsets.record_at(
                    word.group, word.topic
                ):
                    key = word.group, Queue(word.topic, word.queue_id)
                    end = word.start + unpack_mask(word.mask).bit_length()
                    reached[key] = max(reached.get(key, 0), end)
            offset = found.next_offset
        self._go_on_behind(reached)

    def _go_on_behind(self, reached: dict[tuple[str, Queue], int]) -> None:
        """A killed broker had not said the last second's offsets: what was handed out since is not handed out again."""
        for (group, queue), end in reached.items():
            committed = self._store.offsets.committed_nowait(group, queue)
            if queue.topic in self._topics and (committed is None or committed < end):
                self._store.offsets.commit_nowait(group, queue, end)

    def _hear(self, number: int, word: JournalEntry | None) -> None:
        match word:
            case BatchPopped():
                queue, mask = Queue(word.topic, word.queue_id), unpack_mask(word.mask)
                if mask:
                    self.in_flight.add(
                        InFlightBatch(
                            word.group,
                            queue,
                            word.start,
                            pop_ms=word.pop_ms,
                            invisible_ms=word.invisible_ms,
                            mask=mask,
                            number=number,
                        )
                    )
            case BatchesSettled():
                for of, settled in word.lots:
                    lot = self.in_flight.numbered(of)
                    if lot is not None:
                        self.in_flight.settle(lot, unpack_mask(settled))
            case FifoChanged():
                self.in_order.put(_run_of(word, number))
            case None:
                log.warning("a record among those of pop says nothing", extra={"offset": number})

    # -- how far groups are: what they have committed -----------------------------------------------------------------

    def check(self) -> None:
        """They are always served here."""

    def is_open(self, group: str, queue: Queue) -> bool:
        """The log knows it all."""
        return True

    def opening(self, group: str, queues: Iterable[Queue]) -> None:
        return None

    def position(self, group: str, queue: Queue) -> int | None:
        return self._store.offsets.committed_nowait(group, queue)

    def go_on(self, group: str, queue: Queue, offset: int) -> None:
        self._store.offsets.commit_nowait(group, queue, offset)

    # -- in any order -------------------------------------------------------------------------------------------------

    def take(self, lots: Sequence[InFlightBatch]) -> None:
        """Messages are being handed out: in flight, and in the log, when this returns."""
        self.in_flight.admit(lots, lots_max=IN_FLIGHT_BATCHES_MAX)
        first = self._write([_taken(lot) for lot in lots])
        for number, lot in enumerate(lots, first):
            self._put(lot, number)

    def _put(self, lot: InFlightBatch, number: int) -> None:
        lot.number = number
        next_ms = self.in_flight.next_due_ms()
        self.in_flight.add(lot)
        if next_ms is None or lot.due_ms < next_ms:
            self.earlier_due.set()

    def settle(self, lot: InFlightBatch, mask: int) -> int:
        """These need nothing more; which of them still did. Written at the end of this turn."""
        settled = self.in_flight.settle(lot, mask)
        if settled:
            self._write_settled(lot, settled)
        return settled

    def _write_settled(self, lot: InFlightBatch, mask: int) -> None:
        self._settled[lot] = self._settled.get(lot, 0) | mask
        self._write_soon()

    def withdraw(self, lot: InFlightBatch) -> int:
        return self.in_flight.withdraw(lot)

    def stored(self, lot: InFlightBatch, mask: int) -> None:
        """The copies are in the log before this word on the originals."""
        left = lot.withdrawn & ~mask
        self.in_flight.restore(lot, left)
        if mask:
            self._write_settled(lot, mask)

    def move(self, lot: InFlightBatch, offset: int, invisible_ms: int) -> InFlightBatch:
        """A message shall be invisible for so long from now on: it gets a lot, and so a handle, of its own."""
        moved = self.in_flight.alone(lot, offset, invisible_ms=invisible_ms, now_ms=self._now_ms())
        bit = lot.bit(offset)
        number = self._write([_taken(moved), BatchesSettled([(lot.number, pack_mask(bit))])])
        self.in_flight.settle(lot, bit)
        self._put(moved, number)
        return moved

    # -- in order -----------------------------------------------------------------------------------------------------

    def ran(self, run: FifoBatch) -> None:
        """A queue read in order has changed. Written at the end of this turn."""
        self._run[run.group, run.queue] = run
        run.number = self._store.bounds_nowait(self._queue).end  # not written yet, but not before this
        self._write_soon()
        self.earlier_due.set()

    # -- writing ------------------------------------------------------------------------------------------------------

    def _write(self, words: Sequence[JournalEntry]) -> int:
        return self._store.append_nowait(self._queue, [encode_entry(word) for word in words]).offset

    def _write_soon(self) -> None:
        if not self._is_writing_soon:
            self._is_writing_soon = True
            asyncio.get_running_loop().call_soon(self._write_turn)

    def _write_turn(self) -> None:
        self._is_writing_soon = False
        try:
            self.flush()
        except SparrowError as error:  # a full disk, say: they count, and are written with the next that are
            log.error("acknowledgements not written", extra={"why": str(error)})

    def flush(self) -> None:
        """Write what this turn has settled."""
        while self._settled:
            some = list(self._settled.items())[:_LOTS_A_WORD]
            self._write([BatchesSettled([(lot.number, pack_mask(mask)) for lot, mask in some])])
            for lot, _ in some:
                del self._settled[lot]
        while self._run:
            key, run = next(iter(self._run.items()))
            run.number = self._write([_ran(run)])
            del self._run[key]

    def mark(self, name: str, value: int) -> None:
        """Something to be known after a restart, too."""
        self._store.marks.put_nowait(name, value)

    def save(self) -> None:
        """Say how far back the next start must read; what would make that far is written anew."""
        self.flush()
        self._roll()
        numbers = (self.in_flight.oldest(), self.in_order.oldest(), int(self._store.bounds_nowait(self._queue).end))
        oldest = min(number for number in numbers if number is not None)
        if oldest != self._saved:
            self._store.marks.put_nowait(JOURNAL_START_MARK, oldest)
            self._saved = oldest

    def _roll(self) -> None:
        before = self._store.bounds_nowait(self._queue).end - ROLL_AFTER_RECORDS
        old = self.in_flight.before(before)
        for at in range(0, len(old), _WORDS_A_BATCH):
            some = old[at : at + _WORDS_A_BATCH]
            first = self._write([_taken(lot) for lot in some])
            for number, lot in enumerate(some, first):
                self.in_flight.renumber(lot, number)
        for run in self.in_order:
            if run.queue.topic not in self._topics:
                self.in_order.drop(run)
            elif run.number < before:
                run.number = self._write([_ran(run)])


def _taken(lot: InFlightBatch) -> BatchPopped:
    topic, queue_id = lot.queue
    return BatchPopped(lot.group, topic, queue_id, lot.start, lot.pop_ms, lot.invisible_ms, pack_mask(lot.mask))


def _ran(run: FifoBatch) -> FifoChanged:
    topic, queue_id = run.queue
    dues, counts = list(run.dues.items()), list(run.counts.items())
    return FifoChanged(run.group, topic, queue_id, run.pop_ms, run.next_offset, run.attempt, dues, counts)


def _run_of(word: FifoChanged, number: int) -> FifoBatch:
    run = FifoBatch(
        word.group,
        Queue(word.topic, word.queue_id),
        pop_ms=word.pop_ms,
        next_offset=word.next_offset,
        attempt=word.attempt,
    )
    run.dues, run.counts, run.number = dict(word.dues), dict(word.counts), number
    return run
