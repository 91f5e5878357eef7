"""Clocks: a wall clock that jumps forward is not believed, and nothing that only waits depends on it."""

import pytest

from sparrow import clock
from sparrow.clock import GAP_HOLD_MS, MAX_GAP_MS, MAX_JUMP_MS, ClockGuard

HOUR_MS = 3_600_000


class Clocks:
    """A wall clock that somebody sets, and a steady clock."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self.wall_ms, self.steady_ms = wall_ms, 1_000

    def guard(self, newest_ms: int = 0) -> ClockGuard:
        return ClockGuard(lambda: self.wall_ms, lambda: self.steady_ms, newest_ms)

    def pass_time(self, ms: int) -> None:
        self.wall_ms += ms
        self.steady_ms += ms


def test_real_clocks_advance() -> None:
    assert clock.steady_ms() <= clock.steady_ms()
    assert clock.monotonic_ms() <= clock.monotonic_ms()
    guard = ClockGuard(clock.now_ms, clock.steady_ms)
    assert abs(guard.believed_ms() - clock.now_ms()) < MAX_JUMP_MS
    assert guard.doubt is None


def test_time_that_passes_is_believed_however_much() -> None:
    clocks = Clocks()
    guard = clocks.guard()
    clocks.pass_time(1_000 * HOUR_MS)  # also while the machine is suspended
    assert guard.believed_ms() == clocks.wall_ms
    assert guard.doubt is None


@pytest.mark.parametrize("jump_ms", [MAX_JUMP_MS + 1, 100 * HOUR_MS])
def test_a_jump_forward_is_not_believed_until_it_is_corrected(jump_ms: int) -> None:
    clocks = Clocks()
    guard = clocks.guard()
    clocks.pass_time(HOUR_MS)
    before_ms = guard.believed_ms()
    clocks.wall_ms += jump_ms
    clocks.pass_time(10_000)
    assert guard.believed_ms() == before_ms + 10_000
    clocks.pass_time(HOUR_MS)
    assert guard.believed_ms() == before_ms + 10_000 + HOUR_MS
    assert "was set forward" in str(guard.doubt)
    clocks.wall_ms -= jump_ms
    assert guard.believed_ms() == clocks.wall_ms
    assert guard.doubt is None


def test_small_corrections_are_believed() -> None:
    clocks = Clocks()
    guard = clocks.guard()
    for _ in range(1_000):
        clocks.wall_ms += 5_000
        clocks.pass_time(10_000)
        assert guard.believed_ms() == clocks.wall_ms


def test_a_jump_back_is_believed() -> None:
    clocks = Clocks()
    guard = clocks.guard()
    clocks.wall_ms -= 100 * HOUR_MS
    assert guard.believed_ms() == clocks.wall_ms


def test_messages_that_are_very_old_at_a_start_get_a_day() -> None:
    clocks = Clocks()
    newest_ms = clocks.wall_ms - MAX_GAP_MS - 1
    guard = clocks.guard(newest_ms)
    assert guard.believed_ms() == newest_ms
    assert "older than the wall clock says" in str(guard.doubt)
    clocks.pass_time(GAP_HOLD_MS - 1)
    assert guard.believed_ms() == newest_ms + GAP_HOLD_MS - 1
    clocks.pass_time(1)
    assert guard.believed_ms() == clocks.wall_ms
    assert guard.doubt is None


def test_a_clock_that_is_corrected_after_a_start_is_believed() -> None:
    clocks = Clocks()
    guard = clocks.guard(clocks.wall_ms - 100 * HOUR_MS)
    assert guard.doubt is not None
    clocks.wall_ms -= 99 * HOUR_MS
    assert guard.believed_ms() == clocks.wall_ms
    assert guard.doubt is None


def test_a_short_gap_at_a_start_is_believed() -> None:
    clocks = Clocks()
    guard = clocks.guard(clocks.wall_ms - HOUR_MS)
    assert guard.believed_ms() == clocks.wall_ms
