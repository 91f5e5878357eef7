"""The commit log: the records of all queues in the order of their appends, in segments of one size.

1. Records lie back to back and never span segments; the unused end of a segment starts with a blank record
   (4 bytes length of the rest, 4 bytes magic) and counts as written.
2. At least 8 bytes stay free after every record, so that a blank record always fits.
3. Beyond `written` everything is zero.
4. The first 8 bytes of a batch are written last. A process that is killed in between leaves zeros there, and recovery
   takes them for the end of the log: a batch is there completely or not at all.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

import numpy as np
import numpy.typing as npt

from sparrow.model.errors import StoreFull
from sparrow.model.queue import PhysicalOffset
from sparrow.store.log.commit_log import mapped_pages
from sparrow.store.log.commit_log.segment import Segment
from sparrow.wire.record import MAGIC_BLANK, RECORD_BYTES_MIN

log = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]

BLANK_RECORD_BYTES = 8
RECORD_PREFIX_BYTES = 8
"""Size and magic number: without them recovery finds no record."""
_BLANK = Struct(">ii")
_SIZE = Struct(">i")
_WARM_STEP_BYTES = 4 << 20
_ALLOCATION_PAUSE_S = 1.0
"""How long appends are refused, without another attempt, after an allocation has failed."""


class CommitLog:
    """Written by one thread at a time (the writer's lock), read by any."""

    def __init__(
        self,
        directory: Path,
        segment_bytes: int,
        *,
        warm_bytes: int = 0,
        lock_memory: bool = False,
        is_synced: bool = False,
    ) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self.written = PhysicalOffset(0)
        self._bases: list[int] = []
        self._spare: list[Segment] = []
        """Segments allocated in advance, in order."""
        self._allocating = threading.Lock()
        self._warm_bytes = warm_bytes
        self._lock_memory = lock_memory
        self._is_synced = is_synced
        self._warm_to = 0
        self._unlocked_to = 0
        self.on_pages_low: Callable[[], None] = lambda: None
        """Called when few populated pages are left after the end of the log."""
        self._refuse_until = 0.0

    # -- segments -----------------------------------------------------------------------------------------------------

    @property
    def first(self) -> PhysicalOffset:
        """The physical offset of the oldest byte."""
        return PhysicalOffset(self._bases[0]) if self._bases else self.written

    def adopt(self, segments: list[Segment], written: int) -> None:
        """Take over the segments that recovery has opened."""
        self.segments = segments
        self._bases = [segment.base for segment in segments]
        self.written = PhysicalOffset(written)
        self._warm_to = self._unlocked_to = written

    def segment_at(self, physical_offset: int) -> Segment | None:
        """Return the segment that contains the offset."""
        at = bisect_right(self._bases, physical_offset) - 1
        if at < 0 or physical_offset >= self._bases[at] + self.segment_bytes:
            return None
        return self.segments[at]

    # -- writing ------------------------------------------------------------------------------------------------------

    def allocate(self, size: int) -> tuple[Segment, PhysicalOffset]:
        """Return the segment and offset for the next `size` bytes; start a new segment if they do not fit."""
        if self.segments:
            active = self.segments[-1]
            free = active.end - self.written
            if size + BLANK_RECORD_BYTES <= free:
                return active, self.written
            self._roll(active, free)
        elif size + BLANK_RECORD_BYTES > self.segment_bytes:
            raise AssertionError(f"a run of {size} bytes fits no segment of {self.segment_bytes}")
        else:
            self._take_next(self.written - self.written % self.segment_bytes)
        return self.segments[-1], self.written

    def free_bytes(self) -> int:
        """Return how many bytes of records fit into the active segment."""
        return self.segments[-1].end - self.written - BLANK_RECORD_BYTES if self.segments else 0

    def write(self, segment: Segment, data: bytes) -> None:
        """Copy records to the offset that `allocate` returned, and advance `written`."""
        at = self.written - segment.base
        end = at + len(data)
        segment.mapping[at + RECORD_PREFIX_BYTES : end] = data[RECORD_PREFIX_BYTES:]
        segment.mapping[at : at + RECORD_PREFIX_BYTES] = data[:RECORD_PREFIX_BYTES]
        self.written = PhysicalOffset(segment.base + end)

    def advance(self, size: int) -> None:
        """Advance `written` by bytes that were copied into the mapping directly."""
        self.written = PhysicalOffset(self.written + size)
        if self.written + self._warm_bytes // 2 > self._warm_to:
            self.on_pages_low()

    def _roll(self, active: Segment, free: int) -> None:
        following = self._take_next(active.end)
        if free:
            assert free >= BLANK_RECORD_BYTES, "every record leaves space for a blank one after it"
            at = self.written - active.base
            active.mapping[at : at + BLANK_RECORD_BYTES] = _BLANK.pack(free, MAGIC_BLANK)
            self.written = PhysicalOffset(active.end)
        log.info("the commit log continues in segment %(base)s", {"base": following.base})

    def _add(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._bases.append(segment.base)

    def _take_next(self, base: int) -> Segment:
        if time.monotonic() < self._refuse_until:
            raise StoreFull(self.directory, "the disk was full a moment ago")
        # Under the lock to the end: the segment thread must not create the same file and keep it as a spare one.
        with self._raising_store_full(), self._allocating:
            segment = self._spare.pop(0) if self._spare else None
            if segment is None or segment.base != base:
                segment = Segment.create(self.directory, base, self.segment_bytes)
            self._add(segment)
            return segment

    def reserve(self, count: int) -> None:
        """Allocate `count` segments after the active one, or raise `StoreFull`. The next appends then cannot fail."""
        if count and time.monotonic() < self._refuse_until:
            raise StoreFull(self.directory, "the disk was full a moment ago")
        with self._raising_store_full(), self._allocating:
            end = self.segments[-1].end if self.segments else self.written - self.written % self.segment_bytes
            while len(self._spare) < count:
                base = end + len(self._spare) * self.segment_bytes
                self._spare.append(Segment.create(self.directory, base, self.segment_bytes))

    @contextmanager
    def _raising_store_full(self) -> Iterator[None]:
        try:
            yield
        except OSError as cause:
            if cause.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._refuse_until = time.monotonic() + _ALLOCATION_PAUSE_S
            raise StoreFull(self.directory, "a new segment could not be allocated") from cause

    # -- preparation: called by the segment thread --------------------------------------------------------------------

    def prepare(self) -> None:
        """Allocate the next segment once the active one is half full, and populate pages after the end."""
        if not self.segments:
            return
        active = self.segments[-1]
        if self.written - active.base > self.segment_bytes // 2:
            self._allocate_after(active)
        if self._warm_to < self.written + self._warm_bytes // 2:
            target = self.written + self._warm_bytes
            # Set first: an append meanwhile must not request the same pages again.
            start, self._warm_to = max(self._warm_to, self.written), target
            for segment in (active, *self._spare):
                self._warm(segment, start, target)
            if self._lock_memory:
                self._unlock_to(max(0, self.written - self._warm_bytes))

    def warm(self, size: int) -> None:
        """Populate pages for `size` bytes that are written next, so that the write takes no page fault per page."""
        if not self.segments or self._lock_memory or size <= self._warm_bytes // 2 or not self._warm_bytes:
            return
        target = min(self.written + size, self.segments[-1].end)
        start, self._warm_to = max(self._warm_to, self.written), max(self._warm_to, target)
        for at in range(start, target, _WARM_STEP_BYTES):  # in steps: each one blocks other mmap calls of the process
            self._warm(self.segments[-1], at, min(at + _WARM_STEP_BYTES, target))

    def _allocate_after(self, active: Segment) -> None:
        with self._allocating:
            if not self._spare and self.segments[-1] is active:
                self._spare.append(Segment.create(self.directory, active.end, self.segment_bytes))

    def _warm(self, segment: Segment, start: int, end: int) -> None:
        at, to = max(start, segment.base) - segment.base, min(end, segment.end) - segment.base
        if to <= at:
            return
        # Pages populated for writing are dirty. With flush="sync" every append would wait for them too.
        mapped_pages.populate(segment.mapping, at, to - at, dirty=not self._is_synced)
        if self._lock_memory:
            self._lock_memory = mapped_pages.lock(segment.mapping, at, to - at)
            if not self._lock_memory:
                log.warning("pages not locked in memory; raise the memlock limit (ulimit -l)")

    def _unlock_to(self, end: int) -> None:
        """Unlock pages below `end`: only those near the end stay locked."""
        for segment in self.segments:
            at, to = max(self._unlocked_to, segment.base), min(end, segment.end)
            if at < to:
                mapped_pages.unlock(segment.mapping, at - segment.base, to - at)
        self._unlocked_to = max(self._unlocked_to, end)

    # -- reading ------------------------------------------------------------------------------------------------------

    def size_at(self, physical_offset: int) -> int | None:
        """Return the size field at an offset, None if no record can start there."""
        segment = self.segment_at(physical_offset)
        if segment is None or physical_offset + RECORD_BYTES_MIN > min(self.written, segment.end):
            return None
        (size,) = _SIZE.unpack(segment.pread(physical_offset - segment.base, 4))
        if size < RECORD_BYTES_MIN or physical_offset + size > min(self.written, segment.end):
            return None
        return int(size)

    def holds(self, places: Ints, sizes: Ints) -> npt.NDArray[np.bool_]:
        """Return which ranges can be records: inside one segment, and written. Offsets and sizes may be arbitrary."""
        bases = np.array(self._bases, np.int64)
        if len(bases) == 0:
            return np.zeros(len(places), np.bool_)
        base = bases[np.maximum(np.searchsorted(bases, places, side="right") - 1, 0)]
        at = places - base
        fits = (at >= 0) & (sizes >= RECORD_BYTES_MIN) & (at <= self.segment_bytes - sizes)
        is_written: npt.NDArray[np.bool_] = fits & (places <= self.written - sizes)
        return is_written

    def read(self, physical_offset: int, length: int) -> bytes:
        """Read a range of one segment without the interpreter lock; zeros if retention has just deleted it."""
        segment = self.segment_at(physical_offset)
        if segment is None:
            return bytes(length)
        return segment.pread(physical_offset - segment.base, length).ljust(length, b"\0")

    def raw(self, physical_offset: int, length_max: int) -> bytes:
        """Return bytes as they are stored, from one segment; empty at the end of the log."""
        segment = self.segment_at(physical_offset)
        if segment is None or physical_offset >= self.written:
            return b""
        end = min(physical_offset + length_max, self.written, segment.end)
        return segment.pread(physical_offset - segment.base, end - physical_offset)

    # -- truncation and retention -------------------------------------------------------------------------------------

    def truncate(self, end: int) -> None:
        """Remove everything from `end` on."""
        assert self.first <= end <= self.written
        with self._allocating:
            following, self._spare = self._spare, []
        for segment in following:
            segment.delete()
        while self.segments and self.segments[-1].base >= end and len(self.segments) > 1:
            self.segments.pop().delete()
            self._bases.pop()
        if self.segments:
            last = self.segments[-1]
            last.erase_from(max(0, end - last.base))
            last.sync()
        self.written = PhysicalOffset(end)
        self._warm_to = end

    def drop_before(self, base: int) -> list[Segment]:
        """Remove segments below `base` from the list, never the last, and return them. The caller deletes the files."""
        keep = bisect_right(self._bases, base) - 1
        keep = min(max(keep, 0), len(self.segments) - 1)
        dropped = self.segments[:keep]
        # New lists: readers in other threads may still use the old ones.
        self.segments = self.segments[keep:]
        self._bases = self._bases[keep:]
        return dropped

    def close(self) -> None:
        for segment in self._spare:
            segment.delete()
        self._spare = []
        for segment in self.segments:
            segment.close()
