"""The files of a store, for looking only: nothing is locked, made, extended or repaired, whoever else has them open.

Segments are mapped when they are first looked into. A process keeps the mappings it used last, for whoever opens the
same directory next: pages once touched need not be asked for again.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparrow.model.errors import Refused
from sparrow.settings import LogSettings
from sparrow.store.log.commit_log.commit_log import CommitLog
from sparrow.store.log.commit_log.log_scan import LogScan, Starts
from sparrow.store.log.commit_log.segment import Segment
from sparrow.store.log.consume_queues.consume_queue import ENTRY_BYTES
from sparrow.store.log.recovery import checkpoint as files
from sparrow.wire import columns
from sparrow.wire.record import PHYSICAL_OFFSET_POSITION, RECORD_BYTES_MIN, SYS_FLAG_POSITION

_MAPPINGS_MAX = 16
"""A mapping costs address space and a file handle; its pages are the kernel's, shared by all who map them."""

_mappings: OrderedDict[Path, tuple[int, mmap.mmap]] = OrderedDict()
"""Path -> inode and mapping, those used last at the end. While mapped, a file keeps its inode to itself."""


_WALK_BYTES = 16 << 20
"""How much of a segment is walked at a time."""
_NEAR_BYTES = 2 << 20
"""Most often, a record starts so near."""


class ReadonlySegment(Segment):
    """A segment that is only read. What asks for its bytes gets a FileNotFoundError once retention has taken them."""

    __slots__ = ()

    def __init__(self, path: Path, base: int, size: int) -> None:
        super().__init__(path, base, size, -1)

    @property
    def mapping(self) -> mmap.mmap:
        found = self.path.stat()
        kept = _mappings.get(self.path)
        if kept is not None and kept[0] == found.st_ino and len(kept[1]) >= self.size:
            _mappings.move_to_end(self.path)
            return kept[1]
        with open(self.path, "rb") as file:
            mapping = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
            # Of the opened file: between the two looks another may have come to the same name.
            _mappings[self.path] = (os.fstat(file.fileno()).st_ino, mapping)
        _mappings.move_to_end(self.path)
        while len(_mappings) > _MAPPINGS_MAX:
            _mappings.popitem(last=False)  # it lives on while somebody holds a view of it
        return mapping

    @property
    def view(self) -> memoryview:
        return memoryview(self.mapping)[: self.size]

    def pread(self, at: int, length: int) -> bytes:
        return bytes(self.view[at : at + length])


class FileSizes(NamedTuple):
    """Of the files of a store."""

    segment_bytes: int
    queue_file_entries: int


def read_file_sizes(path: Path) -> FileSizes:
    """What the store was made with; for one that RocketMQ made, what its files tell. `Refused` if it is no store."""
    if not (path / "commitlog").is_dir():
        raise Refused(f"{path} is no store directory: it has no folder `commitlog`")
    kept = files.load(path / files.LAYOUT_FILE, files.StoreLayout)
    if kept is not None:
        return FileSizes(kept.segment_bytes, kept.queue_file_entries)
    queue_file = next((path / "consumequeue").glob("*/*/" + "[0-9]" * 20), None)
    if _has_other_queues(path, has_plain=queue_file is not None):
        raise Refused(f"{path} keeps queues in batches or in RocksDB: only plain consume queues can be read")
    default = LogSettings()
    segments = list(_numbered(path / "commitlog"))
    segment_bytes = default.segment_bytes
    if len(segments) > 1:
        segment_bytes = segments[1][0] - segments[0][0]
    elif segments:
        segment_bytes = segments[0][1] or segment_bytes
    entries = queue_file.stat().st_size // ENTRY_BYTES if queue_file is not None else 0
    return FileSizes(segment_bytes, entries or default.queue_file_entries)


def _has_other_queues(path: Path, *, has_plain: bool) -> bool:
    """RocketMQ 5 has two more forms of queues. RocksDB may be written beside plain ones, and then they suffice."""
    has_rocksdb = (path / "consumequeue_rocksdb").is_dir() or (path / "consumequeue" / "CURRENT").exists()
    return (has_rocksdb and not has_plain) or any((path / "batchconsumequeue").glob("*/*"))


