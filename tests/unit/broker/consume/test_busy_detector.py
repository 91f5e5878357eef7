"""When a leader is busy: measured delays over a window, with a minimum time and a lower limit to end it."""

from __future__ import annotations

import itertools

import pytest

from sparrow.broker.consume.busy_detector import HOLD_S, WINDOW_S, BusyDetector

LIMIT_S = 0.05


class Loop:
    """A detector that is told four times a second how late a timer was."""

    def __init__(self) -> None:
        self.detector, self.now_s = BusyDetector(LIMIT_S), 1_000.0

    def run(self, seconds: float, delay_s: float) -> list[bool]:
        found = []
        for _ in range(int(seconds * 4)):
            self.now_s += 0.25
            found.append(self.detector.add(self.now_s, delay_s))
        return found


def test_a_loop_is_busy_after_a_window_above_the_limit_and_not_before() -> None:
    loop = Loop()
    assert not any(loop.run(WINDOW_S, 0.06))
    assert all(loop.run(1, 0.06))


def test_one_long_pause_makes_no_loop_busy() -> None:
    loop = Loop()
    loop.run(WINDOW_S, 0)
    assert not any([*loop.run(0.25, 0.9), *loop.run(WINDOW_S, 0)])


def test_a_busy_loop_stays_so_for_the_hold_time_however_idle_it_gets() -> None:
    loop = Loop()
    loop.run(WINDOW_S + 1, 0.06)
    assert all(loop.run(HOLD_S - 2, 0))
    assert loop.run(2, 0)[-1] is False


@pytest.mark.parametrize(("delay_s", "is_busy"), [(0.03, True), (0.02, False)])
def test_a_busy_loop_ends_below_half_of_the_limit(delay_s: float, is_busy: bool) -> None:
    loop = Loop()
    loop.run(WINDOW_S + 1, 0.06)
    assert loop.run(HOLD_S + WINDOW_S, delay_s)[-1] is is_busy


def test_a_load_that_follows_the_advice_changes_it_once_a_minute_at_most() -> None:
    loop = Loop()
    states = []
    for _ in range(4 * 600):
        loop.now_s += 0.25
        states.append(loop.detector.add(loop.now_s, 0.0 if loop.detector.is_busy else 0.06))
    changes = sum(before != after for before, after in itertools.pairwise(states))
    assert 10 <= changes <= 20, "ten minutes: a change after each hold time, and one back"
