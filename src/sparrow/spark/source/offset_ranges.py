"""Offset ranges, and how they are divided into tasks. Pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparrow.wire.bodies import QueueRef


class OffsetRange(NamedTuple):
    """Messages of one queue: from `start` (inclusive) to `end` (exclusive)."""

    queue: QueueRef
    start: int
    end: int

    @property
    def rows(self) -> int:
        """Number of offsets in the range."""
        return self.end - self.start


TaskRanges = tuple[OffsetRange, ...]
"""The ranges that one task reads, in this order."""


def apportion(backlogs: Mapping[QueueRef, float], limit: float) -> dict[QueueRef, int]:
    """Return how many rows of each backlog fit the limit, in proportion to its size.

    Every queue with a backlog gets at least 1, so that no queue starves. The total may exceed the limit by one for each
    queue.
    """
    total = sum(backlogs.values())
    if total <= limit:
        return {queue: int(backlog) for queue, backlog in backlogs.items()}
    shares = {queue: max(1, int(backlog * limit / total)) for queue, backlog in backlogs.items() if backlog > 0}
    left = int(limit) - sum(shares.values())
    for queue in sorted(shares):  # the remainder of rounding down
        if left <= 0:
            break
        extra = min(left, int(backlogs[queue]) - shares[queue], 1)
        shares[queue] += extra
        left -= extra
    return shares


def plan_tasks(
    ranges: Sequence[OffsetRange], *, partitions_min: int | None, range_rows_max: int, task_rows_target: int
) -> list[TaskRanges]:
    """Split long ranges and join short ones. The result depends on the arguments only."""
    full = [each for each in sorted(ranges) if each.rows > 0]
    total = sum(each.rows for each in full)
    cut: list[OffsetRange] = []
    for each in full:
        parts = -(-each.rows // range_rows_max) if range_rows_max else 1
        if partitions_min is not None:
            parts = max(parts, round(each.rows / total * partitions_min))
        cut += _cut(each, parts)
    if partitions_min is not None:
        missing = partitions_min - len(cut)
        while missing > 0 and (longest := max(cut, key=lambda each: each.rows, default=None)) and longest.rows > 1:
            at = cut.index(longest)
            cut[at : at + 1] = _cut(longest, 2)
            missing -= 1
    return _joined(cut, task_rows_target, joins_max=len(cut) - (partitions_min or 0))


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    parts = max(1, min(parts, whole.rows))
    edges = [whole.start + whole.rows * number // parts for number in range(parts + 1)]
    return [OffsetRange(whole.queue, start, end) for start, end in itertools.pairwise(edges)]


def _joined(ranges: Sequence[OffsetRange], rows_max: int, *, joins_max: int) -> list[TaskRanges]:
    joined: list[TaskRanges] = []
    rows = 0
    for each in ranges:
        if joined and rows + each.rows <= rows_max and joins_max > 0:
            joined[-1] += (each,)
            rows += each.rows
            joins_max -= 1
        else:
            joined.append((each,))
            rows = each.rows
    return joined
