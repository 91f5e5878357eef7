"""The lock of a store directory: one process at a time, and a file that tells whether the last one closed cleanly."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from sparrow.model.errors import StoreInUse
from sparrow.store.log.commit_log.mapped_pages import sync_directory
from sparrow.store.log.recovery.checkpoint import ABORT_FILE, LOCK_FILE


class DirectoryLock:
    """Holds RocketMQ's lock (the first byte of `lock`) and its `abort` file, so that Java brokers respect it too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds messages, and secrets of tokens
        for folder in missing:
            sync_directory(folder.parent)
        self._name = path.resolve()
        # POSIX locks do not exclude the process that holds them, and closing any handle of the file releases them.
        if self._name in _held_here:
            raise StoreInUse(path, str(os.getpid()))
        self._lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as cause:
            os.close(self._lock)
            raise StoreInUse(path, self._owner()) from cause
        _held_here.add(self._name)
        os.pwrite(self._lock, b"lock", 0)

    def mark_open(self) -> None:
        """Create the `abort` file: until `release(is_clean=True)`, a stop counts as a crash."""
        fd = os.open(self.path / ABORT_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, str(os.getpid()).encode())
        finally:
            os.close(fd)
        sync_directory(self.path)  # without the file, the stop that a power loss makes would count as clean

    def release(self, *, is_clean: bool) -> None:
        if is_clean:
            (self.path / ABORT_FILE).unlink(missing_ok=True)
        _held_here.discard(self._name)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _owner(self) -> str:
        try:
            return (self.path / ABORT_FILE).read_text()
        except OSError:
            return ""


_held_here: set[Path] = set()
