"""A disk that loses its power: it keeps what was synced, and of everything else any part.

The store writes to a real folder. `os.fsync` and `os.fdatasync` are replaced: what a file or a directory holds at that
moment is what the disk is sure to have. An image of the folder after a power loss has

- of each page of a file either the synced or the present bytes, and of each file either size,
- of each name in a directory either the synced or the present file: creations, renames and deletions that were not
  synced may be lost, in any combination.
"""

from __future__ import annotations

import os
import random
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE_BYTES = 512
"""The unit in which a disk writes or does not: a sector."""


class PowerLossDisk:
    """What is sure to be on the disk below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self._contents: dict[int, bytes] = {}
        """Inode -> the bytes of a file when it was synced last."""
        self._names: dict[int, dict[str, int]] = {}
        """Inode of a directory -> name -> inode, when it was synced last."""
        self._open: dict[int, int] = {}
        """Inode -> a descriptor, which keeps the file and its inode number."""
        self.on_sync: Callable[[], None] = lambda: None
        """Called before and after each sync."""
        self._note_directory(folder)

    @contextmanager
    def replacing_syncs(self) -> Iterator[PowerLossDisk]:
        """Let syncs of this process count for this disk only."""
        real = os.fsync, os.fdatasync
        os.fsync = os.fdatasync = self._sync
        try:
            yield self
        finally:
            os.fsync, os.fdatasync = real
            for descriptor in self._open.values():
                os.close(descriptor)
            self._open.clear()

    def _sync(self, fd: int) -> None:
        self.on_sync()
        with self._lock:
            found = os.fstat(fd)
            if stat.S_ISDIR(found.st_mode):
                path = Path(os.readlink(f"/proc/self/fd/{fd}"))
                if path == self._folder or self._folder in path.parents:
                    self._note_directory(path)
            else:
                self._keep(found.st_ino, os.open(f"/proc/self/fd/{fd}", os.O_RDONLY))
                self._contents[found.st_ino] = _read(self._open[found.st_ino])
        self.on_sync()

    def _note_directory(self, path: Path) -> None:
        names = {}
        for entry in os.scandir(path):
            names[entry.name] = entry.inode()
            if entry.is_file(follow_symlinks=False):
                try:
                    self._keep(entry.inode(), os.open(entry.path, os.O_RDONLY))
                except FileNotFoundError:
                    del names[entry.name]
            else:
                self._keep(entry.inode(), os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY))
        self._names[path.stat().st_ino] = names

    def _keep(self, inode: int, descriptor: int) -> None:
        if inode in self._open:
            os.close(descriptor)
        else:
            self._open[inode] = descriptor

    # -- images -------------------------------------------------------------------------------------------------------

    def image(self, to: Path, rng: random.Random) -> None:
        """Write the folder as a power loss at this moment may leave it."""
        with self._lock:
            self._write_directory(self._folder, self._folder.stat().st_ino, to, rng)

    def _write_directory(self, present: Path | None, inode: int, to: Path, rng: random.Random) -> None:
        to.mkdir(mode=0o700)
        synced = self._names.get(inode, {})
        now = {} if present is None else {entry.name: entry.inode() for entry in os.scandir(present)}
        loses = rng.choice((0.0, 0.5, 1.0))
        for name in sorted(synced.keys() | now.keys()):
            is_lost = synced.get(name) != now.get(name) and rng.random() < loses
            chosen = synced.get(name) if is_lost else now.get(name)
            if chosen is None:
                continue
            path = present / name if present is not None and now.get(name) == chosen else None
            try:
                self._write_entry(path, chosen, to / name, rng)
            except FileNotFoundError:
                continue  # deleted at this moment

    def _write_entry(self, path: Path | None, inode: int, to: Path, rng: random.Random) -> None:
        known = self._open.get(inode)
        descriptor = os.open(path, os.O_RDONLY) if path is not None else os.dup(known) if known is not None else -1
        if descriptor < 0:
            to.write_bytes(b"")
            return
        try:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                self._write_directory(path, inode, to, rng)
            else:
                to.write_bytes(mixed(self._contents.get(inode, b""), _read(descriptor), rng))
        finally:
            os.close(descriptor)


def mixed(synced: bytes, present: bytes, rng: random.Random) -> bytes:
    """Return a file of which each page has either its synced or its present bytes."""
    size = len(rng.choice((synced, present)))
    if synced == present:
        return present
    loses = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    found = bytearray(present.ljust(size, b"\0")[:size])
    before = synced.ljust(size, b"\0")
    for at in range(0, size, PAGE_BYTES):
        page = slice(at, at + PAGE_BYTES)
        if found[page] != before[page] and rng.random() < loses:
            found[page] = before[page.start : min(page.stop, size)]
    return bytes(found)


def _read(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
