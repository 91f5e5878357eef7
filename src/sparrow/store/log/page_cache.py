"""Reads that do not wait for the disk: of what the page cache has, and in advance of what will be needed."""

from __future__ import annotations

import errno
import os

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
"""Linux. Not every file system supports it."""
_CANNOT_SAY = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


def read_cached(fd: int, at: int, length: int, *, is_likely: bool = False) -> bytes | bytearray | None:
    """Return bytes of a file if the page cache has all of them; None if the disk is needed.

    Where the system cannot say, they are read if it is likely that the page cache has them.
    """
    if _NOWAIT is not None:
        data = bytearray(length)
        try:
            found = os.preadv(fd, [data], at, _NOWAIT)
        except OSError as error:
            if error.errno not in _CANNOT_SAY:
                return None
        else:
            return data if found == length else None
    return os.pread(fd, length, at) if is_likely else None


def read_ahead(fd: int, at: int, length: int) -> None:
    """Ask the system to read a range of a file into the page cache."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, at, length, os.POSIX_FADV_WILLNEED)
