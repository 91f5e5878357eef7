"""One file of the key index, in RocketMQ's format: hash slots, and chained entries that point to records with a key.

    at          bytes   field                       an entry: bytes  field
    0           8       store time of the first               4      hash of `topic#key`, never negative
    8           8       store time of the last                8      physical offset
    16          8       physical offset of the first          4      seconds since the file's first store time
    24          8       physical offset of the last           4      number of the slot's entry before it, or 0
    32          4       slots in use
    36          4       number of the next entry
    40          4 * s   slots: the newest entry of each chain, 0 for none
    ...         20 * e  entries; number 0 is never used

1. Entries ascend by physical offset, and the chain of an entry leads only to lower numbers.
2. The slots follow from the entries, so the newest file keeps them in memory and writes them when it is full; after a
   crash they are computed again. Only entries are written at once, with plain writes: on a full disk they fail with an
   error, where a write into a mapping would kill the process.
3. It is a view that follows the log in bulk and may lag; it must catch up before a search.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from struct import Struct

import msgspec
import numpy as np
import numpy.typing as npt

from sparrow.store.log.commit_log import mapped_pages

_HEADER = Struct(">qqqqii")
INDEX_HEADER_BYTES = 40
INDEX_ENTRY = np.dtype([("hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
INDEX_ENTRY_BYTES = INDEX_ENTRY.itemsize
_SECONDS_MAX = 2**31 - 1
_ENTRIES_AT_ONCE = 1 << 18
_SLOTS_PER_PAGE = 1024
_WALK_MAX = 100_000
"""Entries of one chain that a query follows at most, in case damage has made the chain a circle."""


class IndexCheckpoint(msgspec.Struct, frozen=True):
    """How much of the index is durable: part of the checkpoint."""

    file: str
    count: int
    """The number of the next entry."""


class IndexFile:
    """One file. Only the newest is opened for writing; the others are searched."""

    def __init__(self, path: Path, slots: int, entries: int) -> None:
        self.path, self.slot_count, self.entries_max = path, slots, entries
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.slots: npt.NDArray[np.int32] | None = None
        header = os.pread(self.fd, INDEX_HEADER_BYTES, 0).ljust(INDEX_HEADER_BYTES, b"\0")
        (self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, count) = _HEADER.unpack(
            header
        )
        self.count = max(1, count)

    @property
    def is_full(self) -> bool:
        return bool(self.count >= self.entries_max)

    @property
    def bytes(self) -> int:
        return INDEX_HEADER_BYTES + 4 * self.slot_count + INDEX_ENTRY_BYTES * self.entries_max

    @property
    def is_whole(self) -> bool:
        """Whether the file has the size it was made with."""
        return os.fstat(self.fd).st_size == self.bytes

    def open_for_writing(self, *, count: int | None = None) -> None:
        """Load the slots into memory. With `count`, after a crash, drop later entries and compute the slots again."""
        if os.fstat(self.fd).st_size < self.bytes:
            os.ftruncate(self.fd, self.bytes)
        if count is None:
            raw = os.pread(self.fd, 4 * self.slot_count, INDEX_HEADER_BYTES)
            self.slots = np.frombuffer(raw, ">i4").astype(np.int32)
            return
        self.cut(count)

    def cut(self, count: int) -> None:
        """Keep only the entries below number `count`, and compute the slots again."""
        self.slots = np.zeros(self.slot_count, np.int32)
        self.count = 1
        last = None
        while self.count < min(count, self.entries_max):
            entries = self.read(self.count, min(_ENTRIES_AT_ONCE, count - self.count))
            if len(entries) == 0:
                break
            # Of several values for one slot NumPy keeps the last, which is the newest entry.
            numbers = np.arange(self.count, self.count + len(entries), dtype=np.int32)
            self.slots[entries["hash"] % self.slot_count] = numbers
            self.count += len(entries)
            last = entries[-1]
        if last is None:
            self.begin_ms = self.end_ms = self.begin_offset = self.end_offset = 0
        else:
            self.end_offset = int(last["physical_offset"])
            self.end_ms = self.begin_ms + int(last["seconds"]) * 1000
        self.slots_used = int(np.count_nonzero(self.slots))

    def read(self, number: int, count: int) -> npt.NDArray[np.void]:
        """Read entries [number, number + count), as far as the file has them."""
        raw = os.pread(
            self.fd, INDEX_ENTRY_BYTES * count, INDEX_HEADER_BYTES + 4 * self.slot_count + INDEX_ENTRY_BYTES * number
        )
        return np.frombuffer(raw[: len(raw) - len(raw) % INDEX_ENTRY_BYTES], INDEX_ENTRY)

    def first_entry_from(self, log_end: int) -> int:
        """Return the number of the first entry that points to the log's end or later."""
        low, high = 1, self.count
        while low < high:
            middle = (low + high) // 2
            if int(self.read(middle, 1)["physical_offset"][0]) < log_end:
                low = middle + 1
            else:
                high = middle
        return low

    def put(
        self, hashes: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], store_ms: npt.NDArray[np.int64]
    ) -> None:
        """Add entries in log order. They must fit into the file."""
        n = len(hashes)
        if n == 0:
            return
        assert self.slots is not None, "only the newest file is written to"
        assert self.count + n <= self.entries_max
        if self.count == 1:
            self.begin_ms, self.begin_offset = int(store_ms[0]), int(offsets[0])
        slot = hashes % self.slot_count
        number = np.arange(self.count, self.count + n, dtype=np.int32)
        heads = self.slots[slot]
        self.slots[slot] = number  # of several values for one slot NumPy keeps the last, which is the newest
        entries = np.empty(n, INDEX_ENTRY)
        entries["hash"], entries["physical_offset"] = hashes, offsets
        entries["seconds"] = np.clip((store_ms - self.begin_ms) // 1000, 0, _SECONDS_MAX)
        entries["previous"] = self._previous(slot, number, heads)
        at = INDEX_HEADER_BYTES + 4 * self.slot_count + INDEX_ENTRY_BYTES * self.count
        if os.pwrite(self.fd, entries.tobytes(), at) != entries.nbytes:
            self.slots[slot] = heads
            raise OSError(errno.ENOSPC, "the disk is full", str(self.path))
        self.slots_used += int(np.count_nonzero(entries["previous"] == 0))
        self.count += n
        self.end_offset, self.end_ms = int(offsets[-1]), int(store_ms[-1])
        self.write_header()

    def _previous(
        self, slot: npt.NDArray[np.int32], number: npt.NDArray[np.int32], heads: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int32]:
        """Return the predecessor of each new entry in its chain: usually the slot's value, rarely another new entry."""
        assert self.slots is not None
        newest = self.slots[slot]
        is_older = np.flatnonzero(newest != number)
        if len(is_older) == 0:
            return heads
        shared = np.unique(np.concatenate((is_older, newest[is_older] - number[0])))
        shared = shared[np.argsort(slot[shared], kind="stable")]
        again = np.flatnonzero(slot[shared[1:]] == slot[shared[:-1]])
        previous = heads.copy()
        previous[shared[again + 1]] = number[shared[again]]
        return previous

    def write_header(self) -> None:
        header = _HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, self.count
        )
        os.pwrite(self.fd, header, 0)

    def write_slots(self) -> None:
        """Write the slots; ranges without any entry become holes, which take no space on disk."""
        if self.slots is None:
            return
        mapped_pages.erase(self.fd, INDEX_HEADER_BYTES, 4 * self.slot_count)
        for first, stop in _used_ranges(self.slots):
            data = self.slots[first:stop].astype(">i4").tobytes()
            if os.pwrite(self.fd, data, INDEX_HEADER_BYTES + 4 * first) != len(data):
                raise OSError(errno.ENOSPC, "the disk is full", str(self.path))
        self.write_header()

    def offsets_of(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Return physical offsets of entries with a hash and a store time, newest first. Hashes may collide."""
        slot = key_hash % self.slot_count
        if self.slots is not None:
            number = int(self.slots[slot])
        else:
            raw = os.pread(self.fd, 4, INDEX_HEADER_BYTES + 4 * slot)
            number = int.from_bytes(raw, "big", signed=True)
        found: list[int] = []
        for _ in range(_WALK_MAX):
            if not 0 < number < self.count or len(found) >= limit:
                break
            entry = self.read(number, 1)
            if len(entry) == 0:
                break
            (entry_hash, offset, seconds, previous) = entry[0].item()
            at_ms = self.begin_ms + seconds * 1000
            # Times are stored in whole seconds, so allow a second at both ends.
            if entry_hash == key_hash and begin_ms - 1000 < at_ms <= end_ms:
                found.append(offset)
            if previous >= number:
                break
            number = previous
        return found

    def sync(self) -> None:
        os.fdatasync(self.fd)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


def _used_ranges(slots: npt.NDArray[np.int32]) -> list[tuple[int, int]]:
    """Return the ranges (first, stop) of slots that have an entry in every page."""
    starts = np.arange(0, len(slots), _SLOTS_PER_PAGE)
    is_used = np.maximum.reduceat(slots, starts) > 0
    edges = np.flatnonzero(np.diff(np.concatenate(([False], is_used, [False])).astype(np.int8))) * _SLOTS_PER_PAGE
    return [(first, min(stop, len(slots))) for first, stop in edges.reshape(-1, 2).tolist()]
