"""Checksums of a log and of its views, by which replicas are compared.

What is compared lies between two physical offsets, below the high watermark of all replicas: their logs must have the
same bytes there, their consume queues the same entries, and their state the same values.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from sparrow.model.errors import StorageError
from sparrow.store.log.consume_queues.consume_queue import ENTRY_BYTES, ConsumeQueue
from sparrow.store.log.engine import LogStore
from sparrow.wire.checksum import crc32

_READ_BYTES = 1 << 20
_KEY_PAIRS = np.dtype([("hash", ">i4"), ("offset", ">i8")])
_KEYS_PART_BYTES = 256 << 20
"""The keys of so much of the log have one checksum."""
_ENTRIES = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])


class EntryChecksum(NamedTuple):
    """A queue, or a subject of the state."""

    name: str
    physical_offset: int
    """Of the newest record that it was made from, in the range; -1 if there is none."""
    entries: int
    crc: int


def log_checksums(store: LogStore, start: int, end: int, block_bytes: int) -> list[int]:
    """Return the CRC-32 of each block of a range of the log. Raises `StorageError` if retention has deleted some."""
    blocks: list[int] = []
    offset = start
    while offset < end:
        block_end, crc = min(offset + block_bytes, end), 0
        while offset < block_end:
            data = store.raw(offset, min(_READ_BYTES, block_end - offset))
            if not data:
                raise StorageError(f"the log of {store.path} has no byte at {offset}: it begins at {store.first}")
            crc, offset = crc32(data, crc), offset + len(data)
        blocks.append(crc)
    return blocks


def queue_checksums(store: LogStore, start: int, end: int, after: str, limit: int) -> list[EntryChecksum]:
    """Return the checksums of consume queues, in the order of their names, from behind a name on."""
    queues = sorted((_queue_name(queue), queue) for queue in list(store._queues))
    following = ((name, queue) for name, queue in queues if name > after)
    return [_queue_checksum(name, queue, start, end) for name, queue in islice(following, limit)]


def _queue_name(queue: ConsumeQueue) -> str:
    return f"{queue.queue.topic} {queue.queue.id:>6}"


def _queue_checksum(name: str, queue: ConsumeQueue, start: int, end: int) -> EntryChecksum:
    last, count, crc = -1, 0, 0
    for data in _entries(queue):
        entries = np.frombuffer(data, _ENTRIES)
        compared = entries[(entries["offset"] >= start) & (entries["offset"] < end)]
        if len(compared):
            last, count, crc = int(compared["offset"][-1]), count + len(compared), crc32(compared.tobytes(), crc)
        if len(entries) and entries["offset"][-1] >= end:
            break
    return EntryChecksum(name, last, count, crc)


def _entries(queue: ConsumeQueue) -> Iterator[bytes]:
    offset = int(queue.first)
    while offset < queue.end and (data := queue.entries(offset, _READ_BYTES // ENTRY_BYTES)):
        yield data
        offset += len(data) // ENTRY_BYTES


def key_checksums(store: LogStore, start: int, end: int, after: str, limit: int) -> list[EntryChecksum]:
    """Return the checksums of the key index, for each part of the log, from behind a name on."""
    first = max(start // _KEYS_PART_BYTES, int(after) + 1 if after else 0)
    stop = min(-(-end // _KEYS_PART_BYTES), first + limit)
    found: list[EntryChecksum] = []
    with store._key_indexer.complete_index() as index:
        for part in range(first, stop):
            part_start, part_end = part * _KEYS_PART_BYTES, (part + 1) * _KEYS_PART_BYTES
            last, count, crc = -1, 0, 0
            for entries in index.entries_between(max(start, part_start), min(end, part_end)):
                # Times and chains depend on where a file begins, which differs between replicas.
                pairs = np.empty(len(entries), _KEY_PAIRS)
                pairs["hash"], pairs["offset"] = entries["hash"], entries["physical_offset"]
                last, count, crc = int(pairs["offset"][-1]), count + len(pairs), crc32(pairs.tobytes(), crc)
            found.append(EntryChecksum(f"{part:012d}", last, count, crc))
    return found


def state_checksums(store: LogStore, after: str, limit: int) -> list[EntryChecksum]:
    """Return the checksums of state, each with the physical offset of its record, in the order of names."""
    with store._writer.lock:
        subjects = store._state.tables.subject_values()
    named = sorted((" ".join(filter(None, subject)), at, value) for subject, at, value in subjects)
    following = ((name, at, value) for name, at, value in named if name > after)
    return [EntryChecksum(name, at, 1, crc32(value)) for name, at, value in islice(following, limit)]
