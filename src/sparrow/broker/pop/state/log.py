"""The state of pops on a log store: every change is written to a journal, and loaded from it at startup.

1. A pop is written before the group's offset moves, in the same log. So after a crash, every popped message before the
   offset is acknowledged or known to be in flight.
2. Acknowledgements of one iteration of the event loop are written in one record, at its end. A crash may lose the last
   of them; then messages are redelivered, and none is lost.
3. A mark stores the oldest journal offset that is needed. Batches that stay long in flight are written again at the
   end, so that a start reads little, and retention deletes none of them.
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
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import SparrowError
from sparrow.model.protocol import REVIVE_TOPIC_PREFIX
from sparrow.model.queue import Queue
from sparrow.store.log import LogStore
from sparrow.store.spi import Slice
from sparrow.wire import record

log = logging.getLogger(__name__)

JOURNAL_START_MARK = "pop.from"
ROLL_AFTER_RECORDS = 200_000
"""A batch is written again when this many records follow its entry in the journal."""
_SETTLED_PER_ENTRY = 1_000
_ENTRIES_PER_WRITE = 500
_LOADED_AT_ONCE = 65_536


class LogPopState:
    """Messages in flight on a log store, and their journal."""

    cold_reads_max = 1
    """A pop reads at most one queue from disk, because that is slow."""

    def __init__(self, store: LogStore, topics: TopicCatalog, *, cluster: str, now_ms: Callable[[], int]) -> None:
        self._store, self._topics, self._now_ms = store, topics, now_ms
        self._queue = Queue(REVIVE_TOPIC_PREFIX + cluster, 0)
        self.in_flight, self.fifo = InFlightTable(), FifoTable()
        self.earlier_due = asyncio.Event()
        """Set when something may be due earlier than before."""
        self._settled: dict[InFlightBatch, int] = {}
        self._fifo_batch: dict[tuple[str, Queue], FifoBatch] = {}
        self._is_writing_soon = False
        self._saved = -1
        self._failures = LogIntervals()

    async def load(self) -> None:
        """Load the messages in flight, and the positions that follow from them."""
        offset = max(
            await self._store.marks.get(JOURNAL_START_MARK) or 0, (await self._store.bounds(self._queue)).first
        )
        reached: dict[tuple[str, Queue], int] = {}
        while isinstance(
            found := await self._store.read(self._queue, offset, count_max=_LOADED_AT_ONCE, bytes_max=16 << 20), Slice
        ):
            for message in record.decode_all(found.tobytes(), verify_crc=False):
                entry = decode_entry(message.body)
                self._apply(message.queue_offset, entry)
                if isinstance(entry, BatchPopped) and message.physical_offset > self._store.offsets.record_at(
                    entry.group, entry.topic
                ):
                    key = entry.group, Queue(entry.topic, entry.queue_id)
                    end = entry.start + unpack_mask(entry.mask).bit_length()
                    reached[key] = max(reached.get(key, 0), end)
            offset = found.next_offset
        self._advance_past(reached)

    def _advance_past(self, reached: dict[tuple[str, Queue], int]) -> None:
        """Move positions past messages in flight: offsets of the last second before a crash may be lost."""
        for (group, queue), end in reached.items():
            committed = self._store.offsets.committed_nowait(group, queue)
            if queue.topic in self._topics and (committed is None or committed < end):
                self._store.offsets.commit_nowait(group, queue, end)

    def _apply(self, number: int, entry: JournalEntry | None) -> None:
        match entry:
            case BatchPopped():
                queue, mask = Queue(entry.topic, entry.queue_id), unpack_mask(entry.mask)
                if mask:
                    self.in_flight.add(
                        InFlightBatch(
                            entry.group,
                            queue,
                            entry.start,
                            pop_ms=entry.pop_ms,
                            invisible_ms=entry.invisible_ms,
                            mask=mask,
                            number=number,
                        )
                    )
            case BatchesSettled():
                for of, settled in entry.batches:
                    batch = self.in_flight.find_by_number(of)
                    if batch is not None:
                        self.in_flight.settle(batch, unpack_mask(settled))
            case FifoChanged():
                self.fifo.put(_fifo_batch_of(entry, number))
            case None:
                log.warning(
                    "record %(offset)s in the journal of pops cannot be decoded; it is skipped", {"offset": number}
                )

    # -- positions: the committed offsets of groups -------------------------------------------------------------------

    def check_available(self) -> None:
        """Do nothing: a log store always serves pops."""

    def is_ready(self, group: str, queue: Queue) -> bool:
        """Return True: the log store knows all positions."""
        return True

    def load_positions(self, group: str, queues: Iterable[Queue]) -> None:
        return None

    def position(self, group: str, queue: Queue) -> int | None:
        return self._store.offsets.committed_nowait(group, queue)

    def advance(self, group: str, queue: Queue, offset: int) -> None:
        self._store.offsets.commit_nowait(group, queue, offset)

    # -- messages in flight -------------------------------------------------------------------------------------------

    def add(self, batches: Sequence[InFlightBatch]) -> None:
        """Put batches in flight, and write them to the journal."""
        self.in_flight.check_capacity(batches, batches_max=IN_FLIGHT_BATCHES_MAX)
        first = self._write([_popped_entry(batch) for batch in batches])
        for number, batch in enumerate(batches, first):
            self._put(batch, number)

    def _put(self, batch: InFlightBatch, number: int) -> None:
        batch.number = number
        next_ms = self.in_flight.next_due_ms()
        self.in_flight.add(batch)
        if next_ms is None or batch.due_ms < next_ms:
            self.earlier_due.set()

    def settle(self, batch: InFlightBatch, mask: int) -> int:
        """Settle messages. Return those that were in flight. Written at the end of this iteration of the event loop."""
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
        """Settle withdrawn messages. Their copies are in the log before this entry."""
        unstored = batch.withdrawn & ~mask
        self.in_flight.restore(batch, unstored)
        if mask:
            self._write_settled(batch, mask)

    def change_invisible_time(self, batch: InFlightBatch, offset: int, invisible_ms: int) -> InFlightBatch:
        """Change the invisible time of a message: it gets a batch, and so a handle, of its own."""
        moved = self.in_flight.split_off(batch, offset, invisible_ms=invisible_ms, now_ms=self._now_ms())
        bit = batch.bit(offset)
        number = self._write([_popped_entry(moved), BatchesSettled([(batch.number, pack_mask(bit))])])
        self.in_flight.settle(batch, bit)
        self._put(moved, number)
        return moved

    # -- FIFO queues --------------------------------------------------------------------------------------------------

    def fifo_changed(self, fifo_batch: FifoBatch) -> None:
        """Write the change of a FIFO queue at the end of this iteration of the event loop."""
        self._fifo_batch[fifo_batch.group, fifo_batch.queue] = fifo_batch
        fifo_batch.number = self._store.bounds_nowait(self._queue).end  # a lower bound until it is written
        self._write_soon()
        self.earlier_due.set()

    # -- journal ------------------------------------------------------------------------------------------------------

    def _write(self, entries: Sequence[JournalEntry]) -> int:
        return self._store.append_nowait(self._queue, [encode_entry(entry) for entry in entries]).offset

    def _write_soon(self) -> None:
        if not self._is_writing_soon:
            self._is_writing_soon = True
            asyncio.get_running_loop().call_soon(self._write_iteration)

    def _write_iteration(self) -> None:
        self._is_writing_soon = False
        try:
            self.flush()
            if self._failures.end("journal"):
                log.info("acknowledgements are written to the journal of pops again")
        except SparrowError as error:  # a full disk, for instance: they are written with the next ones
            if self._failures.is_due("journal", type(error)):
                log.error(
                    "acknowledgements cannot be written to the journal of pops: %(error)s; retrying with the next ones",
                    {"error": error},
                )

    def flush(self) -> None:
        """Write the acknowledgements of this iteration."""
        while self._settled:
            some = list(self._settled.items())[:_SETTLED_PER_ENTRY]
            self._write([BatchesSettled([(batch.number, pack_mask(mask)) for batch, mask in some])])
            for batch, _ in some:
                del self._settled[batch]
        while self._fifo_batch:
            key, fifo_batch = next(iter(self._fifo_batch.items()))
            fifo_batch.number = self._write([_fifo_entry(fifo_batch)])
            del self._fifo_batch[key]

    def put_mark(self, name: str, value: int) -> None:
        """Store a mark that survives a restart."""
        self._store.marks.put_nowait(name, value)

    def save(self) -> None:
        """Store how far back the next start must read. Write old entries again to keep that short."""
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
        for at in range(0, len(old), _ENTRIES_PER_WRITE):
            some = old[at : at + _ENTRIES_PER_WRITE]
            first = self._write([_popped_entry(batch) for batch in some])
            for number, batch in enumerate(some, first):
                self.in_flight.renumber(batch, number)
        for fifo_batch in self.fifo:
            if fifo_batch.queue.topic not in self._topics:
                self.fifo.drop(fifo_batch)
            elif fifo_batch.number < before:
                fifo_batch.number = self._write([_fifo_entry(fifo_batch)])


def _popped_entry(batch: InFlightBatch) -> BatchPopped:
    topic, queue_id = batch.queue
    return BatchPopped(
        batch.group, topic, queue_id, batch.start, batch.pop_ms, batch.invisible_ms, pack_mask(batch.mask)
    )


def _fifo_entry(fifo_batch: FifoBatch) -> FifoChanged:
    topic, queue_id = fifo_batch.queue
    dues, counts = list(fifo_batch.dues.items()), list(fifo_batch.counts.items())
    return FifoChanged(
        fifo_batch.group, topic, queue_id, fifo_batch.pop_ms, fifo_batch.next_offset, fifo_batch.attempt, dues, counts
    )


def _fifo_batch_of(entry: FifoChanged, number: int) -> FifoBatch:
    fifo_batch = FifoBatch(
        entry.group,
        Queue(entry.topic, entry.queue_id),
        pop_ms=entry.pop_ms,
        next_offset=entry.next_offset,
        attempt=entry.attempt,
    )
    fifo_batch.dues, fifo_batch.counts, fifo_batch.number = dict(entry.dues), dict(entry.counts), number
    return fifo_batch
