"""The writer: appends records to the commit log and their entries to consume queues, under one lock.

1. Queue offset, physical offset and store time are assigned inside the lock, so all three ascend together.
2. `written` moves, and the queue grows, only after all bytes are in place.
3. Readers see a message once it is as safe as `visible_after` says; until then `visible_end` excludes it.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import numpy.typing as npt

from sparrow.model.errors import Refused, SparrowError, StoreFull, TooLarge, UnknownTopic
from sparrow.model.message import Draft
from sparrow.model.queue import PhysicalOffset, Queue, QueueOffset
from sparrow.settings import Watermark
from sparrow.store.log.append.encoded_runs import EncodedRun, RunPiece, parse_run
from sparrow.store.log.commit_log.commit_log import BLANK_RECORD_BYTES, RECORD_PREFIX_BYTES, CommitLog
from sparrow.store.log.consume_queues.consume_queue import ENTRY, ConsumeQueue
from sparrow.store.log.key_index.key_backlog import KeyBacklog
from sparrow.store.spi import AppendResult
from sparrow.wire import columns, record
from sparrow.wire.hashes import tags_code_in
from sparrow.wire.properties import PROPERTIES_BYTES_MAX

GrowthListener = Callable[[Queue, QueueOffset], None]
"""Called with a queue and the offset up to which readers may now see it."""

_pack_entry = ENTRY.pack
_NEVER = 1 << 62


def check_properties(properties: bytes) -> None:
    """Raise an error unless a property string is UTF-8 and short enough for a record."""
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise TooLarge("the property string", len(properties), PROPERTIES_BYTES_MAX)
    if not properties.isascii():
        try:
            properties.decode()
        except UnicodeDecodeError as cause:
            raise Refused(f"the property string is not UTF-8 at byte {cause.start}") from cause


class LogWriter:
    """Appends to the log and the queues; nothing else does."""

    def __init__(
        self,
        commit_log: CommitLog,
        *,
        store_host: bytes,
        message_bytes_max: int,
        visible_after: Watermark,
        now_ms: Callable[[], int],
        on_growth: GrowthListener | None,
    ) -> None:
        self.lock = threading.RLock()
        self.log = commit_log
        self.durable = commit_log.written
        """The physical offset below which everything survives a crash of the machine."""
        self.replicated = commit_log.written
        """The physical offset below which enough replicas have everything."""
        self.refusal: SparrowError | None = None
        """The error that appends raise at present; None if they are accepted."""
        self.key_backlog = KeyBacklog()
        self.dirty_queues: set[ConsumeQueue] = set()
        """Queues with entries that are not in their files yet."""
        self.truncations = 0
        """Number of truncations. A sync that began before a truncation must not advance `durable` after it."""
        self.hidden_from = _NEVER
        """The physical offset of an unfinished atomic append: records from here on are hidden, even if durable."""
        self._groups: list[tuple[int, int]] = []
        """Begins and ends of the atomic appends that are not replicated yet; the end of an unfinished one is far."""
        self.on_durable: Callable[[], None] = lambda: None
        """Called, in any thread, when `durable` has advanced."""
        self.newest_ms = 0
        """The last store time assigned."""
        self.store_host = store_host
        self.message_bytes_max = message_bytes_max
        self.visible_after = visible_after
        self._now_ms = now_ms
        self._on_growth = on_growth
        self._held: deque[tuple[int, ConsumeQueue, QueueOffset]] = deque()

    # -- drafts -------------------------------------------------------------------------------------------------------

    def append(self, queue: ConsumeQueue, drafts: Sequence[Draft]) -> AppendResult:
        """Append a batch back to back in one segment, completely or not at all."""
        if len(drafts) == 1 and not drafts[0].sys_flag & record.HIDDEN_FLAG:
            return self._append_one(queue, drafts[0])
        topic, queue_id, host = queue.topic_field, queue.queue.id, self.store_host
        sizes = []
        for draft in drafts:
            self._check(queue, draft)
            sizes.append(record.record_size(draft, topic, host))
        total = sum(sizes)
        if total + BLANK_RECORD_BYTES > self.log.segment_bytes or not sizes:
            raise TooLarge("the batch", total, self.log.segment_bytes - BLANK_RECORD_BYTES)
        with self.lock:
            self.check_may_append(queue)
            segment, at = self.log.allocate(total)
            store_ms = self.store_ms()
            first, place, delay_ms = queue.end, int(at), queue.delay_ms
            offset = int(first)
            encoded, places, entries = [], [], []
            for draft, size in zip(drafts, sizes, strict=True):
                is_hidden = draft.sys_flag & record.HIDDEN_FLAG
                encoded.append(
                    record.encode(
                        draft,
                        topic,
                        size=size,
                        queue_id=queue_id,
                        queue_offset=0 if is_hidden else offset,
                        physical_offset=place,
                        store_ms=store_ms,
                        store_host=host,
                    )
                )
                places.append(place)
                if not is_hidden:
                    code = tags_code_in(draft.properties) if delay_ms is None else store_ms + delay_ms
                    entries.append(_pack_entry(place, size, code))
                    offset += 1
                place += size
            end = PhysicalOffset(place)
            self.log.write(segment, b"".join(encoded))
            self.key_backlog.add_offsets(places)
            if entries:
                queue.extend(b"".join(entries))
                self.publish_growth(queue, end)
        return AppendResult(queue.queue, first, cast(list[PhysicalOffset], places), end, store_ms)

    def _append_one(self, queue: ConsumeQueue, draft: Draft) -> AppendResult:
        """Append a single visible message: the usual case, without lists."""
        self._check(queue, draft)
        topic, host, properties = queue.topic_field, self.store_host, draft.properties
        size = record.record_size(draft, topic, host)
        if size + BLANK_RECORD_BYTES > self.log.segment_bytes:
            raise TooLarge("the message", size, self.log.segment_bytes - BLANK_RECORD_BYTES)
        code = tags_code_in(properties) if queue.delay_ms is None else 0
        with self.lock:
            self.check_may_append(queue)
            segment, at = self.log.allocate(size)
            store_ms = self.store_ms()
            offset = queue.end
            data = record.encode(
                draft,
                topic,
                size=size,
                queue_id=queue.queue.id,
                queue_offset=offset,
                physical_offset=at,
                store_ms=store_ms,
                store_host=host,
            )
            self.log.write(segment, data)
            self.key_backlog.add_offset(at)
            if queue.delay_ms is not None:
                code = store_ms + queue.delay_ms
            queue.extend(_pack_entry(at, size, code))
            end = PhysicalOffset(at + size)
            self.publish_growth(queue, end)
        return AppendResult(queue.queue, offset, (at,), end, store_ms)

    def allocate(self, queue: ConsumeQueue, draft: Draft) -> int:
        """Return the physical offset at which a draft of this size is appended next. The caller holds the lock."""
        self.check_may_append(queue)
        size = self.size_of(queue, draft)
        if size + BLANK_RECORD_BYTES > self.log.segment_bytes:
            raise TooLarge("the message", size, self.log.segment_bytes - BLANK_RECORD_BYTES)
        return int(self.log.allocate(size)[1])

    def size_of(self, queue: ConsumeQueue, draft: Draft) -> int:
        """Return the size of a message in the log."""
        return record.record_size(draft, queue.topic_field, self.store_host)

    def _check(self, queue: ConsumeQueue, draft: Draft) -> None:
        if len(draft.body) > self.message_bytes_max and not queue.is_internal:
            raise TooLarge("the body", len(draft.body), self.message_bytes_max)
        properties = draft.properties
        if len(properties) > PROPERTIES_BYTES_MAX or not properties.isascii():
            check_properties(properties)

    # -- encoded records ----------------------------------------------------------------------------------------------

    def append_encoded(
        self, queue: ConsumeQueue, data: memoryview, sizes: npt.NDArray[np.int64], *, verify_crc: bool
    ) -> AppendResult:
        """Append records that `wire.columns.encode` laid out, back to back in one segment, completely or not at all.

        Offsets, time, queue and host are stamped into them. Keys and tags are parsed before the lock is taken.
        """
        if len(data) + BLANK_RECORD_BYTES > self.log.segment_bytes:
            raise TooLarge("the run of records", len(data), self.log.segment_bytes - BLANK_RECORD_BYTES)
        run = self.parse_run(queue, data, sizes, verify_crc=verify_crc)
        with self.lock:
            self.check_may_append(queue)
            first = queue.end
            places, entries, store_ms = self.write_piece(RunPiece(run, 0, len(run.starts)), first)
            queue.extend(entries)
            end = self.log.written
            self.publish_growth(queue, end)
        return AppendResult(queue.queue, first, array("q", places.tobytes()), end, store_ms)  # type: ignore[arg-type]

    def parse_run(
        self,
        queue: ConsumeQueue,
        data: memoryview,
        sizes: npt.ArrayLike,
        *,
        verify_crc: bool,
        keeps_keys: bool = True,
    ) -> EncodedRun:
        """Parse records for `write_piece`. The lock is not needed."""
        host_bytes = len(self.store_host)
        return parse_run(queue, data, sizes, store_host_bytes=host_bytes, verify_crc=verify_crc, keeps_keys=keeps_keys)

    def write_piece(self, piece: RunPiece, first: int) -> tuple[npt.NDArray[np.int64], memoryview, int]:
        """Write records into one segment, with queue offsets from `first` on. The caller holds the lock.

        Return their physical offsets, the entries by which the queue is to be extended, and their store time.
        """
        run, queue = piece.run, piece.run.queue
        starts, entries, data, keys = run.starts, run.entries, run.data, run.keys
        if (piece.first, piece.stop) != (0, len(starts)):
            begin = int(starts[piece.first])
            starts, entries = starts[piece.first : piece.stop] - begin, entries[piece.first : piece.stop].copy()
            data, keys = data[begin : begin + int(starts[-1]) + int(entries["size"][-1])], None
        total = len(data)
        segment, at = self.log.allocate(total)
        store_ms = self.store_ms()
        places = starts + at
        laid = segment.view[at - segment.base : at - segment.base + total]
        # NumPy copies without the interpreter lock, so other threads continue.
        np.copyto(
            np.frombuffer(laid[RECORD_PREFIX_BYTES:], np.uint8), np.frombuffer(data[RECORD_PREFIX_BYTES:], np.uint8)
        )
        columns.stamp_offsets(
            laid,
            starts,
            queue_offset=np.arange(first, first + len(starts)),
            physical_offset=places,
            store_ms=store_ms,
            queue_id=queue.queue.id,
            store_host=self.store_host,
        )
        laid[:RECORD_PREFIX_BYTES] = data[:RECORD_PREFIX_BYTES]
        self.log.advance(total)
        entries["physical_offset"] = places
        if queue.delay_ms is not None:
            entries["tags_code"] = store_ms + queue.delay_ms
        if keys is None:
            self.key_backlog.add_offsets(places.tolist())
        else:
            self.key_backlog.add_run(keys, places, store_ms)
        return places, entries.view(np.uint8).data, store_ms

    @contextmanager
    def hidden_appends(self) -> Iterator[None]:
        """Hide what is appended meanwhile from reads by physical offset. The caller holds the lock."""
        self.hidden_from = start = self.log.written
        self.begin_group(start)
        yield
        self.end_group(start, self.log.written)
        self.hidden_from = _NEVER  # not after a failure: an unfinished atomic append stays hidden

    def begin_group(self, start: int) -> None:
        """Note that an atomic append starts at a physical offset. The caller holds the lock."""
        is_kept = self.visible_after == "replicated"
        self._groups = [group for group in self._groups if is_kept and group[1] > self.replicated] + [(start, _NEVER)]

    def end_group(self, start: int, end: int) -> None:
        """Note where an atomic append ends. The caller holds the lock."""
        self._groups = [group if group[0] != start else (start, end) for group in self._groups]

    def complete_end(self, physical_offset: int) -> int:
        """Return the offset, or the begin of the atomic append that it lies in. No lock is needed.

        The log must not be cut, or shown, in the middle of an atomic append.
        """
        for start, end in self._groups:
            if start < physical_offset < end:
                return start
        return physical_offset

    # -- shared -------------------------------------------------------------------------------------------------------

    @contextmanager
    def allowing_full_disk(self) -> Iterator[None]:
        """Accept appends although the disk is full: state updates before retention, offsets before a close.

        The caller holds the lock.
        """
        refusal = self.refusal
        if isinstance(refusal, StoreFull):
            self.refusal = None
        try:
            yield
        finally:
            self.refusal = refusal

    def check_may_append(self, queue: ConsumeQueue) -> None:
        if self.refusal is not None:
            # One error is raised for many requests. Its old traceback would keep their frames, with their bodies.
            raise self.refusal.with_traceback(None)
        if queue.is_deleted:
            raise UnknownTopic(queue.queue.topic)

    def store_ms(self) -> int:
        """Return the next store time. It never goes back, so order by time is order by offset."""
        now_ms = self._now_ms()
        if now_ms > self.newest_ms:
            self.newest_ms = now_ms
        return self.newest_ms

    def publish_growth(self, queue: ConsumeQueue, end: int) -> None:
        """Show the queue's new messages once everything below `end` is safe enough. The caller holds the lock."""
        self.dirty_queues.add(queue)
        if self.visible_after == "written":
            queue.visible_end = queue.end
            if self._on_growth is not None:
                self._on_growth(queue.queue, queue.visible_end)
        else:
            self._held.append((end, queue, queue.end))

    def advance_watermark(self, watermark: Watermark, offset: int) -> None:
        """Advance a watermark to `offset`, and show the messages that waited for it."""
        grown: dict[Queue, QueueOffset] = {}
        with self.lock:
            offset = min(offset, self.log.written)  # the log may have been truncated since
            if watermark == self.visible_after:
                while self._held and self._held[0][0] <= offset:
                    _, queue, end = self._held.popleft()
                    if not queue.is_deleted:
                        queue.visible_end = end
                        grown[queue.queue] = end
            # Last: threads that read the watermark without the lock expect everything below it to be visible.
            if watermark == "durable":
                self.durable = PhysicalOffset(max(self.durable, offset))
            else:
                self.replicated = PhysicalOffset(max(self.replicated, offset))
        if watermark == "durable":
            self.on_durable()
        if self._on_growth is not None:
            for name, end in grown.items():
                self._on_growth(name, end)

    def show_to(self, high_watermark: int, queues: Iterable[ConsumeQueue]) -> None:
        """Set the high watermark; if readers see no more, hide what recovery has found beyond it."""
        written = self.log.written
        self.replicated = PhysicalOffset(min(high_watermark, written))
        if self.visible_after != "replicated":
            return
        for queue in queues:
            end = queue.partition_point(queue.first, queue.end, lambda at, _size: at < self.replicated)
            if end < queue.end:
                queue.visible_end = QueueOffset(end)
                self._held.append((written, queue, queue.end))

    def truncate(self, end: int) -> None:
        """Forget watermarks, held messages and keys beyond `end`, at which the log was truncated."""
        self.truncations += 1
        self.durable = PhysicalOffset(min(self.durable, end))
        self.replicated = PhysicalOffset(min(self.replicated, end))
        self._held = deque(item for item in self._held if item[0] <= end)
        self._groups = [group for group in self._groups if group[1] <= end]
        self.key_backlog.truncate(end)
