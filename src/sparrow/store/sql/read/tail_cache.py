"""The newest messages of a lane, in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sparrow.store.sql.row_codec import NewRow, tags_code_of

TAIL_CACHE_BYTES_MAX = 16 << 20
_MESSAGE_BYTES = 512
"""What a message takes in memory beside its body and properties."""

TaggedRecord = tuple[memoryview, int]
"""A record, and the hash code of its tags."""


class TailCache:
    """Consecutive messages, the newest of a lane. Records are encoded when they are first read."""

    def __init__(
        self,
        encode_all: Callable[[Iterable[Sequence[Any]]], tuple[bytes, list[int]]],
        bytes_max: int = TAIL_CACHE_BYTES_MAX,
    ) -> None:
        self._encode_all, self._bytes_max = encode_all, bytes_max
        self.first = 0
        """The offset of the first cached message."""
        self._items: list[NewRow | TaggedRecord] = []
        self._times: list[int] = []
        """The store time of each."""
        self._batches: deque[tuple[int, int]] = deque()
        """The count of messages and bytes of each `add`: the unit of eviction."""
        self._bytes = 0

    @property
    def end(self) -> int:
        """The offset after the last cached message."""
        return self.first + len(self._items)

    def add(self, offset: int, rows: Sequence[NewRow], times: Sequence[int]) -> None:
        """Add messages; if they do not follow the cached ones, drop those."""
        if offset != self.end:
            if offset < self.end:
                return
            self.clear(offset)
        size = sum([len(row.body) + len(row.properties) for row in rows]) + len(rows) * _MESSAGE_BYTES
        self._items += rows
        self._times += times
        self._batches.append((len(rows), size))
        self._bytes += size
        if self._bytes > self._bytes_max:
            self._evict()

    def _evict(self) -> None:
        """Evict more than is needed now, because deleting from the front of a list moves the rest of it."""
        evicted = 0
        while self._bytes > self._bytes_max * 7 // 8 and len(self._batches) > 1:
            count, size = self._batches.popleft()
            evicted += count
            self._bytes -= size
        del self._items[:evicted], self._times[:evicted]
        self.first += evicted

    def clear(self, first: int = 0) -> None:
        """Drop everything; the next messages start at `first`."""
        self.first, self._bytes = first, 0
        for each in (self._items, self._times, self._batches):
            each.clear()

    def records(self, offset: int, count: int) -> list[TaggedRecord]:
        """Return up to `count` records from `offset` on, which is cached."""
        start = offset - self.first
        items = self._items[start : start + count]
        new = [(at, item) for at, item in enumerate(items, start) if isinstance(item, NewRow)]
        if new:
            self._encode_items(new)
            items = self._items[start : start + count]
        return items  # type: ignore[return-value]

    def _encode_items(self, new: Sequence[tuple[int, NewRow]]) -> None:
        """Replace rows by their records, which share one buffer."""
        first_id, times = self.first + 1, self._times
        data, sizes = self._encode_all(
            [(first_id + at, row.body, row.source_ip, times[at], row.properties) for at, row in new]
        )
        view, start = memoryview(data), 0
        for (at, row), size in zip(new, sizes, strict=True):
            self._items[at] = view[start : start + size], tags_code_of(row.properties)
            start += size
