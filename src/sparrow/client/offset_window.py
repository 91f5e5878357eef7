"""What one consumer holds of one queue: pulled, and not yet consumed.

1. Messages are consumed in any order; only what lies before the first one in hand may be committed.
2. `committable_offset` never passes a message in hand.
3. Adding and finishing cost the same however many are in hand: the offsets stand in a deque, rising, and one that is
   done stays in it until it comes to an end of the deque. `_sizes` alone says what is in hand.

Calls must not overlap: with threads, the caller holds a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import repeat

STALE_OFFSETS_MAX = 1024
"""Finished offsets in the middle of the deque that are not worth clearing away."""


class OffsetWindow:
    def __init__(self, next_offset: int | None = None) -> None:
        self._next_offset = next_offset
        self._sizes: dict[int, int] = {}
        self._offsets: deque[int] = deque()
        self._bytes = 0

    def add(self, items: Iterable[tuple[int, int]], next_offset: int) -> None:
        """Takes pairs of offset and size in bytes in hand, and the offset the next pull starts from.

        A pull that found only messages of no interest adds none of them, and moves on all the same.
        """
        self._next_offset = next_offset
        fresh = dict(items)
        if not fresh:
            return
        offsets = sorted(fresh)  # a pull's offsets rise, so this is one look at each
        if self._offsets and offsets[0] <= self._offsets[-1]:
            # The pull went back. What is in hand already is known; the rest goes to its place.
            for known in fresh.keys() & self._sizes.keys():
                del fresh[known]
            self._sizes.update(fresh)
            self._offsets = deque(sorted(self._sizes))
        else:
            self._sizes.update(fresh)
            self._offsets.extend(offsets)
        self._bytes += sum(fresh.values())

    def done(self, offsets: Iterable[int]) -> None:
        """Lets go of these messages; an offset that is not in hand is passed over."""
        sizes = self._sizes
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
            # One message hangs while the others go by: keep the line as short as what is in hand.
            self._offsets = deque(sorted(sizes))

    def restart(self, next_offset: int) -> None:
        """Forgets what is in hand and goes on from there: the group was rewound, or the offset moved."""
        self._sizes.clear()
        self._offsets.clear()
        self._bytes = 0
        self._next_offset = next_offset

    @property
    def next_offset(self) -> int | None:
        """Where the next pull starts; None until that is known."""
        return self._next_offset

    @property
    def committable_offset(self) -> int | None:
        """The offset to commit: all before it is done. None while nothing is known."""
        return self._offsets[0] if self._offsets else self._next_offset

    @property
    def count(self) -> int:
        return len(self._sizes)

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def span(self) -> int:
        """How far the first and the last message in hand are apart: after a crash, so many come again at worst."""
        return self._offsets[-1] - self._offsets[0] if self._offsets else 0

    def is_full(self, *, count_max: int, bytes_max: int, span_max: int) -> bool:
        """Whether the next pull should wait. An empty window is never full."""
        if not self._sizes:
            return False
        return self.count >= count_max or self._bytes >= bytes_max or self.span > span_max
