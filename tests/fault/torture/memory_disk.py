"""A file system in memory for a store, which a test fills and empties. It needs root: else there is none."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SIZE_BYTES = 8 << 30
"""Only what is used takes memory."""


class MemoryDisk:
    """A tmpfs. It is full when its size is what is in use: nothing has to be written for that."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> int:
        """Leave less than a megabyte; return the bytes in use."""
        while True:
            found = os.statvfs(self.path)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            if self._resize(used + (64 << 10)):
                return used

    def free(self) -> None:
        assert self._resize(_SIZE_BYTES)

    def _resize(self, size: int) -> bool:
        command = ["mount", "-o", f"remount,size={size}", str(self.path)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0  # it fails if more is in use


@contextmanager
def memory_disk(path: Path) -> Iterator[MemoryDisk | None]:
    """Mount a file system at a new folder; yield None, and leave a plain folder, where that is not permitted."""
    path.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_BYTES}", "tmpfs", str(path)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield MemoryDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
