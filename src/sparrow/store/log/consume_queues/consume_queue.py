"""A consume queue: the index of one queue, in which entry n gives the position of message n in the commit log.

    bytes  field                    Entry n starts at byte 20 * n, counted over all files of the queue;
    8      physical offset          a file is named by the number of its first byte.
    4      size of the record
    8      tags code

1. Entries in [first, end) ascend by physical offset. A filler (size 0x7FFFFFFF) replaces a damaged record.
2. New entries are in memory until maintenance writes them out; the newest stay in memory for readers at the end.
3. It is a view: entries that are missing or wrong on disk can be rebuilt from the log.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from struct import Struct

import numpy as np

from sparrow.model.delay_levels import level_delay_ms
from sparrow.model.queue import Queue, QueueBounds, QueueOffset
from sparrow.store.log.page_cache import read_cached
from sparrow.wire.record import topic_field

ENTRY_BYTES = 20
ENTRY = Struct(">qiq")
FILLER_SIZE = 0x7FFFFFFF
_MISSING = -1
_FILLER = ENTRY.pack(_MISSING, FILLER_SIZE, 0)
_ENTRIES = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])

_RECENT_ENTRIES = 4096
"""How many entries a busy queue keeps in memory after they were written out; an idle one keeps none."""

_WARM_ENTRIES = 1 << 20
"""The newest entries, which are assumed to be in the page cache: 20 MiB of a file just written."""


class ConsumeQueue:
    """The writer appends to it; any thread may call `entries`."""

    __slots__ = (
        "_end_seen",
        "_file_bytes",
        "_folder",
        "_recent",
        "_unsynced",
        "delay_ms",
        "end",
        "expired_to",
        "first",
        "flushed",
        "is_deleted",
        "is_internal",
        "loaded_end",
        "queue",
        "topic_bytes",
        "topic_field",
        "visible_end",
    )

    def __init__(self, queue: Queue, directory: Path, file_entries: int, unsynced: set[str] | None = None) -> None:
        """Create a queue without entries. `write_out` adds to `unsynced` the files and folders to be synced."""
        self.queue = queue
        self.topic_bytes = queue.topic.encode()
        self.topic_field = topic_field(self.topic_bytes)
        self.delay_ms = level_delay_ms(*queue)
        """The delay of a queue of delayed messages, whose tags codes are delivery times; else None."""
        self._folder = str(directory)  # readers build paths often, and pathlib is slow and large
        self._unsynced = set() if unsynced is None else unsynced
        self.first = QueueOffset(0)
        self.expired_to = QueueOffset(0)
        """Messages below this offset have expired, though the log may still contain them."""
        self.end = QueueOffset(0)
        """The next offset to be assigned."""
        self.visible_end = QueueOffset(0)
        """The end for readers: `end`, or less while messages wait to become durable or replicated."""
        self.flushed = 0
        """Entries below this offset are in the files."""
        self.loaded_end = 0
        """Entries below this offset were loaded from files; this process has appended the others."""
        self.is_internal = False
        """Whether it is the state queue, which only the store may append to."""
        self.is_deleted = False
        """Whether its topic was deleted: then nothing may be appended."""
        self._file_bytes = file_entries * ENTRY_BYTES
        # Offset and bytes of the entries in memory: one tuple, so that other threads see a consistent pair.
        self._recent = (0, bytearray())
        self._end_seen = 0

    @property
    def directory(self) -> Path:
        return Path(self._folder)

    @property
    def bounds(self) -> QueueBounds:
        return QueueBounds(min(max(self.first, self.expired_to), self.visible_end), self.visible_end)

    # -- appends ------------------------------------------------------------------------------------------------------

    def extend(self, entries: bytes | memoryview) -> None:
        """Append entries of new messages."""
        self._recent[1].extend(entries)
        self.end = QueueOffset(self.end + len(entries) // ENTRY_BYTES)

    def start_at(self, offset: int) -> None:
        """Set the first offset of an empty queue whose older messages were deleted by retention."""
        assert self.first == self.end, "the queue must be empty"
        self.first = QueueOffset(offset)
        self._all_in_files(offset)
        self.visible_end = self.first

    def _all_in_files(self, end: int) -> None:
        self.flushed = self._end_seen = end
        self.end = QueueOffset(end)
        self._recent = (end, bytearray())

    # -- reads --------------------------------------------------------------------------------------------------------

    def entries(self, offset: int, count: int) -> bytes:
        """Return the raw entries [offset, offset + count), as far as they exist."""
        recent_from, recent = self._recent
        start = (offset - recent_from) * ENTRY_BYTES
        if start >= 0:
            return bytes(recent[start : start + count * ENTRY_BYTES])
        found = self._from_files(offset, min(count, self.flushed - offset))
        have = len(found) // ENTRY_BYTES
        if have < count and offset + have < self.end and have > 0:
            found += self.entries(offset + have, count - have)
        return found

    def entries_nowait(self, offset: int, count: int) -> bytes | None:
        """Return what `entries` returns, or None if that needs the disk."""
        if offset >= self._recent[0]:
            return self.entries(offset, count)
        end = min(offset + count, self.flushed)
        base = offset * ENTRY_BYTES // self._file_bytes * self._file_bytes
        if end * ENTRY_BYTES > base + self._file_bytes:  # in two files
            return None
        at, length = offset * ENTRY_BYTES - base, (end - offset) * ENTRY_BYTES
        found = _read_cached(self._path(base), at, length, is_likely=self.is_warm(offset))
        if found is None or end == offset + count:
            return found
        return found + self.entries(end, offset + count - end)

    def is_recent(self, offset: int) -> bool:
        """Return whether `entries` reads the offset from memory."""
        return offset >= self._recent[0]

    def is_warm(self, offset: int) -> bool:
        """Return whether this process appended the entry, and `entries` most likely needs no disk for it."""
        return offset >= self._recent[0] or (offset >= self.loaded_end and self.end - offset <= _WARM_ENTRIES)

    @property
    def has_recent(self) -> bool:
        """Whether any entry is in memory."""
        return bool(self._recent[1])

    def physical_offset_at(self, offset: int) -> int | None:
        """Return the physical offset of message `offset`, None if it is not known."""
        entry = self.entries(offset, 1)
        at, size, _ = ENTRY.unpack(entry) if entry else (0, FILLER_SIZE, 0)
        return None if size == FILLER_SIZE else int(at)

    def partition_point(self, low: int, high: int, belongs_before: Callable[[int, int], bool]) -> int:
        """Return the first offset in [low, high) for which `belongs_before(physical offset, size)` is false.

        Return `high` if there is none. Offsets for which it is true must come first.
        """
        while low < high:
            middle = (low + high) // 2
            at, size, _ = ENTRY.unpack(self.entries(middle, 1))
            if at != _MISSING and belongs_before(at, size):
                low = middle + 1
            else:
                high = middle
        return low

    def _from_files(self, offset: int, count: int) -> bytes:
        """Read entries from the files, with fillers (which readers skip) for files that are missing or short."""
        parts = []
        at, end = offset * ENTRY_BYTES, (offset + count) * ENTRY_BYTES
        while at < end:
            base = at - at % self._file_bytes
            stop = min(end, base + self._file_bytes)
            part = _read(self._path(base), at - base, stop - at)
            parts.append(part[: len(part) - len(part) % ENTRY_BYTES])
            parts.append(_FILLER * ((stop - at) // ENTRY_BYTES - len(part) // ENTRY_BYTES))
            at = stop
        return b"".join(parts)

    # -- writes to disk: called by the maintenance thread -------------------------------------------------------------

    @property
    def is_dirty(self) -> bool:
        return self.end > self.flushed

    def write_out(self) -> None:
        """Write entries that are only in memory to the files (OSError on a full disk; they stay in memory then)."""
        recent_from, recent = self._recent
        data = bytes(recent[(self.flushed - recent_from) * ENTRY_BYTES :])
        at = self.flushed * ENTRY_BYTES
        os.makedirs(self._folder, exist_ok=True)
        while data:
            base = at - at % self._file_bytes
            part, data = data[: base + self._file_bytes - at], data[base + self._file_bytes - at :]
            self._write(base, at - base, part)
            at += len(part)
        self.flushed = at // ENTRY_BYTES

    def _write(self, base: int, at: int, part: bytes) -> None:
        path = self._path(base)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size < self._file_bytes:
                folder, topic_folder = self._folder, os.path.dirname(self._folder)
                self._unsynced |= {folder, topic_folder, os.path.dirname(topic_folder)}
                os.ftruncate(fd, self._file_bytes)
                if at and self.first * ENTRY_BYTES == base + at:
                    os.pwrite(fd, ENTRY.pack(0, FILLER_SIZE, 0) * (at // ENTRY_BYTES), 0)
            written = os.pwrite(fd, part, at)
            while written < len(part):
                written += os.pwrite(fd, part[written:], at + written)
        finally:
            os.close(fd)
        self._unsynced.add(path)

    def trim_recent(self) -> None:
        """Free memory: an idle queue keeps no entries, a busy one its newest. The caller holds the writer's lock."""
        end = self.end
        keep = 0 if end == self._end_seen else _RECENT_ENTRIES
        self._end_seen = end
        recent_from, recent = self._recent
        drop = min(self.flushed, end - keep) - recent_from
        if drop > 0:
            self._recent = (recent_from + drop, recent[drop * ENTRY_BYTES :])

    # -- load and truncation ------------------------------------------------------------------------------------------

    def files(self) -> list[int]:
        """Return the byte offsets at which the files on disk begin, ascending."""
        if not os.path.isdir(self._folder):
            return []
        return sorted(int(name) for name in os.listdir(self._folder) if name.isascii() and name.isdecimal())

    def load(self, log_first: int, log_end: int, likely_end: int = 0) -> None:
        """Load the range of entries that point into [log_first, log_end) of the log.

        `likely_end` is where the entries probably end; it saves a binary search.
        """
        bases = self.files()
        if not bases:
            return
        low, high = bases[0] // ENTRY_BYTES, (bases[-1] + self._file_bytes) // ENTRY_BYTES
        self._all_in_files(high)

        def is_inside(at: int, size: int) -> bool:
            return size > 0 and at < log_end

        # Usually the checkpoint is right, and two entries confirm it.
        if low < likely_end <= high and self.partition_point(likely_end - 1, likely_end, is_inside) == likely_end:
            low = likely_end
            if self.partition_point(likely_end, min(likely_end + 1, high), is_inside) == likely_end:
                high = likely_end
        end = self.partition_point(low, high, is_inside)
        if end == bases[0] // ENTRY_BYTES:
            # Nothing points into the log: a power loss may have left only later files.
            self._all_in_files(0)
            return
        self._all_in_files(end)
        self.loaded_end = end
        self.first = QueueOffset(bases[0] // ENTRY_BYTES)
        self.advance_first(log_first)
        self.visible_end = self.end

    def is_sound(self) -> bool:
        """Return whether no file is missing or short, and the newest entries ascend without overlapping records."""
        bases = self.files()
        if any(base != bases[0] + number * self._file_bytes for number, base in enumerate(bases)):
            return False
        if any(os.stat(self._path(base)).st_size != self._file_bytes for base in bases):
            return False
        start = max(self.first, self.end - 2 * self._file_bytes // ENTRY_BYTES)
        raw = self.entries(start, self.end - start)
        if len(raw) != (self.end - start) * ENTRY_BYTES:
            return False
        entries = np.frombuffer(raw, _ENTRIES)
        is_record = entries["size"] != FILLER_SIZE
        at, size = entries["offset"][is_record], entries["size"][is_record]
        return bool((size > 0).all() and (at[:-1] + size[:-1] <= at[1:]).all())

    def advance_first(self, log_first: int) -> None:
        """Drop entries that point before `log_first`, where the log now starts."""
        self.first = QueueOffset(self.partition_point(self.first, self.end, lambda at, _size: at < log_first))

    def truncate(self, log_end: int) -> None:
        """Drop entries that point to `log_end` or later, where the log now ends."""
        self.cut(self.partition_point(self.first, self.end, lambda at, _size: at < log_end))

    def cut(self, end: int) -> None:
        """Keep only the entries below `end`, and erase the others from the files."""
        if end >= self.end:
            return
        recent_from, recent = self._recent
        kept = max(0, end - recent_from) * ENTRY_BYTES
        self._recent = (min(end, recent_from), recent[:kept])
        self.end = QueueOffset(end)
        self.flushed = min(self.flushed, end)
        self.loaded_end = min(self.loaded_end, end)
        self.first = QueueOffset(min(self.first, end))
        self.expired_to = QueueOffset(min(self.expired_to, end))
        self.visible_end = QueueOffset(min(self.visible_end, end))
        self.erase_unflushed()

    def erase_unflushed(self) -> None:
        """Fill the files with zeros after `flushed`, so that no old entry is taken for a new one."""
        end = self.flushed * ENTRY_BYTES
        for base in self.files():
            if base >= end and base > 0:
                _unlink(self._path(base))
            elif base + self._file_bytes > end:
                os.truncate(self._path(base), max(0, end - base))
                os.truncate(self._path(base), self._file_bytes)

    def drop_files_before(self, log_first: int) -> None:
        """Delete files all of whose entries point before the log's first byte; never the last file."""
        self.advance_first(log_first)
        for base in self.files()[:-1]:
            if (base + self._file_bytes) // ENTRY_BYTES <= self.first:
                _unlink(self._path(base))

    def detach(self) -> None:
        """Write nothing from now on: the files are no longer this object's."""
        self.is_deleted = True
        self._all_in_files(self.end)

    def delete(self) -> None:
        self.detach()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, base: int) -> str:
        return f"{self._folder}/{base:020d}"


def _read(path: str, at: int, length: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, length, at)
    finally:
        os.close(fd)


def _read_cached(path: str, at: int, length: int, *, is_likely: bool) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        found = read_cached(fd, at, length, is_likely=is_likely)
    finally:
        os.close(fd)
    return bytes(found) if found is not None and len(found) == length else None


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
