"""Raw appends: bytes of another replica's log become the same bytes of this one, and entries of its views.

1. Bytes are appended only at the end, in the order of the log. A record is written once all of it has arrived, and
   after its place, structure and checksum were checked; what is incomplete waits in memory.
2. Segments end where those of the other log end: both have the same size and the same blank records.
3. Queues, keys and state follow from the records, as in recovery. Nothing else is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct

import numpy as np

from sparrow.model.errors import CorruptRecord, Refused
from sparrow.model.queue import Queue
from sparrow.store.log.append.writer import LogWriter
from sparrow.store.log.commit_log.commit_log import RECORD_PREFIX_BYTES
from sparrow.store.log.consume_queues.consume_queue import ENTRY, ConsumeQueue
from sparrow.store.log.consume_queues.queue_builder import QueueBuilder, read_state_updates
from sparrow.store.log.consume_queues.queue_table import ConsumeQueueTable
from sparrow.store.log.recovery.incomplete_appends import IncompleteAppends
from sparrow.store.log.state.state_store import StateStore
from sparrow.store.log.state.updates import (
    STATE_QUEUE,
    AtomicAppendBegin,
    LedgerUpdate,
    QueueEndsUpdate,
    StateKeyUpdate,
    StateUpdate,
)
from sparrow.wire import columns, record
from sparrow.wire.checksum import CRC_MASK, crc32
from sparrow.wire.hashes import tags_code_in
from sparrow.wire.record import (
    FIXED_HEADER_BYTES,
    HIDDEN_FLAG,
    IPV6_FLAGS,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
)

_SIZE_AND_MAGIC = Struct(">ii")
_unpack_plain = Struct(">iiIi4xqqi16xq20xi").unpack_from
"""Size, magic, CRC, queue id, queue offset, physical offset, sys flag, store time, length of the body."""
_pack_entry = ENTRY.pack
_PLAIN_BYTES_MAX = 128 << 10
"""Below it, records are appended one by one: columns cost as much for one record as for some 300."""
_KEYS_BYTES_MAX = 32 << 20
"""How many bytes of parsed properties wait for the key index at most."""


class _QueueEntries:
    """New entries of a queue."""

    __slots__ = ("entries", "next_offset", "queue")

    def __init__(self, queue: ConsumeQueue) -> None:
        self.queue, self.next_offset = queue, int(queue.end)
        self.entries: list[bytes] = []


class RawAppends:
    """Appends raw bytes to a log. One thread at a time; it takes the writer's lock."""

    def __init__(self, writer: LogWriter, queues: ConsumeQueueTable, state: StateStore) -> None:
        self._writer, self._queues, self._state = writer, queues, state
        self._incomplete = bytearray()
        """The beginning of a record, or of the unused end of a segment, whose rest has not arrived."""

    @property
    def end(self) -> int:
        """The physical offset of the next byte to append."""
        return self._writer.log.written + len(self._incomplete)

    def append(self, offset: int, data: bytes | memoryview) -> int:
        """Append bytes that start at `offset` in the other log, and return where the last whole record ends.

        Raises `CorruptRecord` for bytes that are no records of this place; what came before them is appended.
        """
        with self._writer.lock:
            if offset != self.end:
                raise Refused(f"the log continues at {self.end}, not at {offset}: fetch from there")
            view = memoryview(data)
            at = self._complete(view) if self._incomplete else 0
            while at < len(view):
                taken = self._append_some(view[at:])
                if not taken:
                    self._incomplete += view[at:]
                    break
                at += taken
            return self._writer.log.written

    def _complete(self, view: memoryview) -> int:
        """Append the record that has begun to arrive, if its rest is in `view`; return how many bytes of it were used.

        Only this record is copied, not everything behind it.
        """
        known = bytes(self._incomplete[:4]) + bytes(view[: max(0, 4 - len(self._incomplete))])
        size = max(int.from_bytes(known, "big") if len(known) == 4 else 0, RECORD_PREFIX_BYTES)
        used = min(max(0, size - len(self._incomplete)), len(view))
        begun = memoryview(b"".join((self._incomplete, view[:used])))
        self._incomplete.clear()
        if self._append_some(begun) == 0:
            self._incomplete += begun
        return used

    def discard_incomplete(self) -> None:
        """Forget the beginning of a record: its rest will come from another replica, or never."""
        self._incomplete.clear()

    def _append_some(self, view: memoryview) -> int:
        """Append the whole records at the beginning, up to the end of the segment; return how many bytes these are."""
        log = self._writer.log
        at = int(log.written)
        rest = log.segment_bytes - at % log.segment_bytes
        view = view[:rest]
        if len(view) < _PLAIN_BYTES_MAX and (size := self._append_plain(view, at)):
            return size
        starts = columns.find_starts(view, strict=False)
        if len(starts) == 0:
            return self._end_segment(view, at, rest)
        records = columns.LogRecords.scan(view, starts, base=at)
        if len(records) == 0:
            raise _misplaced(at)
        size = int(records.starts[-1] + records.sizes[-1])
        topics, topic_of = records.topics()
        if STATE_QUEUE.topic in topics:
            rows = np.flatnonzero(topic_of == topics.index(STATE_QUEUE.topic))
            self._accept_state(view[:size], records.starts[rows].tolist())
        self._write(view[:size], at)
        store_ms = records.field("store_ms")
        self._writer.newest_ms = max(self._writer.newest_ms, int(store_ms[-1]))
        backlog = self._writer.key_backlog
        if backlog.held_bytes < _KEYS_BYTES_MAX:
            backlog.add_run(records.keys(), records.starts + at, store_ms)
        else:  # the index is late: it reads them from the log
            backlog.add_offsets((records.starts + at).tolist())
        with self._filing() as builder:
            builder.add(records, at)
        return size

    def _append_plain(self, view: memoryview, at: int) -> int:
        """Append the plain records at the beginning; return how many bytes these are.

        Plain are valid records in ASCII, of version 1 and with IPv4 hosts, that are next in a queue that exists.
        """
        data = bytes(view)
        places: list[int] = []
        by_queue: dict[tuple[bytes, int], _QueueEntries] = {}
        start, store_ms, last_start = 0, 0, len(data) - RECORD_BYTES_MIN
        while start <= last_start:
            size, magic, crc, queue_id, offset, place, sys_flag, stored_ms, body_bytes = _unpack_plain(data, start)
            end, body_at = start + size, start + FIXED_HEADER_BYTES
            topic_at = body_at + body_bytes
            if (
                magic != MAGIC_V1
                or place != at + start
                or sys_flag & IPV6_FLAGS
                or not body_at <= topic_at <= end - 3 <= len(data) - 3
            ):
                break
            name_end = topic_at + 1 + data[topic_at]
            properties = data[name_end + 2 : end]
            if name_end + 2 > end or data[name_end] << 8 | data[name_end + 1] != len(properties):
                break
            if not properties.isascii() or (body_bytes and crc32(data[body_at:topic_at]) & CRC_MASK != crc & CRC_MASK):
                break
            key = (data[topic_at + 1 : name_end], queue_id)
            found = by_queue.get(key)
            if found is None:
                found = self._entries_of(*key)
                if found is None:
                    break
                by_queue[key] = found
            if not sys_flag & HIDDEN_FLAG:
                if offset != found.next_offset:
                    break
                delay_ms = found.queue.delay_ms
                code = tags_code_in(properties) if delay_ms is None else stored_ms + delay_ms
                found.entries.append(_pack_entry(place, size, code))
                found.next_offset += 1
            places.append(place)
            start, store_ms = end, stored_ms
        if not places:
            return 0
        writer = self._writer
        self._write(view[:start], at)
        writer.newest_ms = max(writer.newest_ms, store_ms)
        writer.key_backlog.add_offsets(places)
        for found in by_queue.values():
            if found.entries:
                found.queue.extend(b"".join(found.entries))
                writer.publish_growth(found.queue, writer.log.written)
        return start

    def _entries_of(self, topic: bytes, queue_id: int) -> _QueueEntries | None:
        """Return what collects the entries of a queue; None if there is no such queue, or it has the state."""
        queue = self._queues.get(Queue(topic.decode(), queue_id)) if topic.isascii() else None
        return None if queue is None or queue.is_internal else _QueueEntries(queue)

    def _end_segment(self, view: memoryview, at: int, rest: int) -> int:
        """Begin the next segment if this one ends with a blank record here; return 0 if more bytes are needed."""
        if len(view) < RECORD_PREFIX_BYTES:
            return 0
        size, magic = _SIZE_AND_MAGIC.unpack_from(view)
        if magic == MAGIC_BLANK and size == rest:
            if len(view) < rest:
                return 0
            self._writer.log.end_segment()
            return rest
        if magic in (MAGIC_V1, MAGIC_V2) and RECORD_BYTES_MIN <= size <= rest:
            return 0
        raise CorruptRecord(at, f"no record starts here in the bytes of the other replica (size {size})")

    def _write(self, view: memoryview, at: int) -> None:
        log = self._writer.log
        segment, place = log.allocate(len(view))
        if place != at:
            raise CorruptRecord(at, "the record leaves no space for a blank one at the end of its segment")
        laid = segment.view[at - segment.base : at - segment.base + len(view)]
        # NumPy copies without the interpreter lock. The first bytes come last: a crash leaves no half record.
        np.copyto(
            np.frombuffer(laid[RECORD_PREFIX_BYTES:], np.uint8), np.frombuffer(view[RECORD_PREFIX_BYTES:], np.uint8)
        )
        laid[:RECORD_PREFIX_BYTES] = view[:RECORD_PREFIX_BYTES]
        log.advance(len(view))

    def _accept_state(self, view: memoryview, starts: list[int]) -> None:
        """Take over the leader's key, and note state that the leader has not sealed with it, before it is written."""
        seal, is_sealed = self._state.seal, True
        for start in starts:
            message = record.decode(view, start, expand=False)
            for update in read_state_updates(view, start):
                if isinstance(update, StateKeyUpdate) and update.key != seal.key:
                    seal.adopt(update.key, message.physical_offset)
            is_sealed &= seal.is_accepted(message)
        if not is_sealed:
            seal.accept_before(int(self._writer.log.written) + len(view))

    @contextmanager
    def _filing(self) -> Iterator[QueueBuilder]:
        """Yield what adds the records that were just written to their queues; readers learn of it at the end."""
        writer = self._writer
        grown: dict[Queue, ConsumeQueue] = {}

        def queue_of(name: Queue) -> ConsumeQueue:
            grown[name] = queue = self._queues.get_or_create(name)
            return queue

        yield QueueBuilder(
            self._queues.get,
            queue_of,
            self._queues.drop_topic,
            log_first=writer.log.first,
            incomplete=_StateUpdates(self._state, self._queues, writer),
        )
        for queue in grown.values():
            if not queue.is_deleted:
                writer.publish_growth(queue, writer.log.written)


def _misplaced(at: int) -> CorruptRecord:
    return CorruptRecord(at, "the bytes of the other replica have another place or checksum")


class _StateUpdates(IncompleteAppends):
    """Applies the state updates in the order of the log."""

    def __init__(self, state: StateStore, queues: ConsumeQueueTable, writer: LogWriter) -> None:
        super().__init__()
        self._state, self._queues, self._writer = state, queues, writer

    def observe(self, update: StateUpdate, physical_offset: int) -> None:
        if isinstance(update, AtomicAppendBegin):
            self._writer.begin_group(physical_offset)
        elif isinstance(update, LedgerUpdate) and update.begun >= 0:
            self._writer.end_group(update.begun, physical_offset + 1)
        self._state.tables.apply([update], physical_offset)
        if isinstance(update, QueueEndsUpdate):
            self._state.continue_emptied_queues(update.topic)
