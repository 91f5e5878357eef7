"""What is handed out and not acknowledged, and until when. Pure: time is an argument, nothing is stored.

1. What one pop took from one queue is a lot. It is found by its handle: group, queue, first offset and time of the pop.
2. A message leaves its lot once: acknowledged, moved to another lot (another invisible time), or revived.
3. A lot with nothing left in it is gone.
4. While a lot is being stored elsewhere it is withdrawn: its handle stands for nothing, and it is not settled yet.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import takewhile

from sparrow.model.errors import Busy
from sparrow.model.queue import Queue

IN_FLIGHT_BATCHES_MAX = 1_000_000
"""Pops in flight at a time: half a gigabyte of memory."""
_SPARE_ENTRIES = 1024


class InFlightBatch:
    """Some messages of one queue, in flight together."""

    __slots__ = ("due_ms", "group", "invisible_ms", "mask", "number", "pop_ms", "queue", "start", "withdrawn")

    def __init__(
        self, group: str, queue: Queue, start: int, *, pop_ms: int, invisible_ms: int, mask: int, number: int = -1
    ) -> None:
        self.group, self.queue, self.start = group, queue, start
        self.pop_ms, self.invisible_ms, self.due_ms = pop_ms, invisible_ms, pop_ms + invisible_ms
        self.mask = mask
        """Bit i: message `start + i` is in flight."""
        self.withdrawn = 0
        """The same of messages that are being stored elsewhere."""
        self.number = number
        """Where the log speaks of it."""

    @property
    def key(self) -> tuple[str, Queue, int, int]:
        return self.group, self.queue, self.start, self.pop_ms

    def offsets(self) -> list[int]:
        return [self.start + place for place in range(self.mask.bit_length()) if self.mask >> place & 1]

    def bit(self, offset: int) -> int:
        """Which bit stands for the offset; 0 if it is not, or no longer, in the lot."""
        place = offset - self.start
        return self.mask & (1 << place) if 0 <= place < self.mask.bit_length() else 0

    def first_unsettled(self) -> int | None:
        """The first message that is not settled."""
        unsettled = self.mask | self.withdrawn
        return self.start + (unsettled & -unsettled).bit_length() - 1 if unsettled else None


class InFlightTable:
    """All lots of a broker."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, Queue, int, int], InFlightBatch] = {}
        self._by_number: dict[int, InFlightBatch] = {}
        """In order: numbers only grow."""
        self._dues: list[tuple[int, int, InFlightBatch]] = []
        """A heap. Entries of lots that are gone, or due at another time by now, are passed over."""

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[InFlightBatch]:
        """In the order in which the log speaks of them."""
        return iter(list(self._by_number.values()))

    def add(self, batch: InFlightBatch) -> None:
        """In the place of the lot with the same handle, if there is one: the log says it once more."""
        assert batch.mask, "an empty lot is gone"
        assert batch.number >= 0, "the log speaks of it first"
        same = self._batches.get(batch.key)
        if same is not None and same.number != batch.number:
            del self._by_number[same.number]
        self._batches[batch.key] = self._by_number[batch.number] = batch
        heapq.heappush(self._dues, (batch.due_ms, batch.number, batch))
        if len(self._dues) > 2 * len(self._batches) + _SPARE_ENTRIES:
            self._dues = [(each.due_ms, each.number, each) for each in self._batches.values()]
            heapq.heapify(self._dues)

    def check_capacity(self, batches: Iterable[InFlightBatch], *, batches_max: int) -> None:
        """Make sure that these may be added. Of the same handle there is one lot: it gets what the other has."""
        if len(self._batches) >= batches_max:
            raise Busy(f"{len(self._batches)} pops are not acknowledged yet")
        for batch in batches:
            same = self._batches.get(batch.key)
            if same is not None:  # rewound, and popped again within the millisecond
                batch.mask |= same.mask

    def find(self, group: str, queue: Queue, start: int, pop_ms: int) -> InFlightBatch | None:
        return self._batches.get((group, queue, start, pop_ms))

    def find_by_number(self, number: int) -> InFlightBatch | None:
        return self._by_number.get(number)

    def settle(self, batch: InFlightBatch, mask: int) -> int:
        """Take messages out; which of them were still in."""
        settled = batch.mask & mask
        batch.mask ^= settled
        if not batch.mask and self._batches.get(batch.key) is batch:
            del self._batches[batch.key], self._by_number[batch.number]
        return settled

    def split_off(self, batch: InFlightBatch, offset: int, *, invisible_ms: int, now_ms: int) -> InFlightBatch:
        """A lot for one message of another, with a handle that nobody has. Neither added nor taken out yet."""
        assert batch.bit(offset), "only what is in flight can be moved"
        pop_ms = max(now_ms, batch.pop_ms + 1)
        while self.find(batch.group, batch.queue, offset, pop_ms) is not None:
            pop_ms += 1
        return InFlightBatch(batch.group, batch.queue, offset, pop_ms=pop_ms, invisible_ms=invisible_ms, mask=1)

    def withdraw(self, batch: InFlightBatch) -> int:
        """What is left of it is being stored elsewhere: which that is. Acknowledgements find nothing any more."""
        batch.withdrawn = self.settle(batch, batch.mask)
        return batch.withdrawn

    def restore(self, batch: InFlightBatch, mask: int) -> None:
        """It could not all be stored: these are in flight as before."""
        assert mask & ~batch.withdrawn == 0, "only what was withdrawn comes back"
        batch.withdrawn = 0
        if mask:
            batch.mask = mask
            self.add(batch)

    def renumber(self, batch: InFlightBatch, number: int) -> None:
        """The log speaks of it once more, there."""
        assert self._batches[batch.key] is batch
        del self._by_number[batch.number]
        batch.number = number
        self._by_number[number] = batch

    def postpone(self, batch: InFlightBatch, due_ms: int) -> None:
        """It could not be revived: try again then. Its handle stays good meanwhile."""
        if self._batches.get(batch.key) is batch:
            batch.due_ms = due_ms
            heapq.heappush(self._dues, (due_ms, batch.number, batch))

    def next_due_ms(self) -> int | None:
        dues = self._dues
        while dues and not self._is_current(dues[0]):
            heapq.heappop(dues)
        return dues[0][0] if dues else None

    def due(self, now_ms: int, count_max: int) -> list[InFlightBatch]:
        """Lots whose time is over. Each is given out once; whoever takes it settles or postpones it."""
        found: list[InFlightBatch] = []
        while len(found) < count_max and (due_ms := self.next_due_ms()) is not None and due_ms <= now_ms:
            found.append(heapq.heappop(self._dues)[2])
        return found

    def _is_current(self, entry: tuple[int, int, InFlightBatch]) -> bool:
        batch = entry[2]
        return entry[0] == batch.due_ms and self._batches.get(batch.key) is batch

    def oldest(self) -> int | None:
        """How far back the log must be read to know all lots."""
        return next(iter(self._by_number), None)

    def before(self, number: int) -> list[InFlightBatch]:
        """Lots that the log speaks of before that."""
        return [batch for _, batch in takewhile(lambda item: item[0] < number, self._by_number.items())]
