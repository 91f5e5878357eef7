"""System calls on mapped pages and files: populate, lock, allocate, erase, and the sync of a directory.

Without a Linux libc, those that return a bool return False.

They use ctypes, not `mmap.madvise`, because ctypes releases the interpreter lock: populating 32 MiB of pages takes
milliseconds, in which the event loop must continue.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23  # Linux 5.14: fault pages in, now
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
if _libc is not None:
    _libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    _libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    _libc.munlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    _libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def populate(mapping: mmap.mmap, at: int, length: int, *, dirty: bool = True) -> bool:
    """Populate pages for writing, or with `dirty=False` for reading; False if the kernel does not support it."""
    return _on_pages("madvise", mapping, at, length, _MADV_POPULATE_WRITE if dirty else _MADV_POPULATE_READ)


def lock(mapping: mmap.mmap, at: int, length: int) -> bool:
    """Lock pages in memory; False if limits (`ulimit -l`) forbid it."""
    return _on_pages("mlock", mapping, at, length)


def unlock(mapping: mmap.mmap, at: int, length: int) -> bool:
    return _on_pages("munlock", mapping, at, length)


def _on_pages(call: str, mapping: mmap.mmap, at: int, length: int, *rest: int) -> bool:
    if _libc is None:
        return False
    start = at - at % mmap.PAGESIZE
    end = min(at + length, len(mapping))
    if end <= start:
        return True
    anchor = ctypes.c_char.from_buffer(mapping)
    try:
        return bool(getattr(_libc, call)(ctypes.addressof(anchor) + start, end - start, *rest) == 0)
    finally:
        del anchor  # it would keep the mapping open


def allocate(fd: int, at: int, length: int) -> None:
    """Allocate the blocks of a range, so that no later write into its mapping can hit a full disk."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, at, length)


def erase(fd: int, at: int, length: int) -> None:
    """Make a range of the file read as zeros. Its blocks are not allocated afterwards, where that is possible."""
    if length <= 0 or (_libc is not None and _libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, at, length) == 0):
        return
    zeros = bytes(min(length, 1 << 20))
    end = at + length
    while at < end:
        at += os.pwrite(fd, zeros[: end - at], at)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: without this, a power loss may undo creations, renames and deletions."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
