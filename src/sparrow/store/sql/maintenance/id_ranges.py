"""Ranges of ids: what is there, what is missing, what is known to be missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

IdRange = tuple[int, int]
"""From, and before."""


def missing_ids(present: Iterable[int], ids: IdRange) -> Iterator[IdRange]:
    """What is not there of a range."""
    at = ids[0]
    for number in present:
        if number > at:
            yield at, number
        at = number + 1
    if at < ids[1]:
        yield at, ids[1]


def subtract(ranges: Iterable[IdRange], gaps: Iterable[IdRange]) -> list[IdRange]:
    """What is left of ranges without the gaps in them."""
    left = list(ranges)
    for start, end in gaps:
        left = [part for a, b in left for part in ((a, min(b, start)), (max(a, end), b)) if part[0] < part[1]]
    return left


def merge_ranges(holes: Iterable[IdRange]) -> list[IdRange]:
    """In order, with those that touch one another made one."""
    found: list[IdRange] = []
    for start, end in sorted(holes):
        if found and found[-1][1] >= start:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
