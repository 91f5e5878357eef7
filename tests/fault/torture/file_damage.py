"""Damage to files of a store whose broker is down, as far as the store promises to lose nothing by it.

Everything but the commit log can be rebuilt from it (docs/log-store.md). In the commit log, and in SQLite's write-ahead
log, only bytes after the last record are damaged: what a machine may leave of a write that nobody was told of.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

_SMALL_FILES = ("sparrow.checkpoint", "sparrow.state", "checkpoint")


def damage_log_store(folder: Path, rng: random.Random) -> str:
    """Damage one of the files of a log store; return what was done."""
    roll = rng.choice((_damage_small_file, _damage_index, _damage_queue_file, _remove_views, _damage_tail))
    return roll(folder, rng)


def damage_sqlite(path: Path, rng: random.Random) -> str:
    """Damage the files beside a database that SQLite can do without; return what was done."""
    if rng.random() < 0.3:
        Path(f"{path}-shm").unlink(missing_ok=True)
        return "removed -shm"
    log = Path(f"{path}-wal")
    if not log.exists():
        return "nothing: there is no -wal"
    count = rng.randrange(1, 20_000)
    with log.open("ab") as file:
        file.write(rng.randbytes(count))
    return f"{count} bytes of garbage after the end of -wal"


# -- kinds of damage --------------------------------------------------------------------------------------------------


def _overwrite(path: Path, rng: random.Random) -> str:
    path.write_bytes(rng.randbytes(path.stat().st_size))
    return "overwritten"


def _halve(path: Path, _: random.Random) -> str:
    os.truncate(path, path.stat().st_size // 2)
    return "cut in half"


def _empty(path: Path, _: random.Random) -> str:
    os.truncate(path, 0)
    return "emptied"


def _zero(path: Path, _: random.Random) -> str:
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)
    return "filled with zeros"


def _remove(path: Path, _: random.Random) -> str:
    path.unlink()
    return "removed"


_DAMAGES: tuple[Callable[[Path, random.Random], str], ...] = (_overwrite, _halve, _empty, _zero, _remove)


def _damage_one(paths: list[Path], rng: random.Random) -> str:
    if not paths:
        return "nothing: there is no such file yet"
    path = rng.choice(paths)
    return f"{'/'.join(path.parts[-3:])} {rng.choice(_DAMAGES)(path, rng)}"


def _damage_small_file(folder: Path, rng: random.Random) -> str:
    return _damage_one([folder / name for name in _SMALL_FILES if (folder / name).exists()], rng)


def _damage_index(folder: Path, rng: random.Random) -> str:
    return _damage_one(sorted((folder / "index").glob("*")), rng)


def _damage_queue_file(folder: Path, rng: random.Random) -> str:
    """Damage the newest file of a queue: damage in older ones shows only when they are rebuilt."""
    queues = sorted(path for path in (folder / "consumequeue").glob("*/*") if any(path.iterdir()))
    return _damage_one([max(queue.iterdir()) for queue in queues], rng)


def _remove_views(folder: Path, rng: random.Random) -> str:
    name = rng.choice(("consumequeue", "index"))
    shutil.rmtree(folder / name, ignore_errors=True)
    return f"{name}/ removed"


def _damage_tail(folder: Path, rng: random.Random) -> str:
    """Write garbage, or the begin of a record, after the last record of the log."""
    segment, last, end = find_last_record(folder)
    space = segment.stat().st_size - end
    count = min(rng.randrange(1, 3_000), space)
    if rng.random() < 0.5:
        with segment.open("r+b") as file:
            file.seek(last)
            torn = file.read(end - last)[: rng.randrange(1, max(2, end - last))][:space]
            file.seek(end)
            file.write(torn)
        return f"{len(torn)} of {end - last} bytes of a record after the end of the log"
    with segment.open("r+b") as file:
        file.seek(end)
        file.write(rng.randbytes(count))
    return f"{count} bytes of garbage after the end of the log"


def find_last_record(folder: Path) -> tuple[Path, int, int]:
    """Return the segment of the last record, and where in it the record begins and ends.

    Every record begins with its size. It is read here without the code under test.
    """
    for segment in sorted((folder / "commitlog").iterdir(), reverse=True):
        last = end = 0
        size_bytes = segment.stat().st_size
        with segment.open("rb") as file:
            while end + 4 <= size_bytes:
                file.seek(end)
                (size,) = struct.unpack(">i", file.read(4))
                if not 0 < size <= size_bytes - end:
                    break
                last, end = end, end + size
        if end:
            return segment, last, end
    raise AssertionError(f"no record in {folder}/commitlog")
