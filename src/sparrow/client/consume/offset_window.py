"""The offsets of one queue that are fetched and not yet consumed (part of RocketMQ's `ProcessQueue`).

1. Messages are consumed in any order; only offsets before the first unconsumed one may be committed.
2. `committable_offset` never passes an unconsumed message.
3. Adding and finishing cost the same, however many are unconsumed: the offsets are in a deque, rising, and a finished
   one stays until it reaches an end of the deque. `_sizes` alone says what is unconsumed.

Calls must not overlap: threads need a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import repeat

STALE_OFFSETS_MAX = 1024
"""Finished offsets in the middle of the deque that are not worth removing."""


class OffsetWindow:
    """The unconsumed messages of one queue, by offset."""

    def __init__(self, next_offset: int | None = None) -> None:
        self._next_offset = next_offset
        self._sizes: dict[int, int] = {}
        self._batch_counts: dict[int, int] = {}
        """How many messages an entry stands for, where it is a batch."""
        self._offsets: deque[int] = deque()
        self._bytes = 0

    def add(self, items: Iterable[tuple[int, int]], next_offset: int) -> None:
        """Add pairs of offset and size in bytes, and set the offset of the next pull.

        A pull whose messages are all filtered out adds none, but still sets that offset.
        """
        self._next_offset = next_offset
        fresh = dict(items)
        if not fresh:
            return
        offsets = sorted(fresh)  # offsets of a pull rise, so this is linear
        if self._offsets and offsets[0] <= self._offsets[-1]:
            # The pull went back: skip known offsets, and sort in the others.
            for known in fresh.keys() & self._sizes.keys():
                del fresh[known]
            self._sizes.update(fresh)
            self._offsets = deque(sorted(self._sizes))
        else:
            self._sizes.update(fresh)
            self._offsets.extend(offsets)
        self._bytes += sum(fresh.values())

    def add_batches(self, batches: Iterable[tuple[int, int, int]], next_offset: int) -> None:
        """Add batches that are consumed as a whole, each as its first offset, its size in bytes and its count."""
        fresh = {offset: (size, count) for offset, size, count in batches if offset not in self._sizes}
        self._batch_counts.update((offset, count) for offset, (_, count) in fresh.items())
        self.add([(offset, size) for offset, (size, _) in fresh.items()], next_offset)

    def done(self, offsets: Iterable[int]) -> None:
        """Remove consumed messages; unknown offsets are ignored."""
        sizes = self._sizes
        if self._batch_counts:
            offsets = list(offsets)
            for offset in offsets:
                self._batch_counts.pop(offset, None)
        self._bytes -= sum(map(sizes.pop, offsets, repeat(0)))
        line = self._offsets
        if not sizes:
            line.clear()
            return
        while line[0] not in sizes:
            line.popleft()
        while line[-1] not in sizes:
            line.pop()
        if len(line) > 2 * len(sizes) + STALE_OFFSETS_MAX:
            # One message is slow while others pass: keep the deque as short as the unconsumed offsets.
            self._offsets = deque(sorted(sizes))

    def restart(self, next_offset: int) -> None:
        """Forget all messages and continue from an offset: the group was reset, or the offset moved."""
        self._sizes.clear()
        self._batch_counts.clear()
        self._offsets.clear()
        self._bytes = 0
        self._next_offset = next_offset

    @property
    def next_offset(self) -> int | None:
        """Where the next pull starts; None until it is known."""
        return self._next_offset

    @property
    def committable_offset(self) -> int | None:
        """The offset to commit: everything before it is consumed. None while nothing is known."""
        return self._offsets[0] if self._offsets else self._next_offset

    @property
    def count(self) -> int:
        """Unconsumed messages."""
        return len(self._sizes) + sum(self._batch_counts.values()) - len(self._batch_counts)

    @property
    def bytes(self) -> int:
        """Bytes of their bodies."""
        return self._bytes

    @property
    def span(self) -> int:
        """Offsets between the first and the last unconsumed message.

        At most this many are delivered again after a crash.
        """
        if not self._offsets:
            return 0
        last = self._offsets[-1]
        return last + self._batch_counts.get(last, 1) - 1 - self._offsets[0]

    def is_full(self, *, count_max: int, bytes_max: int, span_max: int) -> bool:
        """Return whether the next pull should wait. An empty window is never full."""
        if not self._sizes:
            return False
        return self.count >= count_max or self._bytes >= bytes_max or self.span > span_max
