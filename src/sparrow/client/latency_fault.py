"""Which brokers a producer leaves alone for a while, because they answered slowly or not at all.

The idea, and the table, is that of RocketMQ 5's MQFaultStrategy: the slower the last answer, the longer the rest.
Every answer replaces what the one before said, so a broker that is quick again is back at once. Avoiding is only a
preference: while there are queues, one is chosen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from sparrow.model.queue import QueueRef

LatencyBands = Sequence[tuple[int, int]]
"""Pairs of a latency and the rest it earns, both in ms, rising."""

LATENCY_BANDS_MS: LatencyBands = ((550, 2_000), (1_800, 5_000), (3_000, 6_000), (5_000, 10_000), (15_000, 30_000))
"""As RocketMQ 5 has them. Its two bands below 550 ms earn no rest and are left out."""

ISOLATION_MS = 30_000
"""For a broker that did not answer, or answered with a failure of its own. RocketMQ 5 gives 10 s, 4.9 ten minutes."""

BROKERS_MAX = 1024
"""Brokers that can be avoided at a time."""


class LatencyFaultTolerance:
    def __init__(
        self,
        *,
        bands: LatencyBands = LATENCY_BANDS_MS,
        isolation_ms: int = ISOLATION_MS,
        brokers_max: int = BROKERS_MAX,
    ) -> None:
        self._latencies = [latency_ms for latency_ms, _ in bands]
        self._rests = [0, *(rest_ms for _, rest_ms in bands)]
        assert self._latencies == sorted(self._latencies)
        assert brokers_max > 0
        self._failed_rest_ms = isolation_ms
        self._brokers_max = brokers_max
        self._usable_at_ms: dict[str, int] = {}
        """Only brokers with a rest; all others are usable."""

    def record(self, broker: str, latency_ms: float, now_ms: int, *, failed: bool = False) -> None:
        """How long the broker took for an answer, or until it was given up."""
        rest_ms = self._failed_rest_ms if failed else self._rests[bisect_right(self._latencies, latency_ms)]
        self._usable_at_ms.pop(broker, None)
        if rest_ms:
            if len(self._usable_at_ms) >= self._brokers_max:
                # The one whose rest is over, or will be first.
                del self._usable_at_ms[min(self._usable_at_ms, key=self._usable_at_ms.__getitem__)]
            self._usable_at_ms[broker] = now_ms + rest_ms

    def is_usable(self, broker: str, now_ms: int) -> bool:
        return self._usable_at_ms.get(broker, now_ms) <= now_ms

    def select(
        self, queues: Sequence[QueueRef], start_index: int, now_ms: int, last_broker: str | None = None
    ) -> QueueRef:
        """The first good queue from `start_index` on, going round. `last_broker` is where the attempt before went.

        Best is a usable broker other than the last one, then the last one, then whoever is usable soonest.
        """
        count = len(queues)
        assert count, "the caller knows that a route without queues cannot be sent to"
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
