"""A hierarchical timer wheel: references to stored messages by delivery time. Pure: no clock, no store.

1. Timers wait in buckets of a day, an hour, a minute or a second, 16 bytes each. A bucket is spread over narrower ones
   when its time comes, and is sorted only in its last second.
2. Timers expire in the order of time, and of arrival where times are equal.
3. A reference is an opaque number: its owner packs a source and an offset into it.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

BUCKET_WIDTHS_MS = (1_000, 60_000, 3_600_000, 86_400_000)
"""Each is a multiple of the one before. A million timers over ten years make some thousand buckets."""

Ints = npt.NDArray[np.int64]
TimerArrays = tuple[Ints, Ints]
"""Delivery times and references, as two arrays."""

_EMPTY: Ints = np.empty(0, np.int64)


class _Tier:
    """Buckets of one width, by number. A bucket alternates times and references."""

    __slots__ = ("buckets", "order", "until", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.buckets: dict[int, array[int]] = {}
        self.order: list[int] = []
        """A heap of the bucket numbers."""
        self.until = 0
        """Timers before this time have moved to narrower buckets."""

    def bucket(self, number: int) -> array[int]:
        found = self.buckets.get(number)
        if found is None:
            found = self.buckets[number] = array("q")
            heapq.heappush(self.order, number)
        return found

    def spread(self, due_ms: Ints, references: Ints) -> None:
        """Put each timer into its bucket, in the given order."""
        numbers = due_ms // self.width
        steps = numbers - numbers.min()
        if steps.max() < 1 << 16:
            steps = steps.astype(np.uint16)  # NumPy sorts short integers by counting
        order = np.argsort(steps, kind="stable")
        numbers = numbers[order]
        pairs = np.stack((due_ms[order], references[order]), axis=1)
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
        for number, some in zip(numbers[starts].tolist(), np.split(pairs, starts[1:]), strict=True):
            self.bucket(number).frombytes(some.tobytes())

    def take(self, now_ms: int) -> TimerArrays | None:
        """Remove and return the first bucket, if its time has come."""
        if not self.order or self.order[0] * self.width > now_ms:
            return None
        return _pair(self.buckets.pop(heapq.heappop(self.order)))


class TimerWheel:
    """Timers by delivery time. Adding and taking cost the same, however many are waiting."""

    def __init__(self) -> None:
        self._tiers = [_Tier(width) for width in BUCKET_WIDTHS_MS]
        self._ready: TimerArrays = (_EMPTY, _EMPTY)
        """The sorted content of buckets whose second has come; taken from `_at` on."""
        self._at = 0
        self._late: list[tuple[int, int, int]] = []
        """A heap of (time, arrival, reference): timers that were added after their second had come."""
        self._arrivals = 0
        self.count = 0

    def add(self, due_ms: int, reference: int) -> None:
        self.count += 1
        if due_ms < self._tiers[0].until:
            self._arrivals += 1
            heapq.heappush(self._late, (due_ms, self._arrivals, reference))
            return
        tier = self._tiers[0]
        for wider in self._tiers[1:]:
            if due_ms < wider.until:
                break
            tier = wider
        bucket = tier.bucket(due_ms // tier.width)
        bucket.append(due_ms)
        bucket.append(reference)

    def add_many(self, due_ms: Ints, references: Ints) -> None:
        """Add the timers that are loaded at startup, without a loop over distant ones."""
        tiers = np.searchsorted(np.array([tier.until for tier in self._tiers]), due_ms, side="right")
        for number in np.unique(tiers).tolist():
            times, some = due_ms[tiers == number], references[tiers == number]
            if number == 0:
                for due, reference in zip(times.tolist(), some.tolist(), strict=True):
                    self.add(due, reference)
            else:
                self._tiers[number - 1].spread(times, some)
                self.count += len(times)

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return when the first timer is due. A time after now may be the start of the bucket that contains it."""
        self._approach(now_ms)
        times = self._ready[0]
        near = [int(times[self._at])] if self._at < len(times) else []
        if self._late:
            near.append(self._late[0][0])
        if near:
            return min(near)
        return min((tier.order[0] * tier.width for tier in self._tiers if tier.order), default=None)

    def take(self, now_ms: int, count_max: int) -> TimerArrays:
        """Remove and return up to `count_max` timers that are due."""
        self._approach(now_ms)
        at = self._at
        times, references = self._ready
        stop = min(at + count_max, int(np.searchsorted(times, now_ms, side="right")))
        due, taken = times[at:stop], references[at:stop]
        if self._late and self._late[0][0] <= now_ms:
            due, taken = self._with_late(due, taken, now_ms, count_max)
        else:
            self._at = stop
        if self._at == len(times):
            self._ready, self._at = (_EMPTY, _EMPTY), 0
        self.count -= len(taken)
        return due, taken

    def _with_late(self, due: Ints, taken: Ints, now_ms: int, count_max: int) -> TimerArrays:
        """Merge ready and late timers, and put back what exceeds the limit."""
        late: list[tuple[int, int, int]] = []
        while self._late and self._late[0][0] <= now_ms and len(late) < count_max:
            late.append(heapq.heappop(self._late))
        both = np.concatenate((due, np.array([item[0] for item in late], np.int64)))
        # Of equal times, timers from a bucket come first: the others were added later.
        order = np.argsort(both, kind="stable")[:count_max]
        ready = int(np.count_nonzero(order < len(due)))
        for item in late[len(order) - ready :]:
            heapq.heappush(self._late, item)
        self._at += ready
        return both[order], np.concatenate((taken, np.array([item[2] for item in late], np.int64)))[order]

    def restore(self, due_ms: Ints, references: Ints) -> None:
        """Put back timers that were taken and could not be delivered. They come out first again."""
        times, others = self._ready
        self._ready = np.concatenate((due_ms, times[self._at :])), np.concatenate((references, others[self._at :]))
        self._at = 0
        self.count += len(due_ms)

    def _approach(self, now_ms: int) -> None:
        """Open the buckets whose time has come, the widest first."""
        for above in range(len(self._tiers) - 1, 0, -1):
            tier, narrower = self._tiers[above], self._tiers[above - 1]
            while (found := tier.take(now_ms)) is not None:
                narrower.spread(*found)
            tier.until = max(tier.until, (now_ms // tier.width + 1) * tier.width)
        seconds = self._tiers[0]
        while (found := seconds.take(now_ms)) is not None:
            due, references = found
            order = np.argsort(due, kind="stable")
            times, others = self._ready
            self._ready = (
                np.concatenate((times[self._at :], due[order])),
                np.concatenate((others[self._at :], references[order])),
            )
            self._at = 0
        seconds.until = max(seconds.until, (now_ms // seconds.width + 1) * seconds.width)

    def timers_after(self, due_ms: int, reference: int, count_min: int) -> TimerArrays:
        """Return timers after a time and a reference, in no order: the first `count_min`, and perhaps later ones.

        Whole buckets are copied, so that sorting them can be left to a thread.
        """
        found: list[TimerArrays] = []
        count = 0
        for times, references in self._buckets_from(due_ms):
            is_after = (times > due_ms) | ((times == due_ms) & (references > reference))
            found.append((times[is_after], references[is_after]))
            count += len(found[-1][0])
            if count >= count_min:
                break
        return _joined(found)

    def _buckets_from(self, due_ms: int) -> Iterator[TimerArrays]:
        """Yield the timers in groups, each due after the one before, without those that end before a time."""
        yield _joined([(self._ready[0][self._at :], self._ready[1][self._at :]), self._late_timers()])
        for tier in self._tiers:
            for number in sorted(tier.buckets):
                if (number + 1) * tier.width > due_ms:
                    yield _pair(tier.buckets[number])

    def _late_timers(self) -> TimerArrays:
        late = np.array([(due, reference) for due, _, reference in self._late], np.int64).reshape(-1, 2)
        return late[:, 0], late[:, 1]

    def all_timers(self) -> TimerArrays:
        """Return all timers, in no order."""
        pairs = [_pair(bucket) for tier in self._tiers for bucket in tier.buckets.values()]
        pairs.append((self._ready[0][self._at :], self._ready[1][self._at :]))
        pairs.append(self._late_timers())
        return _joined(pairs)

    def drop(self, references: Ints) -> None:
        """Remove these references. Scans everything; meant for many at a time."""
        dropped = np.sort(references)

        def is_kept(found: Ints) -> npt.NDArray[np.bool_]:
            positions = np.minimum(np.searchsorted(dropped, found), len(dropped) - 1)
            kept: npt.NDArray[np.bool_] = dropped[positions] != found
            return kept

        if not len(dropped):
            return
        for tier in self._tiers:
            for number, bucket in list(tier.buckets.items()):
                pairs = np.frombuffer(bucket, np.int64).reshape(-1, 2)
                kept = is_kept(pairs[:, 1])
                if kept.any():
                    tier.buckets[number] = bucket if kept.all() else array("q", pairs[kept].tobytes())
                else:
                    del tier.buckets[number]
            tier.order = sorted(tier.buckets)  # a sorted list is a heap
        times, others = self._ready[0][self._at :], self._ready[1][self._at :]
        kept = is_kept(others)
        self._ready, self._at = (times[kept], others[kept]), 0
        dropped_set = set(dropped.tolist())
        self._late = [item for item in self._late if item[2] not in dropped_set]
        heapq.heapify(self._late)
        in_buckets = sum(len(bucket) // 2 for tier in self._tiers for bucket in tier.buckets.values())
        self.count = in_buckets + len(self._ready[0]) + len(self._late)


def _joined(parts: list[TimerArrays]) -> TimerArrays:
    return np.concatenate([due for due, _ in parts]), np.concatenate([references for _, references in parts])


def _pair(bucket: array[int]) -> TimerArrays:
    pairs = np.frombuffer(bucket, np.int64).reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy()
