"""What is in the file of a stage. Everything here takes its time, and is called in threads.

    bytes       field
                each body that came:
    4           its length
    4           its CRC-32
    n           portions (`wire.portions`), checked and ready to be appended
                at the end of a sealed stage:
    4           "SEAL"
    4 + 8 + 8   how many bodies, records, bytes of records

1. Whatever happened to a sealed file, it gives what was sealed or is refused.
2. A body that was written half is written over.
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
    """One body, ready to be kept."""

    blob: bytes
    rows: int
    size_bytes: int


class StageSeal(NamedTuple):
    """What a whole stage holds."""

    chunks: int
    rows: int
    size_bytes: int


def append_chunk(path: Path, at: int, make_chunk: Callable[[], StageChunk]) -> tuple[StageChunk, int]:
    """Make a body and put it at the end of a stage, which is at `at`; with how many bytes that took."""
    chunk = make_chunk()
    start = _CHUNK.pack(len(chunk.blob), crc32(chunk.blob))
    _write(path, at, start, chunk.blob)
    return chunk, len(start) + len(chunk.blob)


def seal_file(path: Path, to: Path, at: int, said: StageSeal, *, syncs: bool) -> int:
    """Close the file that ends at `at`, under its final name; how many bytes that took."""
    _write(path, at, _SEAL.pack(_MAGIC, *said), syncs=syncs)
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
        os.ftruncate(fd, at)  # what an earlier attempt left there when the disk was full
        for part in parts:
            left = memoryview(part)
            while left:
                written = os.pwrite(fd, left, at)
                at, left = at + written, left[written:]
        if syncs:
            os.fsync(fd)
    finally:
        os.close(fd)


def read_seal(path: Path) -> StageSeal | None:
    """How a sealed file ends; None if it does not end like one."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _SEAL.size))
        tail = file.read()
    if len(tail) != _SEAL.size or not tail.startswith(_MAGIC):
        return None
    return StageSeal(*_SEAL.unpack(tail)[1:])


def read_portions(path: Path) -> list[QueueBatch]:
    """Everything a sealed stage holds, over the mapped file."""
    found: list[QueueBatch] = []
    with path.open("rb") as file:
        try:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            at, end = 0, len(view) - _SEAL.size
            _, *said = _SEAL.unpack_from(view, end)
            chunks = 0
            while at < end:
                size, crc = _CHUNK.unpack_from(view, at)
                at += _CHUNK.size
                blob = view[at : at + size]
                if at + size > end or crc32(blob) != crc:
                    raise ProtocolError(f"the body at byte {at} does not match its checksum")
                found += queue_batches.decode(blob)
                at += size
                chunks += 1
            if said != [chunks, sum(len(part.sizes) for part in found), sum(len(part.data) for part in found)]:
                raise ProtocolError("its end tells of something else than it holds")
        except (ProtocolError, ValueError, StructError) as cause:
            raise Refused(f"stage {path.stem!r} is damaged ({cause}): stage its records again") from cause
    return found
