"""The commit log: the records of all queues in the order of their appends, in segments of one size.

1. Records lie back to back and never span segments; the unused end of a segment starts with a blank record
   (4 bytes length of the rest, 4 bytes magic) and counts as written.
2. At least 8 bytes stay free after every record, so that a blank record always fits.
3. Beyond `written` everything is zero.
4. Space is reserved before it is written, in steps ahead of `written` or a segment at a time: a full disk refuses an
   append, and never kills the process that writes into a mapping.
5. The first 8 bytes of a batch are written last. A process that is killed in between leaves zeros there, and recovery
   takes them for the end of the log: a batch is there completely or not at all.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
_NEVER = 1 << 62
_RESERVE_BYTES_MIN, _RESERVE_BYTES_MAX = 4 << 20, 64 << 20
"""How far ahead of its end space is reserved for a log: as much as the log has, within these bounds."""
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
        preallocate: bool = False,
    ) -> None:
        """Create a log without segments; `preallocate` reserves whole segments at once."""
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
        self._preallocate = preallocate
        self._reserved_to = 0
        """The physical offset up to which the active segment may be written."""
        self._warm_to = 0
        self._unlocked_to = 0
        self.on_pages_low: Callable[[], None] = lambda: None
        """Called when few populated pages are left after the end of the log."""
        self._low_from = 0
        """The end of the log from which on that is so. An append calls it once, until `prepare` has run."""
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
        self._unlocked_to = written
        self._continue_at(written)

    def _continue_at(self, written: int) -> None:
        """Take nothing after `written` for reserved: a file that was opened may have holes there."""
        self.written = PhysicalOffset(written)
        self._warm_to = self._reserved_to = self._low_from = written
        if self.segments:
            self.segments[-1].reserved = written - self.segments[-1].base

    def segment_at(self, physical_offset: int) -> Segment | None:
        """Return the segment that contains the offset."""
        at = bisect_right(self._bases, physical_offset) - 1
        if at < 0 or physical_offset >= self._bases[at] + self.segment_bytes:
            return None
        return self.segments[at]

    # -- writing ------------------------------------------------------------------------------------------------------

    def allocate(self, size: int) -> tuple[Segment, PhysicalOffset]:
        """Return the segment and offset for the next `size` bytes; start a new segment if they do not fit.

        Raise `StoreFull` if the disk has no space for them.
        """
        needed = size + BLANK_RECORD_BYTES
        if self.written + needed <= self._reserved_to:
            return self.segments[-1], self.written
        assert needed <= self.segment_bytes, f"a run of {size} bytes fits no segment of {self.segment_bytes}"
        if not self.segments:
            self._take_next(self.written - self.written % self.segment_bytes)
        elif needed > self.segments[-1].end - self.written:
            self._roll(self.segments[-1])
        self._reserve_active(self.written + needed)
        return self.segments[-1], self.written

    def free_bytes(self) -> int:
        """Return how many bytes of records fit into the active segment."""
        return self.segments[-1].end - self.written - BLANK_RECORD_BYTES if self.segments else 0

    def write(self, segment: Segment, data: bytes) -> None:
        """Copy records to the offset that `allocate` returned, and advance `written`."""
        at, mapping = self.written - segment.base, segment.mapping
        end = at + len(data)
        mapping[at + RECORD_PREFIX_BYTES : end] = data[RECORD_PREFIX_BYTES:]
        mapping[at : at + RECORD_PREFIX_BYTES] = data[:RECORD_PREFIX_BYTES]
        self.written = PhysicalOffset(segment.base + end)

    def advance(self, size: int) -> None:
        """Advance `written` by bytes that were copied into the mapping directly."""
        self.written = PhysicalOffset(self.written + size)
        if self.written > self._low_from:
            self._low_from = _NEVER
            self.on_pages_low()

    def end_segment(self) -> None:
        """Leave the rest of the active segment unused, and continue in the next one."""
        self._roll(self.segments[-1])

    def _roll(self, active: Segment) -> None:
        free = active.end - self.written
        self._reserve_active(self.written + min(free, BLANK_RECORD_BYTES))
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
        # Under the lock to the end: the segment thread must not create the same file and keep it as a spare one.
        with self._raising_store_full(), self._allocating:
            segment = self._spare.pop(0) if self._spare else None
            if segment is None or segment.base != base:
                segment = self._create(base)
            self._add(segment)
            self._reserved_to = segment.base + segment.reserved
            self._low_from = base
            return segment

    def _create(self, base: int) -> Segment:
        return Segment.create(self.directory, base, self.segment_bytes, self._ahead_bytes())

    def _ahead_bytes(self) -> int:
        """Return how many bytes to reserve ahead of the end of the log."""
        if self._preallocate:
            return self.segment_bytes
        return min(max(self.written - self.first, _RESERVE_BYTES_MIN), _RESERVE_BYTES_MAX)

    def _reserve_active(self, end: int) -> None:
        """Reserve the active segment up to `end`, and ahead of it if the disk has the space; else `StoreFull`."""
        if end <= self._reserved_to:
            return
        with self._raising_store_full():
            try:
                self._reserve(self.segments[-1], end + self._ahead_bytes())
            except OSError:
                self._reserve(self.segments[-1], end)

    def _reserve(self, segment: Segment, end: int) -> None:
        with self._allocating:
            segment.reserve(end - segment.base)
            if segment is self.segments[-1]:
                self._reserved_to = segment.base + segment.reserved

    def reserve(self, count: int, free: int) -> None:
        """Reserve the active segment and `count` after it, except `free` bytes at the end, or raise `StoreFull`.

        Appends that fit into them then cannot fail.
        """
        if self.segments:
            self._reserve_active(self.segments[-1].end - (0 if count else free))
        if count == 0:
            return
        with self._raising_store_full(), self._allocating:
            end = self.segments[-1].end if self.segments else self.written - self.written % self.segment_bytes
            while len(self._spare) < count:
                self._spare.append(self._create(end + len(self._spare) * self.segment_bytes))
            for number, segment in enumerate(self._spare[:count], 1):
                segment.reserve(self.segment_bytes - (free if number == count else 0))

    @contextmanager
    def _raising_store_full(self) -> Iterator[None]:
        if time.monotonic() < self._refuse_until:
            raise StoreFull(self.directory, "the disk was full a moment ago")
        try:
            yield
        except OSError as cause:
            if cause.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._refuse_until = time.monotonic() + _ALLOCATION_PAUSE_S
            raise StoreFull(self.directory, "no space could be reserved for the commit log") from cause

    # -- preparation: called by the segment thread --------------------------------------------------------------------

    def prepare(self) -> None:
        """Reserve space ahead, make the next segment once the active one is half full, and populate pages."""
        if not self.segments:
            return
        active, ahead = self.segments[-1], self._ahead_bytes()
        if self.written - active.base > self.segment_bytes // 2:
            self._create_after(active)
        if self._reserved_to < self.written + ahead // 2:
            self._reserve(active, self.written + ahead)
        following = self._spare[0] if self._spare and self._reserved_to == active.end else None
        reserved_to = self._reserved_to if following is None else following.base + following.reserved
        if self._warm_to < min(self.written + self._warm_bytes // 2, reserved_to):
            target = min(self.written + self._warm_bytes, reserved_to)
            # Set first: an append meanwhile must not request the same pages again.
            start, self._warm_to = max(self._warm_to, self.written), target
            for segment in (active, *self._spare):
                self._warm(segment, start, target)
            if self._lock_memory:
                self._unlock_to(max(0, self.written - self._warm_bytes))
        # More is done only once what limits each of the two has moved.
        self._low_from = _NEVER
        if self._reserved_to < active.end:
            self._low_from = self._reserved_to - ahead // 2
        if self._warm_bytes and self._warm_to < reserved_to:
            self._low_from = min(self._low_from, self._warm_to - self._warm_bytes // 2)

    def warm(self, size: int) -> None:
        """Populate pages for `size` bytes that are written next, so that the write takes no page fault per page."""
        if not self.segments or self._lock_memory or size <= self._warm_bytes // 2 or not self._warm_bytes:
            return
        target = min(self.written + size, self.segments[-1].end)
        with suppress(OSError):  # the append itself reports a full disk
            self._reserve(self.segments[-1], target)
        start, self._warm_to = max(self._warm_to, self.written), max(self._warm_to, target)
        for at in range(start, target, _WARM_STEP_BYTES):  # in steps: each one blocks other mmap calls of the process
            self._warm(self.segments[-1], at, min(at + _WARM_STEP_BYTES, target))

    def _create_after(self, active: Segment) -> None:
        with self._allocating:
            if not self._spare and self.segments[-1] is active:
                self._spare.append(self._create(active.end))

    def _warm(self, segment: Segment, start: int, end: int) -> None:
        at, to = max(start, segment.base) - segment.base, min(end - segment.base, segment.reserved)
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
        mapped_pages.sync_directory(self.directory)  # a segment that comes back would have old records
        if self.segments:
            last = self.segments[-1]
            last.erase_from(max(0, end - last.base))
            last.sync()
        self._continue_at(end)

    def erase(self, first: int) -> None:
        """Delete all segments; the next byte has the offset `first`."""
        with self._allocating:
            gone, self._spare = [*self.segments, *self._spare], []
        self.segments, self._bases = [], []
        for segment in gone:
            segment.delete()
        mapped_pages.sync_directory(self.directory)
        self._continue_at(first)

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
