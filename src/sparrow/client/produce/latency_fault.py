"""Latency fault tolerance: which brokers a producer avoids for a while, because they responded slowly or not at all.

The table is that of RocketMQ 5's `MQFaultStrategy`: the slower the last response, the longer the broker is avoided.
Each response replaces the result of the one before, so a broker that is fast again is used at once. Avoidance is only a
preference: a queue is always selected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from sparrow.model.queue import QueueRef

LatencyBands = Sequence[tuple[int, int]]
"""Pairs of a latency and the time for which a broker that slow is avoided, both in ms, in ascending order."""

LATENCY_BANDS_MS: LatencyBands = ((550, 2_000), (1_800, 5_000), (3_000, 6_000), (5_000, 10_000), (15_000, 30_000))
"""RocketMQ 5's values, without the two bands below 550 ms, which avoid nothing."""

ISOLATION_MS = 30_000
"""How long a broker is avoided that did not respond, or failed. RocketMQ 5 uses 10 s, 4.9 ten minutes."""

BROKERS_MAX = 1024
"""Limit of brokers that are avoided at a time."""


class LatencyFaultTolerance:
    """The brokers that are avoided now."""

    def __init__(
        self,
        *,
        bands: LatencyBands = LATENCY_BANDS_MS,
        isolation_ms: int = ISOLATION_MS,
        brokers_max: int = BROKERS_MAX,
    ) -> None:
        self._latencies = [latency_ms for latency_ms, _ in bands]
        self._avoid_ms = [0, *(avoid_ms for _, avoid_ms in bands)]
        assert self._latencies == sorted(self._latencies)
        assert brokers_max > 0
        self._failed_avoid_ms = isolation_ms
        self._brokers_max = brokers_max
        self._usable_at_ms: dict[str, int] = {}
        """Only brokers that are avoided; all others are usable."""

    def record(self, broker: str, latency_ms: float, now_ms: int, *, failed: bool = False) -> None:
        """Record how long a broker took to respond, or to fail."""
        avoid_ms = self._failed_avoid_ms if failed else self._avoid_ms[bisect_right(self._latencies, latency_ms)]
        self._usable_at_ms.pop(broker, None)
        if avoid_ms:
            if len(self._usable_at_ms) >= self._brokers_max:
                # Forget the broker that becomes usable first.
                del self._usable_at_ms[min(self._usable_at_ms, key=self._usable_at_ms.__getitem__)]
            self._usable_at_ms[broker] = now_ms + avoid_ms

    def is_usable(self, broker: str, now_ms: int) -> bool:
        """Return whether the broker is not avoided now."""
        return self._usable_at_ms.get(broker, now_ms) <= now_ms

    def select(
        self, queues: Sequence[QueueRef], start_index: int, now_ms: int, last_broker: str | None = None
    ) -> QueueRef:
        """Return the best queue, searching from `start_index` on. `last_broker` is where the previous attempt went.

        Best is a usable broker other than the last one, then the last one, then the one that becomes usable first.
        """
        count = len(queues)
        assert count, "a route without queues cannot be sent to"
        for index in range(start_index, start_index + count):
            queue = queues[index % count]
            if queue.broker_name != last_broker and self.is_usable(queue.broker_name, now_ms):
                return queue
        return min(
            (queues[index % count] for index in range(start_index, start_index + count)),
            key=lambda queue: (
                max(now_ms, self._usable_at_ms.get(queue.broker_name, now_ms)),
                queue.broker_name == last_broker,
            ),
        )
