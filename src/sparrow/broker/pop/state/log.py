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
        self.in_flight, self.fifo = InFlightTable(), FifoTable()
        self.earlier_due = asyncio.Event()
        """Something may be due before anything was before."""
        self._settled: dict[InFlightBatch, int] = {}
        self._fifo_batch: dict[tuple[str, Queue], FifoBatch] = {}
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
                for of, settled in word.batches:
                    batch = self.in_flight.find_by_number(of)
                    if batch is not None:
                        self.in_flight.settle(batch, unpack_mask(settled))
            case FifoChanged():
                self.fifo.put(_fifo_batch_of(word, number))
            case None:
                log.warning("a record among those of pop says nothing", extra={"offset": number})

    # -- how far groups are: what they have committed -----------------------------------------------------------------

    def check_available(self) -> None:
        """They are always served here."""

    def is_ready(self, group: str, queue: Queue) -> bool:
        """The log knows it all."""
        return True

    def load_positions(self, group: str, queues: Iterable[Queue]) -> None:
        return None

    def position(self, group: str, queue: Queue) -> int | None:
        return self._store.offsets.committed_nowait(group, queue)

    def advance(self, group: str, queue: Queue, offset: int) -> None:
        self._store.offsets.commit_nowait(group, queue, offset)

    # -- in any order -------------------------------------------------------------------------------------------------

    def add(self, batches: Sequence[InFlightBatch]) -> None:
        """Messages are being handed out: in flight, and in the log, when this returns."""
        self.in_flight.check_capacity(batches, batches_max=IN_FLIGHT_BATCHES_MAX)
        first = self._write([_taken(batch) for batch in batches])
        for number, batch in enumerate(batches, first):
            self._put(batch, number)

    def _put(self, batch: InFlightBatch, number: int) -> None:
        batch.number = number
        next_ms = self.in_flight.next_due_ms()
        self.in_flight.add(batch)
        if next_ms is None or batch.due_ms < next_ms:
            self.earlier_due.set()

    def settle(self, batch: InFlightBatch, mask: int) -> int:
        """These need nothing more; which of them still did. Written at the end of this turn."""
        settled = self.in_flight.settle(batch, mask)
        if settled:
            self._write_settled(batch, settled)
        return settled

    def _write_settled(self, batch: InFlightBatch, mask: int) -> None:
        self._settled[batch] = self._settled.get(batch, 0) | mask
        self._write_soon()

    def withdraw(self, batch: InFlightBatch) -> int:
        return self.in_flight.withdraw(batch)

    def confirm_stored(self, batch: InFlightBatch, mask: int) -> None:
        """The copies are in the log before this word on the originals."""
        left = batch.withdrawn & ~mask
        self.in_flight.restore(batch, left)
        if mask:
            self._write_settled(batch, mask)

    def change_invisible_time(self, batch: InFlightBatch, offset: int, invisible_ms: int) -> InFlightBatch:
        """A message shall be invisible for so long from now on: it gets a lot, and so a handle, of its own."""
        moved = self.in_flight.split_off(batch, offset, invisible_ms=invisible_ms, now_ms=self._now_ms())
        bit = batch.bit(offset)
        number = self._write([_taken(moved), BatchesSettled([(batch.number, pack_mask(bit))])])
        self.in_flight.settle(batch, bit)
        self._put(moved, number)
        return moved

    # -- in order -----------------------------------------------------------------------------------------------------

    def fifo_changed(self, fifo_batch: FifoBatch) -> None:
        """A queue read in order has changed. Written at the end of this turn."""
        self._fifo_batch[fifo_batch.group, fifo_batch.queue] = fifo_batch
        fifo_batch.number = self._store.bounds_nowait(self._queue).end  # not written yet, but not before this
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
            self._write([BatchesSettled([(batch.number, pack_mask(mask)) for batch, mask in some])])
            for batch, _ in some:
                del self._settled[batch]
        while self._fifo_batch:
            key, fifo_batch = next(iter(self._fifo_batch.items()))
            fifo_batch.number = self._write([_ran(fifo_batch)])
            del self._fifo_batch[key]

    def put_mark(self, name: str, value: int) -> None:
        """Something to be known after a restart, too."""
        self._store.marks.put_nowait(name, value)

    def save(self) -> None:
        """Say how far back the next start must read; what would make that far is written anew."""
        self.flush()
        self._roll()
        numbers = (self.in_flight.oldest(), self.fifo.oldest(), int(self._store.bounds_nowait(self._queue).end))
        oldest = min(number for number in numbers if number is not None)
        if oldest != self._saved:
            self._store.marks.put_nowait(JOURNAL_START_MARK, oldest)
            self._saved = oldest

    def _roll(self) -> None:
        before = self._store.bounds_nowait(self._queue).end - ROLL_AFTER_RECORDS
        old = self.in_flight.before(before)
        for at in range(0, len(old), _WORDS_A_BATCH):
            some = old[at : at + _WORDS_A_BATCH]
            first = self._write([_taken(batch) for batch in some])
            for number, batch in enumerate(some, first):
                self.in_flight.renumber(batch, number)
        for fifo_batch in self.fifo:
            if fifo_batch.queue.topic not in self._topics:
                self.fifo.drop(fifo_batch)
            elif fifo_batch.number < before:
                fifo_batch.number = self._write([_ran(fifo_batch)])


def _taken(batch: InFlightBatch) -> BatchPopped:
    topic, queue_id = batch.queue
    return BatchPopped(
        batch.group, topic, queue_id, batch.start, batch.pop_ms, batch.invisible_ms, pack_mask(batch.mask)
    )


def _ran(fifo_batch: FifoBatch) -> FifoChanged:
    topic, queue_id = fifo_batch.queue
    dues, counts = list(fifo_batch.dues.items()), list(fifo_batch.counts.items())
    return FifoChanged(
        fifo_batch.group, topic, queue_id, fifo_batch.pop_ms, fifo_batch.next_offset, fifo_batch.attempt, dues, counts
    )


def _fifo_batch_of(word: FifoChanged, number: int) -> FifoBatch:
    fifo_batch = FifoBatch(
        word.group,
        Queue(word.topic, word.queue_id),
        pop_ms=word.pop_ms,
        next_offset=word.next_offset,
        attempt=word.attempt,
    )
    fifo_batch.dues, fifo_batch.counts, fifo_batch.number = dict(word.dues), dict(word.counts), number
    return fifo_batch
