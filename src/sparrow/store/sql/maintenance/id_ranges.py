"""Ranges of ids: what is there, what is missing, what is known to be missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Ids = tuple[int, int]
"""From, and before."""


def missing(present: Iterable[int], ids: Ids) -> Iterator[Ids]:
    """What is not there of a range."""
    at = ids[0]
    for number in present:
        if number > at:
            yield at, number
        at = number + 1
    if at < ids[1]:
        yield at, ids[1]


def minus(ranges: Iterable[Ids], gaps: Iterable[Ids]) -> list[Ids]:
    """What is left of ranges without the gaps in them."""
    left = list(ranges)
    for start, end in gaps:
        left = [part for a, b in left for part in ((a, min(b, start)), (max(a, end), b)) if part[0] < part[1]]
    return left


def joined(holes: Iterable[Ids]) -> list[Ids]:
    """In order, with those that touch one another made one."""
    found: list[Ids] = []
    for start, end in sorted(holes):
        if found and found[-1][1] >= start:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