def open_commit_log(path: Path, segment_bytes: int) -> CommitLog:
    """The commit log of a store, with the segments there are now. It is for reading, and where it ends is not known."""
    segments: list[Segment] = [
        ReadonlySegment(path / "commitlog" / f"{base:020d}", base, min(size, segment_bytes))
        for base, size in _numbered(path / "commitlog")
        if size
    ]
    log = CommitLog(path / "commitlog", segment_bytes)
    log.adopt(segments, segments[-1].end if segments else 0)
    return log


def oldest_segment_after(path: Path, place: int, segment_bytes: int) -> int | None:
    """The first segment that ends behind a place, by the files there are at this moment."""
    return next((base for base, _ in _numbered(path / "commitlog") if base + segment_bytes > place), None)


def _numbered(directory: Path) -> Iterator[tuple[int, int]]:
    """(base, bytes) of the files that are named by an offset, ascending."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if len(entry.name) == 20 and entry.name.isascii() and entry.name.isdecimal():
                try:
                    found.append((int(entry.name), entry.stat().st_size))
                except FileNotFoundError:
                    continue  # retention took it between the two looks
    yield from sorted(found)


# -- records in the order they lie ------------------------------------------------------------------------------------


def walk_records(segment: Segment, view: memoryview, start: int, stop: int) -> Iterator[Starts]:
    """Where records start in [start, stop) of a segment; `start` need not be such a place. Damage is passed over.

    Each is what it claims by its place only: what is in it is for its reader to check.
    """
    at: int | None = start
    stop = min(stop, len(view))
    starts = np.empty(0, np.int64)
    if start and not columns.find_valid(view, [start], base=segment.base)[0]:
        at = _sound_behind(segment, start)
    while at is not None and at < stop:
        size = int.from_bytes(view[at : at + 4], "big")
        starts = columns.find_starts(view, at, max(min(at + _WALK_BYTES, stop), at + size), strict=False)
        is_home = columns.unaligned_view(view, ">i8", PHYSICAL_OFFSET_POSITION)[starts] == starts + segment.base
        if not is_home.all():
            starts = starts[: int(np.argmin(is_home))]
        if len(starts):
            yield starts
            last = int(starts[-1])
            at = last + int.from_bytes(view[last : last + 4], "big")
        else:
            at = _sound_behind(segment, at)  # behind damage; nothing, behind the last record


def _sound_behind(segment: Segment, at: int) -> int | None:
    """Where the first sound record starts that starts at `at` or not far behind."""
    near = ReadonlySegment(segment.path, segment.base, min(segment.size, at + _NEAR_BYTES))
    for scanned in (near, segment):
        for part in LogScan([scanned], segment.base + at):
            return int(part.starts[0])
    return None


# -- what records say of their place ----------------------------------------------------------------------------------

_HEAD = np.dtype([(name, columns.HEADER_DTYPE[name]) for name in (columns.HEADER_DTYPE.names or ())[:8]])
assert _HEAD.itemsize == SYS_FLAG_POSITION + 4


def record_headers(view: memoryview, starts: Starts) -> npt.NDArray[np.void]:
    """The headers of records, up to the sys flag."""
    return columns.unaligned_view(view, f"V{_HEAD.itemsize}")[starts].view(_HEAD)


def are_records_at(
    view: memoryview, base: int, starts: Starts, sizes: Starts, queue_id: int, offsets: Starts
) -> npt.NDArray[np.bool_]:
    """Which of these records lie where an entry says, and say so themselves."""
    fits: npt.NDArray[np.bool_] = (sizes >= RECORD_BYTES_MIN) & (starts >= 0) & (starts <= len(view) - sizes)
    if not fits.all():
        fits[fits] = are_records_at(view, base, starts[fits], sizes[fits], queue_id, offsets[fits])
        return fits
    places = record_headers(view, starts)
    is_right: npt.NDArray[np.bool_] = places["physical_offset"] == starts + base
    is_right &= places["size"] == sizes
    is_right &= places["queue_offset"] == offsets
    is_right &= places["queue_id"] == queue_id
    return is_right
