"""The file format of a stage. All functions do blocking I/O and run in threads.

    bytes       field
                for each chunk:
    4           its length
    4           its CRC-32
    n           encoded records, validated and ready to be appended
                at the end of a sealed stage:
    4           "SEAL"
    4 + 8 + 8   number of chunks, of records, of record bytes

1. A sealed file yields what was sealed, or is refused if it is damaged.
2. A partly written chunk is overwritten.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from sparrow.model.errors import ProtocolError, Refused
from sparrow.wire import queue_batches
from sparrow.wire.checksum import crc32
from sparrow.wire.queue_batches import QueueBatch

_CHUNK = Struct(">II")
_SEAL = Struct(">4sIQQ")
_MAGIC = b"SEAL"


class StageChunk(NamedTuple):
    """One request body, ready to be written."""

    blob: bytes
    rows: int
    size_bytes: int


class StageSeal(NamedTuple):
    """The totals of a sealed stage."""

    chunks: int
    rows: int
    size_bytes: int


def append_chunk(path: Path, at: int, make_chunk: Callable[[], StageChunk]) -> tuple[StageChunk, int]:
    """Make a chunk and append it to a stage file that ends at `at`. Return it with the number of bytes written."""
    chunk = make_chunk()
    start = _CHUNK.pack(len(chunk.blob), crc32(chunk.blob))
    _write(path, at, start, chunk.blob)
    return chunk, len(start) + len(chunk.blob)


def seal_file(path: Path, to: Path, at: int, totals: StageSeal, *, syncs: bool) -> int:
    """Seal the file that ends at `at`, and give it its final name. Return the number of bytes written."""
    _write(path, at, _SEAL.pack(_MAGIC, *totals), syncs=syncs)
    path.rename(to)
    if syncs:
        fd = os.open(to.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    return _SEAL.size


def _write(path: Path, at: int, *parts: bytes, syncs: bool = False) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, at)  # remove what a failed write on a full disk left there
        for part in parts:
            rest = memoryview(part)
            while rest:
                written = os.pwrite(fd, rest, at)
                at, rest = at + written, rest[written:]
        if syncs:
            os.fsync(fd)
    finally:
        os.close(fd)


def read_seal(path: Path) -> StageSeal | None:
    """Return the seal of a file; None if it has none."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _SEAL.size))
        tail = file.read()
    if len(tail) != _SEAL.size or not tail.startswith(_MAGIC):
        return None
    return StageSeal(*_SEAL.unpack(tail)[1:])


def read_queue_batches(path: Path) -> list[QueueBatch]:
    """Return all records of a sealed stage, as views of the mapped file."""
    found: list[QueueBatch] = []
    with path.open("rb") as file:
        try:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            at, end = 0, len(view) - _SEAL.size
            _, *totals = _SEAL.unpack_from(view, end)
            chunks = 0
            while at < end:
                size, crc = _CHUNK.unpack_from(view, at)
                at += _CHUNK.size
                blob = view[at : at + size]
                if at + size > end or crc32(blob) != crc:
                    raise ProtocolError(f"the chunk at byte {at} does not match its checksum")
                found += queue_batches.decode(blob)
                at += size
                chunks += 1
            if totals != [chunks, sum(len(part.sizes) for part in found), sum(len(part.data) for part in found)]:
                raise ProtocolError("the totals in its seal do not match its content")
        except (ProtocolError, ValueError, StructError) as cause:
            raise Refused(f"stage {path.stem!r} is damaged ({cause}): stage its records again") from cause
    return found
