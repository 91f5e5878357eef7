"""What is due when: references to stored messages, by their time. Pure: no clock, no store.

1. Far ones lie in buckets of a minute, 16 bytes each; a bucket is sorted out only when its minute comes.
2. What is due comes out in the order of time, and of arrival where times are equal.
3. A reference is a number that means something to its owner only: a source and an offset packed together.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

BUCKET_MS = 60_000

Ints = npt.NDArray[np.int64]


class Timers:
    """Adding and taking cost a logarithm of what is due within the minute, whatever else is waiting."""

    def __init__(self) -> None:
        self._far: dict[int, tuple[array[int], array[int]]] = {}
        """Bucket number to times and references."""
        self._order: list[int] = []
        self._near: list[tuple[int, int, int]] = []
        """A heap of (time, arrival, reference): everything before `_near_until`."""
        self._near_until = 0
        self._arrivals = 0
        self.count = 0

    def add(self, due_ms: int, reference: int) -> None:
        self.count += 1
        if due_ms < self._near_until:
            self._arrivals += 1
            heapq.heappush(self._near, (due_ms, self._arrivals, reference))
            return
        number = due_ms // BUCKET_MS
        bucket = self._far.get(number)
        if bucket is None:
            bucket = self._far[number] = (array("q"), array("q"))
            heapq.heappush(self._order, number)
        bucket[0].append(due_ms)
        bucket[1].append(reference)

    def add_many(self, due_ms: Ints, references: Ints) -> None:
        """The same for what is read back at a start: sorted into buckets without a loop over timers."""
        is_near = due_ms < self._near_until
        for due, reference in zip(due_ms[is_near].tolist(), references[is_near].tolist(), strict=True):
            self.add(due, reference)
        due_ms, references = due_ms[~is_near], references[~is_near]
        order = np.argsort(due_ms, kind="stable")
        due_ms, references = due_ms[order], references[order]
        numbers = due_ms // BUCKET_MS
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        for times, some in zip(np.split(due_ms, cuts), np.split(references, cuts), strict=True):
            if len(times) == 0:
                continue
            number = int(times[0]) // BUCKET_MS
            bucket = self._far.get(number)
            if bucket is None:
                bucket = self._far[number] = (array("q"), array("q"))
                heapq.heappush(self._order, number)
            bucket[0].frombytes(times.astype(np.int64).tobytes())
            bucket[1].frombytes(some.astype(np.int64).tobytes())
            self.count += len(times)

    def next_due_ms(self) -> int | None:
        """When the first one is due; for one that is far, at least not later than that."""
        if self._near:
            return self._near[0][0]
        return self._order[0] * BUCKET_MS if self._order else None

    def take(self, now_ms: int, count_max: int) -> list[tuple[int, int]]:
        """What is due by now, as (time, reference), at most so many."""
        self._approach(now_ms)
        near = self._near
        taken: list[tuple[int, int]] = []
        while near and near[0][0] <= now_ms and len(taken) < count_max:
            due_ms, _, reference = heapq.heappop(near)
            taken.append((due_ms, reference))
        self.count -= len(taken)
        return taken

    def _approach(self, now_ms: int) -> None:
        """Sort out the buckets whose time has come."""
        while self._order and self._order[0] * BUCKET_MS <= now_ms:
            number = heapq.heappop(self._order)
            times, references = self._far.pop(number)
            first = self._arrivals + 1
            self._arrivals += len(times)
            self._near += zip(times, range(first, self._arrivals + 1), references, strict=True)
            heapq.heapify(self._near)
            self._near_until = max(self._near_until, (number + 1) * BUCKET_MS)

    def references(self) -> Ints:
        """Every reference that is waiting, in no order: what decides how far back a restart must read."""
        parts = [np.frombuffer(references, np.int64) for _, references in self._far.values()]
        parts.append(np.fromiter((reference for _, _, reference in self._near), np.int64, len(self._near)))
        return np.concatenate(parts)

    def drop(self, references: Iterable[int]) -> None:
        """Forget these, wherever they are. Takes a look at everything: for the few that are moved, not for the many."""
        gone = np.fromiter(references, np.int64)
        for number, (times, found) in list(self._far.items()):
            kept = ~np.isin(np.frombuffer(found, np.int64), gone)
            if not kept.all():
                remaining = array("q", np.frombuffer(times, np.int64)[kept].tobytes())
                self._far[number] = (remaining, array("q", np.frombuffer(found, np.int64)[kept].tobytes()))
        left = set(gone.tolist())
        self._near = [item for item in self._near if item[2] not in left]
        heapq.heapify(self._near)
        self.count = len(self._near) + sum(len(times) for times, _ in self._far.values())
