"""Arithmetic on ranges of ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

IdRange = tuple[int, int]
"""The first id, and the first id after the range."""


def missing_ids(present: Iterable[int], ids: IdRange) -> Iterator[IdRange]:
    """Yield the ranges of ids that are missing from `ids`."""
    at = ids[0]
    for number in present:
        if number > at:
            yield at, number
        at = number + 1
    if at < ids[1]:
        yield at, ids[1]


def subtract(ranges: Iterable[IdRange], gaps: Iterable[IdRange]) -> list[IdRange]:
    """Return the ranges without the gaps."""
    left = list(ranges)
    for start, end in gaps:
        left = [part for a, b in left for part in ((a, min(b, start)), (max(a, end), b)) if part[0] < part[1]]
    return left


def merge_ranges(holes: Iterable[IdRange]) -> list[IdRange]:
    """Sort ranges and merge those that touch or overlap."""
    found: list[IdRange] = []
    for start, end in sorted(holes):
        if found and found[-1][1] >= start:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
