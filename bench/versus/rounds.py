"""Interleaved rounds (A, B, A, B, …), and the median and spread of what they measured. No I/O.

A machine gets slower and faster during a run. Interleaved rounds let it happen to every side alike, and a ratio is
taken of two measurements that followed each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Figures = Mapping[str, float]
"""The values of one round, by the name of the figure."""
Work = Callable[[], Figures]
"""One round of a work load at one side."""


class Spread(NamedTuple):
    """The median of a figure, with its lowest and highest value."""

    median: float
    lowest: float
    highest: float


def interleave(sides: Mapping[str, Work], *, rounds: int, warm_ups: int = 0) -> dict[str, list[Figures]]:
    """Run every side once in each round, in the given order; return the figures of the rounds after the warm-ups."""
    if rounds < 1 or warm_ups < 0:
        raise ValueError(f"rounds = {rounds} and warm_ups = {warm_ups} are impossible: 1 round is needed, or more")
    measured: dict[str, list[Figures]] = {name: [] for name in sides}
    for number in range(warm_ups + rounds):
        for name, work in sides.items():
            figures = work()
            if number >= warm_ups:
                measured[name].append(figures)
    return measured


def summarize(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def compare(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return ours / theirs: the ratio within each round, then the median and spread of these ratios."""
    return summarize([left / right for left, right in zip(ours, theirs, strict=True)])
