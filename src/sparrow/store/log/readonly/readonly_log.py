"""Read-only access to the commit log of a store that another process may have open: no lock, no write, no repair.

Segments are mapped on first use. A process keeps the mappings it used last, so that the next object for the same
directory need not fault their pages in again.
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
from sparrow.store.log.recovery.record_borders import RecordBorders
from sparrow.store.log.state.state_seal import StateSeal
from sparrow.wire import columns
from sparrow.wire.record import PHYSICAL_OFFSET_POSITION, RECORD_BYTES_MIN, SYS_FLAG_POSITION

_MAPPINGS_MAX = 16
"""A mapping costs address space and a file handle; its pages are in the page cache, shared by all processes."""

_mappings: OrderedDict[Path, tuple[int, mmap.mmap]] = OrderedDict()
"""Path -> inode and mapping, in the order of use. The inode of a mapped file is not reused."""


_WALK_BYTES = 16 << 20
"""How many bytes of a segment are parsed at a time."""


class ReadonlySegment(Segment):
    """A segment that is only read. Access raises FileNotFoundError once retention has deleted the file."""

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
            # The inode of the opened file: another file may have got the same name after `stat`.
            _mappings[self.path] = (os.fstat(file.fileno()).st_ino, mapping)
        _mappings.move_to_end(self.path)
        while len(_mappings) > _MAPPINGS_MAX:
            _mappings.popitem(last=False)  # it stays alive while a view of it exists
        return mapping

    @property
    def view(self) -> memoryview:
        return memoryview(self.mapping)[: self.size]

    def pread(self, at: int, length: int) -> bytes:
        return bytes(self.view[at : at + length])


class FileSizes(NamedTuple):
    """File sizes of a store."""

    segment_bytes: int
    queue_file_entries: int


def read_file_sizes(path: Path) -> FileSizes:
    """Return the file sizes of a store; RocketMQ's are taken from its files. `Refused` if it is no store directory."""
    if not (path / "commitlog").is_dir():
        raise Refused(f"{path} is not a store directory: it has no folder `commitlog`")
    kept = files.load(path / files.LAYOUT_FILE, files.StoreLayout)
    if kept is not None:
        return FileSizes(kept.segment_bytes, kept.queue_file_entries)
    queue_file = next((path / "consumequeue").glob("*/*/" + "[0-9]" * 20), None)
    if _has_other_queues(path, has_plain=queue_file is not None):
        raise Refused(f"{path} has batch or RocksDB consume queues: only plain consume queues can be read")
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
    """Return whether queues are in RocketMQ 5's other formats only. RocksDB files beside plain ones are ignored."""
    has_rocksdb = (path / "consumequeue_rocksdb").is_dir() or (path / "consumequeue" / "CURRENT").exists()
    return (has_rocksdb and not has_plain) or any((path / "batchconsumequeue").glob("*/*"))


def open_commit_log(path: Path, segment_bytes: int) -> CommitLog:
    """Open the commit log of a store for reading, with the segments that exist now. Its end is not known."""
    segments: list[Segment] = [
        ReadonlySegment(path / "commitlog" / f"{base:020d}", base, min(size, segment_bytes))
        for base, size in _numbered(path / "commitlog")
        if size
    ]
    log = CommitLog(path / "commitlog", segment_bytes)
    log.adopt(segments, segments[-1].end if segments else 0)
    return log


def oldest_segment_after(path: Path, place: int, segment_bytes: int) -> int | None:
    """Return the base of the first segment that ends after an offset, by the files that exist now."""
    return next((base for base, _ in _numbered(path / "commitlog") if base + segment_bytes > place), None)


def _numbered(directory: Path) -> Iterator[tuple[int, int]]:
    """Yield (base, size) of the files that are named by an offset, ascending."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if len(entry.name) == 20 and entry.name.isascii() and entry.name.isdecimal():
                try:
                    found.append((int(entry.name), entry.stat().st_size))
                except FileNotFoundError:
                    continue  # retention has just deleted it
    yield from sorted(found)


# -- records in log order ---------------------------------------------------------------------------------------------


def walk_records(segment: Segment, borders: RecordBorders, seal: StateSeal, start: int, stop: int) -> Iterator[Starts]:
    """Yield where records start in [start, stop) of a segment; `start` may be inside a record. Damage is skipped.

    Bodies may contain whole records. So the walk begins, and continues after damage, only where a record is known to
    start (`LogScan.next_known`). The content of records is for the reader to check.
    """
    view = segment.view
    at: int | None = borders.last_before(segment, segment.base + start) - segment.base if start else 0
    scan = LogScan([segment], segment.base, borders=borders, state_check=seal)
    stop = min(stop, len(view))
    while at is not None and at < stop:
        size = int.from_bytes(view[at : at + 4], "big")
        starts = columns.find_starts(view, at, max(min(at + _WALK_BYTES, stop), at + size), strict=False)
        is_home = columns.unaligned_view(view, ">i8", PHYSICAL_OFFSET_POSITION)[starts] == starts + segment.base
        if not is_home.all():
            starts = starts[: int(np.argmin(is_home))]
        if len(starts):
            last = int(starts[-1])
            at = last + int.from_bytes(view[last : last + 4], "big")
            if last >= start:
                yield starts[starts >= start]
        else:
            at = scan.next_known(segment, at, trusts_lengths=True)  # after damage; None after the last record


# -- record headers ---------------------------------------------------------------------------------------------------

_HEAD = np.dtype([(name, columns.HEADER_DTYPE[name]) for name in (columns.HEADER_DTYPE.names or ())[:8]])
assert _HEAD.itemsize == SYS_FLAG_POSITION + 4


def record_headers(view: memoryview, starts: Starts) -> npt.NDArray[np.void]:
    """Return the headers of records, up to the sys flag."""
    return columns.unaligned_view(view, f"V{_HEAD.itemsize}")[starts].view(_HEAD)


def are_records_at(
    view: memoryview, base: int, starts: Starts, sizes: Starts, queue_id: int, offsets: Starts
) -> npt.NDArray[np.bool_]:
    """Return which records have the position, size and queue offset that their queue entries say."""
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
