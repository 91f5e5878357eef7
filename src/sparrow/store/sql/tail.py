"""The newest messages of a lane, at hand without asking the database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

TAIL_BYTES = 16 << 20


class Held(NamedTuple):
    """A message that nobody has read yet."""

    id: int
    body: bytes
    source_ip: int
    store_ms: int
    properties: bytes

    @property
    def size(self) -> int:
        return len(self.body) + len(self.properties)


Record = tuple[bytes, int]
"""A record, and the code of its tags."""


class Tail:
    """A run of messages without holes. The oldest give way to the newest; records are made when first read."""

    def __init__(self, made: Callable[[Held], Record], bytes_max: int = TAIL_BYTES) -> None:
        self._made, self._bytes_max = made, bytes_max
        self.first = 0
        """The offset of the first message held."""
        self._items: list[Held | Record | None] = []
        self._bytes = 0
        self._dropped = 0
        """Items at the front of the list that are gone: taken out many at a time."""

    @property
    def end(self) -> int:
        return self.first + len(self._items) - self._dropped

    def add(self, messages: Sequence[Held]) -> None:
        """If they do not follow what is held, that is forgotten."""
        offset = messages[0].id - 1
        if offset != self.end:
            if offset < self.end:
                return
            self.clear(offset)
        self._items += messages
        self._bytes += sum(message.size for message in messages)
        while self._bytes > self._bytes_max and self.first < self.end - 1:
            gone = self._items[self._dropped]
            self._bytes -= gone.size if isinstance(gone, Held) else len(gone[0]) if gone is not None else 0
            self._items[self._dropped] = None
            self._dropped += 1
            self.first += 1
        if self._dropped > 4096 and self._dropped * 2 > len(self._items):
            del self._items[: self._dropped]
            self._dropped = 0

    def clear(self, first: int = 0) -> None:
        self.first, self._bytes, self._dropped = first, 0, 0
        self._items.clear()

    def records(self, offset: int, count: int) -> list[Record]:
        """Up to `count` of them; `offset` is held."""
        start = offset - self.first + self._dropped
        found: list[Record] = []
        for at in range(start, min(start + count, len(self._items))):
            item = self._items[at]
            if isinstance(item, Held):
                item = self._items[at] = self._made(item)
            assert item is not None, "what was dropped lies before the first"
            found.append(item)
        return found
