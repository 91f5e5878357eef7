"""Percentiles of the time that sends take, from the histograms that brokers report.

A broker reports counts since its start. The window keeps the differences of the last samples, added up over all
brokers; a broker that has started again begins at zero.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping

from sparrow.operations.clusters import BrokerState

WINDOW_SAMPLES = 6
"""A minute at the usual interval."""


class LatencyWindow:
    """The sends of the last samples."""

    def __init__(self, samples: int = WINDOW_SAMPLES) -> None:
        self._parts: deque[Counter[float]] = deque(maxlen=samples)
        self._known: dict[str, Mapping[float, int]] = {}

    def add(self, brokers: Iterable[BrokerState]) -> None:
        """Add a sample: what each broker has counted since the sample before."""
        part: Counter[float] = Counter()
        known: dict[str, Mapping[float, int]] = {}
        for broker in brokers:
            counts = broker.send_latency
            if not counts:
                continue
            known[broker.address] = counts
            before = self._known.get(broker.address)
            if before is None:
                continue  # counts of hours would hide the last minute
            is_restarted = any(counts.get(bound, 0) < count for bound, count in before.items())
            for bound, count in counts.items():
                part[bound] += count if is_restarted else count - before.get(bound, 0)
        self._known = known
        self._parts.append(part)

    def percentile(self, share: float) -> float | None:
        """Return the time in ms within which this share of the sends was answered; None without sends.

        Within a bucket, sends are taken as spread evenly, as Prometheus does.
        """
        total: Counter[float] = Counter()
        for part in self._parts:
            total.update(part)
        wanted = share * sum(total.values())
        if not wanted:
            return None
        passed, below = 0, 0.0
        for bound in sorted(total):
            if passed + total[bound] >= wanted:
                return below if math.isinf(bound) else below + (bound - below) * (wanted - passed) / total[bound]
            passed, below = passed + total[bound], bound
        return below
