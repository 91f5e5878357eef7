"""Traffic counters: messages sent and pulled, totals and rates. Counting costs a few additions.

1. Totals never decrease while the broker runs, even if a topic or group is forgotten.
2. For each topic and group, the count of each time bucket is kept. An idle one costs a comparison a tick, and is
   dropped after a day without messages.
3. Time is an argument. Call `tick` every `SAMPLE_INTERVAL_MS`, or more often; what was counted since the last call is
   attributed to the time of the next.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from operator import add, sub
from typing import Generic, NamedTuple, TypeVar

SAMPLE_INTERVAL_MS = 10_000
RATE_WINDOWS_MS = (10_000, 60_000, 600_000)
"""RocketMQ's tools show three rates side by side."""

_BUCKETS = ((10_000, 6), (600_000, 6), (3_600_000, 24))
"""Length and number of the buckets of a minute, an hour and a day."""
_DAY_MS = 86_400_000

Tally = list[int]
"""Messages, bytes and calls. A plain list, because adding to its items is fastest."""
Rates = tuple[float, ...]
"""Per second, one for each of `RATE_WINDOWS_MS`."""
K = TypeVar("K")


class Totals(NamedTuple):
    """Counts since the broker started."""

    messages_sent: int = 0
    bytes_sent: int = 0
    sends: int = 0
    messages_pulled: int = 0
    bytes_pulled: int = 0
    pulls_found: int = 0
    pulls_missed: int = 0


class MidnightTotals(NamedTuple):
    """Totals at the last two midnights, local time; zeros for a midnight before the broker started."""

    yesterday: Totals = Totals()
    today: Totals = Totals()


class WindowCount(NamedTuple):
    """The count of a time window."""

    sum: int
    calls: int
    seconds: float

    @property
    def rate(self) -> float:
        """The rate per second."""
        return self.sum / self.seconds

    @property
    def average(self) -> float:
        """The average per call."""
        return self.sum / self.calls if self.calls else 0.0


class WindowCounts(NamedTuple):
    minute: WindowCount
    hour: WindowCount
    day: WindowCount


class Traffic(NamedTuple):
    """The traffic of one topic, or of one group on one topic."""

    messages: WindowCounts
    bytes: WindowCounts


