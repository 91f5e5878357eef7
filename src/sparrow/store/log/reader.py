"""The reader: reads records of queues, hot ones from the mapping, all others from the files with a check.

1. Hot records, which this process wrote not long ago, are returned as they are in memory.
2. A few older ones are read at once if the page cache has them, and nothing is wrong with them.
3. Everything else is read in threads, and a record whose structure, position or checksum is wrong is skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from struct import Struct

import numpy as np
import numpy.typing as npt

from sparrow.model.queue import Queue, QueueBounds, QueueOffset
from sparrow.store.log.commit_log.commit_log import CommitLog
from sparrow.store.log.consume_queues.consume_queue import ENTRY, ENTRY_BYTES, FILLER_SIZE, ConsumeQueue
from sparrow.store.log.page_cache import read_ahead, read_cached
from sparrow.store.spi import AtEnd, Moved, ReadResult, Slice
from sparrow.wire import columns
from sparrow.wire.record import PHYSICAL_OFFSET_POSITION, QUEUE_ID_POSITION, QUEUE_OFFSET_POSITION, RECORD_BYTES_MIN

log = logging.getLogger(__name__)

_EMPTY = QueueBounds(QueueOffset(0), QueueOffset(0))
Ints = npt.NDArray[np.int64]

_FEW_ENTRIES = 1024
_EXAMINED_MIN = 800
"""Entries that one read examines at least when it filters by tags."""
_CACHED_BYTES_MAX = 1 << 20
"""More bytes than this are read in a thread, even if the page cache has them."""
_CACHED_RUNS_MAX = 64
_CLOSE_BYTES = 256 * 1024
"""Records that lie so close together are read in one piece, with what lies between them."""
_READ_AHEAD_BYTES = 2 << 20
"""What a reader of old records gets into the page cache beforehand."""
_SAMPLED = 64
"""Entries from which the mean record size is estimated."""
_PLACE = Struct(">i8xi4xqq")
"""The fields of a record that say where it belongs: size, queue id, queue offset, physical offset."""


class LogReader:
    """Reads records up to the visible end of a queue."""

    def __init__(self, commit_log: CommitLog, *, hot_bytes: int, checked_from: int) -> None:
        self._log, self._hot_bytes = commit_log, hot_bytes
        self.checked_from = checked_from
        self.damaged: set[int] = set()
        """Physical offsets of damaged records that reads have met."""

    def read(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        *,
        nowait: bool,
        count_max: int = 32,
        bytes_max: int = 256 * 1024,
        tags_codes: frozenset[int] | None = None,
    ) -> ReadResult | None:
        """Read records from `offset` on. With `nowait`, return None if that needs a thread."""
        bounds = queue.bounds if queue is not None else _EMPTY
        if offset == bounds.end or (queue is not None and bounds.end < offset <= queue.end):
            return AtEnd(bounds)  # what is written behind the end is not visible yet
        if not bounds.first <= offset < bounds.end:
            return Moved(bounds.first if offset < bounds.first else bounds.end, bounds)
        assert queue is not None, "an unknown queue is empty"
        is_warm = queue.is_warm(offset)
        examined = count_max if tags_codes is None else max(count_max, _EXAMINED_MIN)
        examined = min(examined, bounds.end - offset)
        if tags_codes is None and examined > _FEW_ENTRIES:
            if nowait and not is_warm:
                return None
            examined = min(examined, _fitting(queue, offset, bytes_max))
        raw = queue.entries_nowait(offset, examined) if nowait else queue.entries(offset, examined)
        if raw is not None and (is_warm or nowait) and len(raw) <= _FEW_ENTRIES * ENTRY_BYTES:
            places, sizes, next_offset = _choose_few(raw, offset, count_max, bytes_max, tags_codes)
            if is_warm and (not places or places[0] >= self._hot_from):
                return Slice(self._views(places, sizes), sizes, QueueOffset(next_offset), bounds)
            if nowait:
                views = self._cached(queue, places, sizes, offset, next_offset)
                return None if views is None else Slice(views, sizes, QueueOffset(next_offset), bounds)
        if raw is None or nowait:
            return None
        return self._checked(queue, raw, offset, count_max, bytes_max, tags_codes)

    @property
    def _hot_from(self) -> int:
        return max(self.checked_from, self._log.written - self._hot_bytes)

    def _views(self, places: list[int], sizes: list[int]) -> list[memoryview]:
        """Return views of records in the mapping; records that lie back to back share one view."""
        if not places:
            return []
        first, end = places[0], places[-1] + sizes[-1]
        if end - first == sum(sizes):  # back to back
            return [self._view(first, end)]
        segment = self._log.segment_at(first)
        if segment is not None and end <= segment.end:
            view, base = segment.view, segment.base
            return [view[at - base : at - base + size] for at, size in zip(places, sizes, strict=True)]
        return [self._view(at, at + size) for at, size in zip(places, sizes, strict=True)]

    def _view(self, start: int, end: int) -> memoryview:
        segment = self._log.segment_at(start)
        assert segment is not None, "hot records are in an open segment"
        return segment.view[start - segment.base : end - segment.base]

    def _cached(
        self, queue: ConsumeQueue, places: list[int], sizes: list[int], offset: int, next_offset: int
    ) -> list[memoryview] | None:
        """Return records if the page cache has them, and all are sound; else None.

        `offset` and `next_offset` are the range of their queue offsets.
        """
        read = self._read_cached(places, sizes)
        if read is None:
            return None
        data, starts = read
        queue_id = queue.queue.id
        for start, place, size in zip(starts, places, sizes, strict=True):
            found_size, found_id, found_offset, found_place = _PLACE.unpack_from(data, start)
            if found_size != size or found_place != place or found_id != queue_id or found_offset < offset:
                return None
            if start + size > len(data):
                return None
            offset = found_offset + 1
        if offset > next_offset:
            return None
        if min(places) < self.checked_from:  # see `_checked`
            base = np.array(places, np.int64) - starts
            if not columns.find_valid(data, starts, base=base, topic=queue.topic_bytes).all():
                return None
        view = memoryview(data)
        return [view[start : start + size] for start, size in zip(starts, sizes, strict=True)]

    def _read_cached(self, places: list[int], sizes: list[int]) -> tuple[bytearray | bytes, list[int]] | None:
        """Return bytes with the records, and where in them each starts; None if that needs the disk."""
        total = sum(sizes)
        segment = self._log.segment_at(places[0]) if places and min(sizes) >= RECORD_BYTES_MIN else None
        if segment is None or total > _CACHED_BYTES_MAX or places != sorted(places):
            return None
        first, end = places[0], places[-1] + sizes[-1]
        if end > min(segment.end, self._log.written):
            return None
        if end - first <= max(total, _CLOSE_BYTES):
            data = read_cached(segment.fd, first - segment.base, end - first)
            return None if data is None else (data, [place - first for place in places])
        if len(places) > _CACHED_RUNS_MAX:
            return None
        parts, starts, length = [], [], 0
        for place, size in zip(places, sizes, strict=True):
            part = read_cached(segment.fd, place - segment.base, size)
            if part is None:
                return None
            parts.append(part)
            starts.append(length)
            length += size
        return b"".join(parts), starts

    def _checked(
        self,
        queue: ConsumeQueue,
        raw: bytes,
        offset: int,
        count_max: int,
        bytes_max: int,
        tags_codes: frozenset[int] | None,
    ) -> ReadResult:
        """Read records, and skip those that are damaged, of another size than the entry says, or of another queue."""
        bounds = queue.bounds
        rows, next_offset = _choose_many(raw, offset, count_max, bytes_max, tags_codes)
        entries = np.frombuffer(raw, columns.QUEUE_ENTRY_DTYPE)[rows]
        places, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
        if len(places) and 0 <= places[0] < self._log.first and bounds.first > offset:
            return Moved(bounds.first, bounds)  # retention is deleting it at this moment
        is_there = self._log.holds(places, sizes)
        self._report(queue.queue, places[~is_there].tolist())
        places, sizes, offsets = places[is_there], sizes[is_there], (rows + offset)[is_there]
        data, starts = self._gathered(places, sizes), columns.starts_from_sizes(sizes)
        if len(places):
            self._read_ahead(int(places[-1] + sizes[-1]))
        is_sound = (sizes >= RECORD_BYTES_MIN) & _is_at_home(data, starts, sizes, places, offsets, queue.queue.id)
        if len(places) and places.min() < self.checked_from:
            # Older than this process: the bytes were not checked since they were read from the disk.
            is_sound &= columns.find_valid(data, starts, base=places - starts, topic=queue.topic_bytes)
        if is_sound.all():
            return Slice([memoryview(data)], sizes.tolist(), QueueOffset(next_offset), bounds)
        self._report(queue.queue, places[~is_sound].tolist())
        kept = np.flatnonzero(is_sound)
        views = [memoryview(data)[starts[row] : starts[row] + sizes[row]] for row in kept.tolist()]
        return Slice(views, sizes[kept].tolist(), QueueOffset(next_offset), bounds)

    def _gathered(self, places: Ints, sizes: Ints) -> memoryview:
        """Return the records end to end, from the mapping if they are in one segment."""
        ends = places + sizes
        segment = self._log.segment_at(int(places[0])) if len(places) else None
        if segment is None or places.min() < segment.base or ends.max() > segment.end:
            return memoryview(b"".join(self._log.read(start, end - start) for start, end in _runs(places, sizes)))
        return columns.join_slices(segment.view, places - segment.base, ends - segment.base)

    def _read_ahead(self, physical_offset: int) -> None:
        """Get what follows into the page cache: a reader of old records will need it next."""
        segment = self._log.segment_at(physical_offset)
        if segment is not None and physical_offset < self._hot_from:
            read_ahead(segment.fd, physical_offset - segment.base, _READ_AHEAD_BYTES)

    def _report(self, queue: Queue, physical_offsets: list[int]) -> None:
        for at in physical_offsets:
            if at not in self.damaged:
                self.damaged.add(at)
                log.error(
                    "the record of %(queue)s at physical offset %(physical_offset)s is damaged and is skipped",
                    {"queue": queue, "physical_offset": at},
                )

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the sound record that starts exactly at the offset, else None."""
        size = self._log.size_at(physical_offset) if physical_offset >= 0 else None
        segment = self._log.segment_at(physical_offset)
        if size is None or segment is None:
            return None
        data = segment.pread(physical_offset - segment.base, size)
        is_sound = columns.find_valid(data, np.zeros(1, np.int64), base=physical_offset)
        return data if len(data) == size and bool(is_sound[0]) else None


