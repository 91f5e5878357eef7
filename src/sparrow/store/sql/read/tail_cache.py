"""The newest messages of a lane, at hand without asking the database."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from sparrow.store.sql.row_codec import NewRow

TAIL_CACHE_BYTES_MAX = 16 << 20
_MESSAGE_BYTES = 512
"""What a message takes beside its body and properties."""

TaggedRecord = tuple[bytes, int]
"""A record, and the code of its tags."""


class TailCache:
    """A run of messages without holes. The oldest give way to the newest; records are made when first read."""

    def __init__(self, made: Callable[[int, NewRow, int], TaggedRecord], bytes_max: int = TAIL_CACHE_BYTES_MAX) -> None:
        self._made, self._bytes_max = made, bytes_max
        self.first = 0
        """The offset of the first message held."""
        self._items: list[NewRow | TaggedRecord] = []
        self._times: list[int] = []
        """When each of them was stored."""
        self._lots: deque[tuple[int, int]] = deque()
        """How many messages came together, and their bytes."""
        self._bytes = 0

    @property
    def end(self) -> int:
        return self.first + len(self._items)

    def add(self, offset: int, entries: Sequence[NewRow], times: Sequence[int]) -> None:
        """If they do not follow what is held, that is forgotten."""
        if offset != self.end:
            if offset < self.end:
                return
            self.clear(offset)
        size = sum([len(entry.body) + len(entry.properties) for entry in entries]) + len(entries) * _MESSAGE_BYTES
        self._items += entries
        self._times += times
        self._lots.append((len(entries), size))
        self._bytes += size
        if self._bytes > self._bytes_max:
            self._make_room()

    def _make_room(self) -> None:
        """More than is needed now: taking from the front of a list moves the rest of it."""
        gone = 0
        while self._bytes > self._bytes_max * 7 // 8 and len(self._lots) > 1:
            count, size = self._lots.popleft()
            gone += count
            self._bytes -= size
        del self._items[:gone], self._times[:gone]
        self.first += gone

    def clear(self, first: int = 0) -> None:
        self.first, self._bytes = first, 0
        for each in (self._items, self._times, self._lots):
            each.clear()

    def records(self, offset: int, count: int) -> list[TaggedRecord]:
        """Up to `count` of them; `offset` is held."""
        start, items = offset - self.first, self._items
        found: list[TaggedRecord] = []
        for at in range(start, min(start + count, len(items))):
            item = items[at]
            if isinstance(item, NewRow):
                item = items[at] = self._made(self.first + at + 1, item, self._times[at])
            found.append(item)
        return found