class TrafficCounters:
    """The counters of one broker. Used on its event loop only."""

    def __init__(self) -> None:
        self._by_topic: _Table[str] = _Table()
        self._by_group: _Table[tuple[str, str]] = _Table()
        self._back_by_group: _Table[tuple[str, str]] = _Table()
        self._sent, self._pulled = self._by_topic.tallies, self._by_group.tallies
        self._missed = 0
        self._samples: deque[tuple[int, Totals]] = deque(maxlen=RATE_WINDOWS_MS[-1] // SAMPLE_INTERVAL_MS + 1)
        self._day: tuple[int, int] | None = None
        self.midnight_totals = MidnightTotals()

    # -- counting -----------------------------------------------------------------------------------------------------

    def count_send(self, topic: str, count: int, size_bytes: int) -> None:
        """Count one send of `count` messages to a topic."""
        tally = self._sent.get(topic)
        if tally is None:
            tally = self._sent[topic] = [0, 0, 0]
        tally[0] += count
        tally[1] += size_bytes
        tally[2] += 1

    def count_pull(self, group: str, topic: str, count: int, size_bytes: int) -> None:
        """Count one pull that returned `count` messages."""
        tally = self._pulled.get((topic, group))
        if tally is None:
            tally = self._pulled[topic, group] = [0, 0, 0]
        tally[0] += count
        tally[1] += size_bytes
        tally[2] += 1

    def count_empty_pull(self, group: str, topic: str) -> None:
        """Count one pull that returned nothing. Only the total is kept."""
        self._missed += 1

    def count_send_back(self, group: str, topic: str, count: int = 1) -> None:
        """Count messages that a consumer sent back for a later retry."""
        tally = self._back_by_group.tallies.setdefault((topic, group), [0, 0, 0])
        tally[0] += count
        tally[2] += 1

    # -- time, and removal of topics and groups -----------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Record what was counted since the last tick."""
        self._sample(now_ms)
        for table in (self._by_topic, self._by_group, self._back_by_group):
            table.tick(now_ms)

    def _sample(self, now_ms: int) -> None:
        day = time.localtime(now_ms / 1000)
        if (day.tm_year, day.tm_yday) != self._day:
            if self._day is not None:
                self.midnight_totals = MidnightTotals(self.midnight_totals.today, self.totals)
            self._day = day.tm_year, day.tm_yday
        if self._samples and now_ms < self._samples[-1][0]:
            self._samples.clear()  # the clock was set back: start again
        if not self._samples or now_ms - self._samples[-1][0] >= SAMPLE_INTERVAL_MS:
            self._samples.append((now_ms, self.totals))

    def forget_topic(self, topic: str) -> None:
        self._by_topic.forget(lambda key: key == topic)
        self._by_group.forget(lambda key: key[0] == topic)
        self._back_by_group.forget(lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        self._by_group.forget(lambda key: key[1] == group)
        self._back_by_group.forget(lambda key: key[1] == group)

    # -- queries ------------------------------------------------------------------------------------------------------

    @property
    def totals(self) -> Totals:
        sent, sent_bytes, sends = self._by_topic.total()
        pulled, pulled_bytes, found = self._by_group.total()
        return Totals(sent, sent_bytes, sends, pulled, pulled_bytes, found, self._missed)

    def rates(self, now_ms: int, of: Callable[[Totals], int]) -> Rates:
        """Return the growth rates of a total: `counters.rates(now_ms, lambda totals: totals.sends)`."""
        self._sample(now_ms)
        current = of(self.totals)
        return tuple(self._rate(now_ms, window_ms, current, of) for window_ms in RATE_WINDOWS_MS)

    def _rate(self, now_ms: int, window_ms: int, current: int, of: Callable[[Totals], int]) -> float:
        """Return the rate over the window.

        The window is a little longer if no sample is exact, and shorter while the broker has run for less.
        """
        begun_ms, begun = self._samples[0]
        for sampled_ms, totals in self._samples:
            if sampled_ms <= now_ms - window_ms:
                begun_ms, begun = sampled_ms, totals
        passed_ms = now_ms - begun_ms
        return (current - of(begun)) * 1000 / passed_ms if passed_ms > 0 else 0.0

    def sent_by_topic(self) -> list[tuple[str, Tally]]:
        """Return messages, bytes and calls of the sends to each topic that had some in the last day."""
        return list(self._sent.items())

    def pulled_by_group(self) -> list[tuple[tuple[str, str], Tally]]:
        """Return messages, bytes and calls of the pulls of each topic and group."""
        return list(self._pulled.items())

    def sent_back_by_group(self) -> list[tuple[tuple[str, str], Tally]]:
        """Return the messages that each group sent back, by topic and group."""
        return list(self._back_by_group.tallies.items())

    def topic_traffic(self, topic: str, now_ms: int) -> Traffic | None:
        """Return the traffic of a topic; None if it had no message for a day."""
        return self._by_topic.traffic(topic, now_ms)

    def group_traffic(self, group: str, topic: str, now_ms: int) -> Traffic | None:
        return self._by_group.traffic((topic, group), now_ms)

    def send_back_traffic(self, group: str, topic: str, now_ms: int) -> Traffic | None:
        return self._back_by_group.traffic((topic, group), now_ms)


class _Table(Generic[K]):
    """Tallies by key, and their histories."""

    def __init__(self) -> None:
        self.tallies: dict[K, Tally] = {}
        self._histories: dict[K, _History] = {}
        self._forgotten: Tally = [0, 0, 0]
        self._ticked_ms: int | None = None

    def total(self) -> Tally:
        return [sum(column) for column in zip(self._forgotten, *self.tallies.values(), strict=True)]

    def tick(self, now_ms: int) -> None:
        for key, tally in self.tallies.items():
            self._update(key, tally, now_ms)
        self._ticked_ms = now_ms
        self.forget(lambda key: now_ms - self._histories[key].changed_ms >= _DAY_MS)

    def traffic(self, key: K, now_ms: int) -> Traffic | None:
        tally = self.tallies.get(key)
        return self._update(key, tally, now_ms).traffic(now_ms) if tally is not None else None

    def _update(self, key: K, tally: Tally, now_ms: int) -> _History:
        history = self._histories.get(key)
        if history is None:
            # A tally without a history was created after the last tick.
            begun_ms = now_ms if self._ticked_ms is None else self._ticked_ms
            history = self._histories[key] = _History(begun_ms)
        history.note(tally, now_ms)
        return history

    def forget(self, is_forgotten: Callable[[K], bool]) -> None:
        for key in [key for key in self.tallies if is_forgotten(key)]:
            self._forgotten = list(map(add, self._forgotten, self.tallies.pop(key)))
            self._histories.pop(key, None)


class _History:
    """What one tally gained in each time bucket. Empty buckets are left out."""

    __slots__ = ("_begun_ms", "_buckets", "_counted", "changed_ms")

    def __init__(self, begun_ms: int) -> None:
        self._begun_ms = self.changed_ms = begun_ms
        self._counted: Tally = [0, 0, 0]
        self._buckets: tuple[deque[tuple[int, Tally]], ...] = tuple(deque(maxlen=count) for _, count in _BUCKETS)

    def note(self, tally: Tally, now_ms: int) -> None:
        if tally == self._counted:
            return
        added = list(map(sub, tally, self._counted))
        self._counted, self.changed_ms = tally.copy(), now_ms
        for (length_ms, _), buckets in zip(_BUCKETS, self._buckets, strict=True):
            number = now_ms // length_ms
            if buckets and buckets[-1][0] == number:
                number, so_far = buckets.pop()
                buckets.append((number, list(map(add, so_far, added))))
            else:
                buckets.append((number, added))

    def traffic(self, now_ms: int) -> Traffic:
        spans = [self._span(which, now_ms) for which in range(len(_BUCKETS))]
        messages = WindowCounts(*(WindowCount(count, calls, seconds) for count, _, calls, seconds in spans))
        return Traffic(
            messages, WindowCounts(*(WindowCount(size, calls, seconds) for _, size, calls, seconds in spans))
        )

    def _span(self, which: int, now_ms: int) -> tuple[int, int, int, float]:
        """Return messages, bytes, calls, and the seconds they took.

        The time is at least one sample interval; else one message just after a tick would look like a flood.
        """
        length_ms, count = _BUCKETS[which]
        first = now_ms // length_ms - count + 1
        counts = [added for number, added in self._buckets[which] if number >= first]
        passed_ms = now_ms - max(self._begun_ms, first * length_ms)
        messages, size_bytes, calls = (sum(column) for column in zip([0, 0, 0], *counts, strict=True))
        return messages, size_bytes, calls, max(passed_ms, SAMPLE_INTERVAL_MS) / 1000