def _fitting(queue: ConsumeQueue, offset: int, bytes_max: int) -> int:
    """Estimate from the first entries how many fill an answer, so that no more are examined."""
    sizes = np.frombuffer(queue.entries(offset, _SAMPLED), columns.QUEUE_ENTRY_DTYPE)["size"]
    usual = int(sizes.mean()) if len(sizes) else 0
    return _SAMPLED + bytes_max // max(usual, RECORD_BYTES_MIN)


def _choose_few(
    raw: bytes, offset: int, count_max: int, bytes_max: int, tags_codes: frozenset[int] | None
) -> tuple[list[int], list[int], int]:
    """Return offsets and sizes of records that match and fit, and the queue offset after the last entry examined."""
    if tags_codes is None and raw:
        # The usual pull: everything matches and fits.
        every_place, every_size, _ = zip(*ENTRY.iter_unpack(raw), strict=True)
        if len(every_size) <= count_max and FILLER_SIZE not in every_size and sum(every_size) <= bytes_max:
            return list(every_place), list(every_size), offset + len(every_size)
    places: list[int] = []
    sizes: list[int] = []
    taken = 0
    for at, size, code in ENTRY.iter_unpack(raw):
        if size != FILLER_SIZE and (tags_codes is None or code in tags_codes):
            taken += size
            if places and (taken > bytes_max or len(places) == count_max):
                break
            places.append(at)
            sizes.append(size)
        offset += 1
    return places, sizes, offset


