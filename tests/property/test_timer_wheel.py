"""The timer wheel against a list that is sorted again at every step."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sparrow.broker.delay.timer_wheel import TimerWheel

DELAYS = st.one_of(
    st.integers(-5, 5),
    st.integers(-2_000, 200_000),
    st.sampled_from((999, 1_000, 1_001, 59_999, 60_000, 3_600_000, 86_400_000)),
    st.integers(0, 20 * 365 * 86_400_000),
)


class AgainstAList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.timers = TimerWheel()
        self.waiting: list[tuple[int, int]] = []
        """(time, reference) in the order of arrival; references are never used twice."""
        self.now_ms = 0
        self.number = 0

    @initialize(now_ms=st.integers(0, 1 << 42))
    def begin(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def _new(self, delay_ms: int) -> tuple[int, int]:
        self.number += 1
        return max(0, self.now_ms + delay_ms), self.number

    @rule(delay_ms=DELAYS)
    def add(self, delay_ms: int) -> None:
        item = self._new(delay_ms)
        self.waiting.append(item)
        self.timers.add(*item)

    @rule(delays_ms=st.lists(DELAYS, max_size=30))
    def add_many(self, delays_ms: list[int]) -> None:
        items = [self._new(delay_ms) for delay_ms in delays_ms]
        self.waiting += items
        pairs = np.array(items, np.int64).reshape(-1, 2)
        self.timers.add_many(pairs[:, 0], pairs[:, 1])

    @rule(step_ms=st.one_of(st.integers(0, 3_000), DELAYS))
    def time_passes(self, step_ms: int) -> None:
        """Move the clock, backwards too: clocks are set."""
        self.now_ms = max(0, self.now_ms + step_ms)

    def _first(self, count: int) -> list[tuple[int, int]]:
        return sorted((item for item in self.waiting if item[0] <= self.now_ms), key=lambda item: item[0])[:count]

    def _take(self, count: int) -> list[tuple[int, int]]:
        due, references = self.timers.take(self.now_ms, count)
        return list(zip(due.tolist(), references.tolist(), strict=True))

    @rule(count=st.integers(1, 40))
    def take(self, count: int) -> None:
        expected = self._first(count)
        assert self._take(count) == expected
        self.waiting = [item for item in self.waiting if item not in expected]

    @rule(count=st.integers(1, 40), data=st.data())
    def take_and_put_some_back(self, count: int, data: st.DataObject) -> None:
        due, references = self.timers.take(self.now_ms, count)
        expected = self._first(count)
        assert list(zip(due.tolist(), references.tolist(), strict=True)) == expected
        kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(due), max_size=len(due))), np.bool_)
        self.timers.restore(due[kept], references[kept])
        back = [item for item, is_kept in zip(expected, kept.tolist(), strict=True) if is_kept]
        self.waiting = back + [item for item in self.waiting if item not in expected]

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.integers(1, self.number + 5), max_size=10))
        self.timers.drop(np.array(gone, np.int64))
        self.waiting = [item for item in self.waiting if item[1] not in gone]

    @invariant()
    def knows_what_it_holds(self) -> None:
        assert self.timers.count == len(self.waiting)
        due, references = self.timers.all_timers()
        assert sorted(zip(due.tolist(), references.tolist(), strict=True)) == sorted(self.waiting)

    @invariant()
    def says_when_to_look_next(self) -> None:
        said, first = self.timers.next_due_ms(self.now_ms), min((due for due, _ in self.waiting), default=None)
        if first is None or said is None or first <= self.now_ms:
            assert said == first
        else:
            assert self.now_ms < said <= first


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(stateful_step_count=25)
