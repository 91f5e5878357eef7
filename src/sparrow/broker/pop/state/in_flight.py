"""Batches of messages in flight, and until when they are invisible. Pure: time is an argument.

1. A batch is what one pop took from one queue. Its handle identifies it: group, queue, first offset and pop time.
2. A message leaves its batch once: acknowledged, moved to another batch (another invisible time), or revived.
3. A batch without messages is removed.
4. While a batch is being stored again it is withdrawn: its handle is not valid, and it is not settled yet.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import takewhile

from sparrow.model.errors import Busy
from sparrow.model.errors.base import by_limit
from sparrow.model.queue import Queue

IN_FLIGHT_BATCHES_MAX = 1_000_000
"""Batches in flight at a time: half a gigabyte of memory."""
_SPARE_ENTRIES = 1024


class InFlightBatch:
    """Messages of one queue that are in flight together."""

    __slots__ = ("due_ms", "group", "invisible_ms", "mask", "number", "pop_ms", "queue", "start", "withdrawn")

    def __init__(
        self, group: str, queue: Queue, start: int, *, pop_ms: int, invisible_ms: int, mask: int, number: int = -1
    ) -> None:
        self.group, self.queue, self.start = group, queue, start
        self.pop_ms, self.invisible_ms, self.due_ms = pop_ms, invisible_ms, pop_ms + invisible_ms
        self.mask = mask
        """Bit i: message `start + i` is in flight."""
        self.withdrawn = 0
        """The same for messages that are being stored again."""
        self.number = number
        """The offset of its newest entry in the journal, or a running number."""

    @property
    def key(self) -> tuple[str, Queue, int, int]:
        return self.group, self.queue, self.start, self.pop_ms

    def offsets(self) -> list[int]:
        return [self.start + index for index in range(self.mask.bit_length()) if self.mask >> index & 1]

    def bit(self, offset: int) -> int:
        """Return the bit of an offset; 0 if it is not in flight."""
        index = offset - self.start
        return self.mask & (1 << index) if 0 <= index < self.mask.bit_length() else 0

    def first_unsettled(self) -> int | None:
        """Return the first message that is not settled."""
        unsettled = self.mask | self.withdrawn
        return self.start + (unsettled & -unsettled).bit_length() - 1 if unsettled else None


class InFlightTable:
    """All batches in flight of a broker."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, Queue, int, int], InFlightBatch] = {}
        self._by_number: dict[int, InFlightBatch] = {}
        """Ordered: numbers only grow."""
        self._dues: list[tuple[int, int, InFlightBatch]] = []
        """A heap. Entries of removed batches, or with an outdated time, are skipped."""

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[InFlightBatch]:
        """Iterate in the order of the journal."""
        return iter(list(self._by_number.values()))

    def add(self, batch: InFlightBatch) -> None:
        """Add a batch. It replaces a batch with the same handle: the journal contains both."""
        assert batch.mask, "an empty batch is removed"
        assert batch.number >= 0, "the journal assigns its number first"
        same = self._batches.get(batch.key)
        if same is not None and same.number != batch.number:
            del self._by_number[same.number]
        self._batches[batch.key] = self._by_number[batch.number] = batch
        heapq.heappush(self._dues, (batch.due_ms, batch.number, batch))
        if len(self._dues) > 2 * len(self._batches) + _SPARE_ENTRIES:
            self._dues = [(each.due_ms, each.number, each) for each in self._batches.values()]
            heapq.heapify(self._dues)

    def check_capacity(self, batches: Iterable[InFlightBatch], *, batches_max: int) -> None:
        """Check that batches may be added. A batch with the handle of a known one takes over its messages."""
        if len(self._batches) >= batches_max:
            raise by_limit(
                "pops_in_flight", Busy(f"{len(self._batches)} pops are not acknowledged yet: try again later")
            )
        for batch in batches:
            same = self._batches.get(batch.key)
            if same is not None:  # rewound, and popped again within the same millisecond
                batch.mask |= same.mask

    def find(self, group: str, queue: Queue, start: int, pop_ms: int) -> InFlightBatch | None:
        return self._batches.get((group, queue, start, pop_ms))

    def find_by_number(self, number: int) -> InFlightBatch | None:
        return self._by_number.get(number)

    def settle(self, batch: InFlightBatch, mask: int) -> int:
        """Settle messages of a batch. Return those that were in flight."""
        settled = batch.mask & mask
        batch.mask ^= settled
        if not batch.mask and self._batches.get(batch.key) is batch:
            del self._batches[batch.key], self._by_number[batch.number]
        return settled

    def split_off(self, batch: InFlightBatch, offset: int, *, invisible_ms: int, now_ms: int) -> InFlightBatch:
        """Return a batch for one message of another, with a new handle. Neither batch is changed yet."""
        assert batch.bit(offset), "only a message in flight can be moved"
        pop_ms = max(now_ms, batch.pop_ms + 1)
        while self.find(batch.group, batch.queue, offset, pop_ms) is not None:
            pop_ms += 1
        return InFlightBatch(batch.group, batch.queue, offset, pop_ms=pop_ms, invisible_ms=invisible_ms, mask=1)

    def withdraw(self, batch: InFlightBatch) -> int:
        """Withdraw the rest of a batch while it is stored again. Return its messages.

        Acknowledgements do not find them any more.
        """
        batch.withdrawn = self.settle(batch, batch.mask)
        return batch.withdrawn

    def restore(self, batch: InFlightBatch, mask: int) -> None:
        """Put withdrawn messages that could not be stored in flight again."""
        assert mask & ~batch.withdrawn == 0, "only withdrawn messages can be restored"
        batch.withdrawn = 0
        if mask:
            batch.mask = mask
            self.add(batch)

    def renumber(self, batch: InFlightBatch, number: int) -> None:
        """Set the offset of a newer journal entry."""
        assert self._batches[batch.key] is batch
        del self._by_number[batch.number]
        batch.number = number
        self._by_number[number] = batch

    def postpone(self, batch: InFlightBatch, due_ms: int) -> None:
        """Revive a batch later, because it could not be revived now. Its handle stays valid."""
        if self._batches.get(batch.key) is batch:
            batch.due_ms = due_ms
            heapq.heappush(self._dues, (due_ms, batch.number, batch))

    def next_due_ms(self) -> int | None:
        dues = self._dues
        while dues and not self._is_current(dues[0]):
            heapq.heappop(dues)
        return dues[0][0] if dues else None

    def due(self, now_ms: int, count_max: int) -> list[InFlightBatch]:
        """Return expired batches, each once. The caller settles or postpones them."""
        found: list[InFlightBatch] = []
        while len(found) < count_max and (due_ms := self.next_due_ms()) is not None and due_ms <= now_ms:
            found.append(heapq.heappop(self._dues)[2])
        return found

    def _is_current(self, entry: tuple[int, int, InFlightBatch]) -> bool:
        batch = entry[2]
        return entry[0] == batch.due_ms and self._batches.get(batch.key) is batch

    def oldest(self) -> int | None:
        """Return the oldest journal offset that is still needed."""
        return next(iter(self._by_number), None)

    def before(self, number: int) -> list[InFlightBatch]:
        """Return the batches with an older journal entry."""
        return [batch for _, batch in takewhile(lambda item: item[0] < number, self._by_number.items())]