def _choose_many(
    raw: bytes, offset: int, count_max: int, bytes_max: int, tags_codes: frozenset[int] | None
) -> tuple[Ints, int]:
    """Do the same for many entries: return which ones, and the queue offset after the last one examined."""
    entries = np.frombuffer(raw, columns.QUEUE_ENTRY_DTYPE)
    is_wanted = entries["size"] != FILLER_SIZE
    if tags_codes is not None:
        is_wanted &= np.isin(entries["tags_code"], np.fromiter(tags_codes, np.int64, len(tags_codes)))
    rows = np.flatnonzero(is_wanted)
    # The size in a damaged entry may be negative: count it as 0 here, the check of the record rejects it later.
    taken = np.cumsum(np.maximum(entries["size"][rows], 0), dtype=np.int64)
    count = max(1, min(count_max, int(np.searchsorted(taken, bytes_max, side="right"))))
    looked_at = int(rows[count]) if count < len(rows) else len(entries)
    return rows[:count], offset + looked_at


def _is_at_home(
    data: memoryview, starts: Ints, sizes: Ints, places: Ints, offsets: Ints, queue_id: int
) -> npt.NDArray[np.bool_]:
    """Return which records have the size, queue id and offsets that their queue entries say."""
    if len(data) < RECORD_BYTES_MIN:
        return np.zeros(len(starts), np.bool_)
    fits = np.minimum(starts, len(data) - RECORD_BYTES_MIN)

    def says(kind: str, at: int, what: Ints | int) -> npt.NDArray[np.bool_]:
        is_so: npt.NDArray[np.bool_] = columns.unaligned_view(data, kind, at)[fits] == what
        return is_so

    return (
        says(">i4", 0, sizes)
        & says(">i4", QUEUE_ID_POSITION, queue_id)
        & says(">i8", QUEUE_OFFSET_POSITION, offsets)
        & says(">i8", PHYSICAL_OFFSET_POSITION, places)
    )


def _runs(places: Ints, sizes: Ints) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the log in which records lie back to back."""
    if not len(places):
        return
    ends = places + sizes
    cuts = np.flatnonzero(places[1:] != ends[:-1])
    yield from zip(places[np.append(0, cuts + 1)].tolist(), ends[np.append(cuts, len(ends) - 1)].tolist(), strict=True)
