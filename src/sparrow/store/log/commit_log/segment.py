"""A segment: one file of the commit log, of fixed size, mapped on first use.

1. The file has its full size from the start, as RocketMQ expects it, but the disk's blocks only below `reserved`.
2. Bytes beyond `reserved` must not be written: on a full disk, a write into the mapping would kill the process.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from sparrow.store.log.commit_log import mapped_pages


def segment_name(base: int) -> str:
    """Return the file name: the physical offset of the first byte, in 20 digits."""
    return f"{base:020d}"


class Segment:
    """The bytes [base, base + size) of the log."""

    __slots__ = ("_map", "_view", "base", "fd", "path", "reserved", "size")

    def __init__(self, path: Path, base: int, size: int, fd: int) -> None:
        self.path, self.base, self.size, self.fd = path, base, size, fd
        self.reserved = 0
        """How many bytes from the start may be written into the mapping: their blocks are allocated."""
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None

    @classmethod
    def create(cls, directory: Path, base: int, size: int, reserve_bytes: int) -> Segment:
        """Create a file of zeros, and reserve its first bytes (OSError on a full disk; no file is left then)."""
        path = directory / segment_name(base)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        segment = cls(path, base, size, fd)
        try:
            os.ftruncate(fd, size)
            segment.reserve(reserve_bytes)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        mapped_pages.sync_directory(directory)
        return segment

    @classmethod
    def open(cls, path: Path, size: int) -> Segment:
        """Open an existing file. A truncated one is filled up with zeros; recovery finds the end of the records."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
        return cls(path, int(path.name), size, fd)

    @property
    def end(self) -> int:
        return self.base + self.size

    @property
    def mapping(self) -> mmap.mmap:
        if self._map is None:
            self._map = mmap.mmap(self.fd, self.size)
        return self._map

    @property
    def view(self) -> memoryview:
        if self._view is None:
            self._view = memoryview(self.mapping)
        return self._view

    def reserve(self, size: int) -> None:
        """Allocate the blocks of the first `size` bytes (OSError on a full disk; nothing more is allocated then)."""
        size = min(size, self.size)
        if size <= self.reserved:
            return
        try:
            mapped_pages.allocate(self.fd, self.reserved, size - self.reserved)
        except OSError:
            # File systems may keep the blocks that they found before the disk was full.
            mapped_pages.erase(self.fd, self.reserved, size - self.reserved)
            raise
        self.reserved = size

    def pread(self, at: int, length: int) -> bytes:
        """Read bytes without the interpreter lock: for data that may not be in the page cache."""
        return os.pread(self.fd, length, at)

    def sync(self) -> None:
        """Write everything so far to disk, whether written through the mapping or not."""
        os.fdatasync(self.fd)

    def erase_from(self, at: int) -> None:
        """Write zeros from `at` to the end, so that no remnant of a truncated tail looks like a record later."""
        mapped_pages.erase(self.fd, at, self.size - at)
        self.reserved = min(self.reserved, at)

    def close(self) -> None:
        """Drop the mapping (it stays alive while a reader holds a view of it) and close the file."""
        self._view = None
        self._map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def delete(self) -> None:
        """Unlink the file. Readers that have it open can still read it."""
        self.path.unlink(missing_ok=True)

    def __del__(self) -> None:
        # A reader in another thread may hold the segment while retention drops it: the last reference closes the file.
        self.close()
