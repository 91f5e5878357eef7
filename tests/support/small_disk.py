"""A file system of its own for a test: it can really be full, and have space again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BLOCK_BYTES = 4096
_BALLAST = "ballast"


class MountRefused(Exception):
    """This process may not mount file systems, or the tools for it are missing."""


class SmallDisk:
    """A mounted file system."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Take all the space that is left, to the last block."""
        self.fill_to(1.0)
        with open(self.path / _BALLAST, "ab") as file:
            step = 1 << 20
            while step >= BLOCK_BYTES:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), step)
                except OSError:
                    step //= 2

    def fill_to(self, ratio: float) -> None:
        """Take so much space that this part of the disk is used."""
        usage = shutil.disk_usage(self.path)
        size = int(usage.free - (usage.used + usage.free) * (1 - ratio)) // BLOCK_BYTES * BLOCK_BYTES
        with open(self.path / _BALLAST, "ab") as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, size)

    def release(self) -> None:
        """Give the space back."""
        (self.path / _BALLAST).unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[SmallDisk]:
    """Mount a new ext4 of `size` bytes at a new folder, from a sparse file beside it; raises `MountRefused`.

    ext4, and not a file system in memory: it allocates, delays and refuses like the disk of a server.
    """
    image = path.with_name(f"{path.name}.img")
    with image.open("wb") as file:
        file.truncate(size)
    try:
        path.mkdir()
        # No blocks are kept for root, as whom tests that may mount run.
        _run("mkfs.ext4", "-q", "-m", "0", str(image))
        _run("mount", "-o", "loop", str(image), str(path))
        try:
            yield SmallDisk(path)
        finally:
            # Lazily: a process that was killed may not have released its files yet.
            _run("umount", "--lazy", str(path))
    finally:
        image.unlink()


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise MountRefused(f"no file system can be mounted here: {error}") from error
