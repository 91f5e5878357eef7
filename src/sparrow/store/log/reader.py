"""Reading queues and records: hot ones straight from the mapping, all others from the file, and checked.

Bytes this process wrote, or checked when it opened the store, are served as they lie in memory. Everything older is
read without holding up the event loop, and a record whose structure, place or checksum is wrong is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sparrow.model.queue import Bounds, Queue, QueueOffset
from sparrow.store.log.commit_log import CommitLog
from sparrow.store.log.consume_queue import ENTRY, ENTRY_BYTES, FILLER_SIZE, ConsumeQueue
from sparrow.store.spi import AtEnd, Moved, ReadResult, Slice
from sparrow.wire import columns
from sparrow.wire.record import SMALLEST_BYTES

log = logging.getLogger(__name__)

_EMPTY = Bounds(QueueOffset(0), QueueOffset(0))
_EXAMINED_MIN = 800
"""Entries one read looks at, at least, when a tag filter lets few through."""


class Place(NamedTuple):
    """What a queue entry says of a record."""

    physical_offset: int
    size: int
    offset: int


class Reader:
    """Reads below whatever end the queue makes visible."""

    def __init__(self, commit_log: CommitLog, *, hot_bytes: int, checked_from: int) -> None:
        self._log, self._hot_bytes = commit_log, hot_bytes
        self.checked_from = checked_from
        self.damaged: set[int] = set()
        """Physical offsets of records found damaged while reading."""

    def read(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        tags_codes: frozenset[int] | None,
        hot_only: bool,
    ) -> ReadResult | None:
        """Records from `offset` on. With `hot_only`, None means: not without waiting for the disk."""
        bounds = queue.bounds if queue is not None else _EMPTY
        if offset == bounds.end:
            return AtEnd(bounds)
        if not bounds.first <= offset < bounds.end:
            return Moved(bounds.first if offset < bounds.first else bounds.end, bounds)
        assert queue is not None, "an unknown queue holds nothing"
        is_ours = queue.is_recent(offset)  # an entry in memory is what this process put there
        if hot_only and not is_ours:
            return None
        examined = count_max if tags_codes is None else max(count_max, _EXAMINED_MIN)
        raw = queue.entries(offset, min(examined, bounds.end - offset))
        chosen, next_offset = _choose(raw, offset, count_max, bytes_max, tags_codes)
        if not chosen:
            return Slice((), (), QueueOffset(next_offset), bounds)
        oldest = chosen[0].physical_offset
        if 0 <= oldest < self._log.first and queue.bounds.first > offset:  # retention is just taking it
            return Moved(queue.bounds.first, queue.bounds)
        if is_ours and oldest >= max(self.checked_from, self._log.written - self._hot_bytes):
            return self._hot(chosen, next_offset, bounds)
        if hot_only:
            return None
        return self._cold(queue, chosen, next_offset, bounds)

    def _hot(self, chosen: list[Place], next_offset: int, bounds: Bounds) -> ReadResult:
        runs = []
        for start, end in _runs(chosen):
            segment = self._log.segment_at(start)
            assert segment is not None, "what this process wrote lies in a segment it has"
            runs.append(segment.view[start - segment.base : end - segment.base])
        return Slice(runs, [place.size for place in chosen], QueueOffset(next_offset), bounds)

    def _cold(self, queue: ConsumeQueue, chosen: list[Place], next_offset: int, bounds: Bounds) -> ReadResult:
        lost = [place.physical_offset for place in chosen if not self._is_in_log(place)]
        if lost:
            self._report(queue.queue, lost)
            chosen = [place for place in chosen if self._is_in_log(place)]
            if not chosen:
                return Slice((), (), QueueOffset(next_offset), bounds)
        data = b"".join(self._log.read(start, end - start) for start, end in _runs(chosen))
        places, sizes, offsets = np.array(chosen, np.int64).T
        starts = columns.starts_of(sizes)
        is_sound = columns.check(data, starts, base=places - starts, topic=queue.topic_bytes)
        rows = np.flatnonzero(is_sound)
        head = columns.overlapping(data, columns.HEADER)[starts[rows]]
        is_sound[rows] = (
            (head["size"] == sizes[rows])
            & (head["queue_id"] == queue.queue.id)
            & (head["queue_offset"] == offsets[rows])
        )
        if is_sound.all():
            return Slice([memoryview(data)], sizes.tolist(), QueueOffset(next_offset), bounds)
        self._report(queue.queue, places[~is_sound].tolist())
        kept = np.flatnonzero(is_sound)
        runs = [memoryview(data)[starts[row] : starts[row] + sizes[row]] for row in kept.tolist()]
        return Slice(runs, sizes[kept].tolist(), QueueOffset(next_offset), bounds)

    def _is_in_log(self, place: Place) -> bool:
        """Whether a record can lie there at all: an entry of a damaged queue file may say anything."""
        segment = self._log.segment_at(place.physical_offset)
        end = place.physical_offset + place.size
        return segment is not None and place.size >= SMALLEST_BYTES and end <= min(segment.end, self._log.written)

    def _report(self, queue: Queue, physical_offsets: list[int]) -> None:
        for at in physical_offsets:
            if at not in self.damaged:
                self.damaged.add(at)
                log.error("a damaged record is left out", extra={"queue": str(queue), "physical_offset": at})

    def record_at(self, physical_offset: int) -> bytes | None:
        """The sound record that starts exactly there."""
        size = self._log.size_at(physical_offset) if physical_offset >= 0 else None
        segment = self._log.segment_at(physical_offset)
        if size is None or segment is None:
            return None
        data = segment.pread(physical_offset - segment.base, size)
        is_sound = columns.check(data, np.zeros(1, np.int64), base=physical_offset)
        return data if len(data) == size and bool(is_sound[0]) else None


def _choose(
    raw: bytes, offset: int, count_max: int, bytes_max: int, tags_codes: frozenset[int] | None
) -> tuple[list[Place], int]:
    """The entries that are wanted and fit, and the offset behind the last one looked at."""
    if tags_codes is None and len(raw) > 256 * ENTRY_BYTES:
        return _choose_many(raw, offset, bytes_max)
    chosen: list[Place] = []
    taken = 0
    for at, size, code in ENTRY.iter_unpack(raw):
        if size != FILLER_SIZE and (tags_codes is None or code in tags_codes):
            if chosen and (taken + size > bytes_max or len(chosen) == count_max):
                break
            chosen.append(Place(at, size, offset))
            taken += size
        offset += 1
    return chosen, offset


def _choose_many(raw: bytes, offset: int, bytes_max: int) -> tuple[list[Place], int]:
    entries = np.frombuffer(raw, columns.QUEUE_ENTRY)
    is_record = entries["size"] != FILLER_SIZE
    taken = np.cumsum(np.where(is_record, entries["size"], 0), dtype=np.int64)
    count = max(1, int(np.searchsorted(taken, bytes_max, side="right")))
    kept = entries[:count][is_record[:count]]
    offsets = np.flatnonzero(is_record[:count]) + offset
    places = zip(kept["physical_offset"].tolist(), kept["size"].tolist(), offsets.tolist(), strict=True)
    return list(map(Place._make, places)), offset + count


def _runs(chosen: list[Place]) -> Iterator[tuple[int, int]]:
    """Stretches of the log in which the chosen records lie back to back."""
    start, size, _ = chosen[0]
    end = start + size
    for at, size, _ in chosen[1:]:
        if at != end:
            yield start, end
            start = at
        end = at + size
    yield start, end
