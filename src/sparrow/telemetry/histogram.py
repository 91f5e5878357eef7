"""Histograms of durations: an addition to a list for each observation."""

from __future__ import annotations

from bisect import bisect_left

from sparrow.telemetry.metric import HistogramValue

SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class DurationHistogram:
    """A histogram of durations, in the unit of its bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, duration: float, count: int = 1) -> None:
        """Count one observation, or several that took the same time."""
        self.counts[bisect_left(self.bounds, duration)] += count
        self.sum += duration * count

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)

    @property
    def value(self) -> HistogramValue:
        """A copy: other threads may go on adding, and the buckets must add up to the count."""
        return HistogramValue(list(self.counts), self.sum)
