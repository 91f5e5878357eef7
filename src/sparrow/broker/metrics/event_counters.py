"""Counters of what is not in `broker.counters`: kinds and sizes of sends, dead letters, transactions, creations.

A send of a small normal message is not counted here: it is what `TrafficCounters` has and this table has not.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sparrow.model.protocol import HALF_TOPIC, PROPERTY_SHARDING_KEY, SCHEDULE_TOPIC, TIMER_TOPIC
from sparrow.telemetry.histogram import DurationHistogram
from sparrow.telemetry.metrics import rocketmq as metrics

NORMAL, FIFO, DELAY, TRANSACTION = "normal", "fifo", "delay", "transaction"
COMMITTED = "committed"
"""A committed half message: `TrafficCounters` counts it when it becomes visible; its sender sent it once."""
SMALL_BYTES = int(metrics.MESSAGE_SIZE.bounds[0])
"""Sends up to this size are in the first bucket, and only counted by `TrafficCounters`."""
_KIND_BY_TOPIC = {SCHEDULE_TOPIC: DELAY, TIMER_TOPIC: DELAY, HALF_TOPIC: TRANSACTION}

TopicKind = tuple[str, str]
_ByStatus = dict[str, DurationHistogram]


class SendKindCounts:
    """The sends of one kind to one topic."""

    __slots__ = ("bytes", "calls", "messages", "sizes")

    def __init__(self) -> None:
        self.messages = self.bytes = self.calls = 0
        self.sizes = [0] * (len(metrics.MESSAGE_SIZE.bounds) + 1)
        """Sends in each bucket; while they are counted, the first one stays 0."""

    def add(self, other: SendKindCounts) -> None:
        """Add the counts of another topic."""
        self.messages += other.messages
        self.bytes += other.bytes
        self.calls += other.calls
        self.sizes = [a + b for a, b in zip(self.sizes, other.sizes, strict=True)]


class EventCounters:
    """The counters of one broker. Used on its event loop only."""

    def __init__(self) -> None:
        self.sends: dict[TopicKind, SendKindCounts] = {}
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        """By group and topic."""
        self.committed: Counter[str] = Counter()
        self.rolled_back: Counter[str] = Counter()
        self.finish_ms: dict[str, DurationHistogram] = {}
        """How long transactions took, by topic."""
        self.topic_creations: _ByStatus = {}
        self.group_creations: _ByStatus = {}
        """Times to create topics and groups, by status."""

    def count_special_send(
        self, topic: str, stored_topic: str, properties: str, *, count: int, size_bytes: int, calls: int = 1
    ) -> None:
        """Count a send that is large, delayed, transactional or ordered; `stored_topic` is where it was appended."""
        kind = _KIND_BY_TOPIC.get(stored_topic) or (FIFO if PROPERTY_SHARDING_KEY in properties else NORMAL)
        self._count_send(topic, kind, count, size_bytes, calls)

    def count_commit(self, topic: str, duration_ms: float) -> None:
        """Count a half message that became visible."""
        self._count_send(topic, COMMITTED, 1, 0, 1)
        self.committed[topic] += 1
        self._finish(topic, duration_ms)

    def count_rollback(self, topic: str, duration_ms: float) -> None:
        """Count a half message that was rolled back."""
        self.rolled_back[topic] += 1
        self._finish(topic, duration_ms)

    def _finish(self, topic: str, duration_ms: float) -> None:
        self.finish_ms.setdefault(topic, DurationHistogram(metrics.FINISH_BOUNDS)).add(duration_ms)

    def count_dead_letter(self, group: str, topic: str) -> None:
        self.dead_letters[group, topic] += 1

    @contextmanager
    def topic_creation(self) -> Iterator[None]:
        """Measure the block, which creates or changes a topic."""
        with _measured(self.topic_creations):
            yield

    @contextmanager
    def group_creation(self) -> Iterator[None]:
        """Measure the block, which creates or changes a group."""
        with _measured(self.group_creations):
            yield

    def forget_topic(self, topic: str) -> None:
        """Drop what is kept of a deleted topic."""
        for kind in (NORMAL, FIFO, DELAY, TRANSACTION, COMMITTED):
            self.sends.pop((topic, kind), None)
        for by_topic in (self.committed, self.rolled_back, self.finish_ms):
            by_topic.pop(topic, None)
        for key in [key for key in self.dead_letters if key[1] == topic]:
            del self.dead_letters[key]

    def forget_group(self, group: str) -> None:
        """Drop what is kept of a deleted group."""
        for key in [key for key in self.dead_letters if key[0] == group]:
            del self.dead_letters[key]

    def _count_send(self, topic: str, kind: str, count: int, size_bytes: int, calls: int) -> None:
        counts = self.sends.get((topic, kind))
        if counts is None:
            counts = self.sends[topic, kind] = SendKindCounts()
        counts.messages += count
        counts.bytes += size_bytes
        counts.calls += calls
        if size_bytes > SMALL_BYTES:
            counts.sizes[bisect_left(metrics.MESSAGE_SIZE.bounds, size_bytes)] += calls


@contextmanager
def _measured(table: _ByStatus) -> Iterator[None]:
    began_s, status = time.perf_counter(), "failure"
    try:
        yield
        status = "success"
    finally:
        histogram = table.setdefault(status, DurationHistogram(metrics.TOPIC_CREATE_TIME.bounds))
        histogram.add((time.perf_counter() - began_s) * 1000)
