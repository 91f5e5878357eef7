"""FIFO queues in flight: a group gets no more of a queue before its batch is acknowledged or expired. Pure.

1. The group's offset moves with acknowledgements only: to the first message without one.
2. When the invisible time of all remaining messages has expired, the next pop gets them again, with their counts.
3. A pop that repeats the attempt id of the last one (whose answer was lost) gets the same messages at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from sparrow.model.queue import Queue

_SPARE_ENTRIES = 1024


class FifoBatch:
    """The last batch of one queue."""

    __slots__ = ("attempt", "counts", "dues", "group", "next_offset", "number", "pop_ms", "queue")

    def __init__(self, group: str, queue: Queue, *, pop_ms: int, next_offset: int, attempt: str | None) -> None:
        self.group, self.queue, self.pop_ms = group, queue, pop_ms
        self.next_offset, self.attempt = next_offset, attempt
        self.dues: dict[int, int] = {}
        """Unacknowledged offsets, in order, and until when each is invisible."""
        self.counts: dict[int, int] = {}
        """How often each of them was popped before."""
        self.number = -1
        """The offset of its newest entry in the journal."""

    @property
    def committed(self) -> int:
        """The offset at which the group would continue if all remaining messages were redelivered."""
        return min(self.dues, default=self.next_offset)


class FifoTable:
    """All FIFO queues with a batch in flight."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, Queue], FifoBatch] = {}
        self._ends: list[tuple[int, str, Queue]] = []
        """A heap of the times at which queues may open again. Stale entries do no harm."""

    def __iter__(self) -> Iterator[FifoBatch]:
        return iter(list(self._batches.values()))

    def of(self, group: str, queue: Queue) -> FifoBatch | None:
        return self._batches.get((group, queue))

    def is_blocked(self, group: str, queue: Queue, now_ms: int, attempt: str | None = None) -> bool:
        fifo_batch = self._batches.get((group, queue))
        if fifo_batch is None or (attempt is not None and attempt == fifo_batch.attempt):
            return False
        return any(due_ms > now_ms for due_ms in fifo_batch.dues.values())

    def take(
        self,
        group: str,
        queue: Queue,
        offsets: Sequence[int],
        *,
        next_offset: int,
        pop_ms: int,
        invisible_ms: int,
        attempt: str | None,
    ) -> FifoBatch:
        """Put messages in flight. `next_offset` is the position after them."""
        before = self._batches.get((group, queue))
        fifo_batch = FifoBatch(group, queue, pop_ms=pop_ms, next_offset=next_offset, attempt=attempt)
        fifo_batch.dues = dict.fromkeys(offsets, pop_ms + invisible_ms)
        is_repeated = before is not None and attempt is not None and attempt == before.attempt
        earlier = before.counts if before is not None else {}
        fifo_batch.counts = {
            offset: earlier[offset] + (not is_repeated) if offset in earlier else 0 for offset in offsets
        }
        self.put(fifo_batch)
        return fifo_batch

    def put(self, fifo_batch: FifoBatch) -> None:
        """Store a batch, changed or loaded from the journal. A batch without messages is removed."""
        if not fifo_batch.dues:
            self._batches.pop((fifo_batch.group, fifo_batch.queue), None)
            return
        self._batches[fifo_batch.group, fifo_batch.queue] = fifo_batch
        heapq.heappush(self._ends, (max(fifo_batch.dues.values()), fifo_batch.group, fifo_batch.queue))
        if len(self._ends) > 2 * len(self._batches) + _SPARE_ENTRIES:
            self._ends = [(max(each.dues.values()), each.group, each.queue) for each in self._batches.values()]
            heapq.heapify(self._ends)

    def ack(self, fifo_batch: FifoBatch, offset: int) -> bool:
        """Acknowledge a message. Return whether it was in flight."""
        if fifo_batch.dues.pop(offset, None) is None:
            return False
        self.put(fifo_batch)
        return True

    def change(self, fifo_batch: FifoBatch, offset: int, due_ms: int) -> bool:
        if offset not in fifo_batch.dues:
            return False
        fifo_batch.dues[offset] = due_ms
        self.put(fifo_batch)
        return True

    def drop(self, fifo_batch: FifoBatch) -> None:
        self._batches.pop((fifo_batch.group, fifo_batch.queue), None)

    def next_reopen_ms(self) -> int | None:
        return self._ends[0][0] if self._ends else None

    def reopened_queues(self, now_ms: int) -> list[Queue]:
        """Return queues that may be open now and were not before."""
        found: list[Queue] = []
        while self._ends and self._ends[0][0] <= now_ms:
            found.append(heapq.heappop(self._ends)[2])
        return found

    def oldest(self) -> int | None:
        return min((fifo_batch.number for fifo_batch in self._batches.values()), default=None)
