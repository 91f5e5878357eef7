"""Clocks in milliseconds, the unit of the protocol. Pure code takes the time as an argument instead.

The wall clock dates messages. It can be set, so nothing that only waits uses it: leases, locks and the silence of
clients count on the monotonic clock.
"""

import time
from collections.abc import Callable

MAX_JUMP_MS = 10 * 60_000
"""A wall clock that is set forward by more than this, while the process runs, is not believed."""
MAX_GAP_MS = 24 * 3_600_000
"""At a start, the wall clock is not believed at once if the newest message is older than this."""
GAP_HOLD_MS = 24 * 3_600_000
"""How long after such a start the clock is not believed: time to correct it."""
_STEADY_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ms() -> int:
    """Return the milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return the milliseconds of a clock that nobody sets. Only differences mean something."""
    return time.monotonic_ns() // 1_000_000


def steady_ms() -> int:
    """Return the milliseconds of a clock that nobody sets and that also counts while the machine is suspended."""
    return time.clock_gettime_ns(_STEADY_CLOCK) // 1_000_000


class ClockGuard:
    """The time by which messages may expire: the wall clock, without jumps forward that are not plausible.

    A jump while the process runs is left out until the clock is set back, or the process restarts. If the newest
    message is very old at a start, the time since it is left out for a day.
    """

    def __init__(self, wall_ms: Callable[[], int], steady_ms: Callable[[], int], newest_ms: int = 0) -> None:
        self._wall_ms, self._steady_ms = wall_ms, steady_ms
        self._last = (wall_ms(), steady_ms())
        self.jumped_ms = 0
        """How far the wall clock has been set forward, as far as that is not believed."""
        gap_ms = self._last[0] - newest_ms if newest_ms else 0
        self._gap_ms = gap_ms if gap_ms > MAX_GAP_MS else 0
        self._gap_until_ms = self._last[1] + GAP_HOLD_MS

    def believed_ms(self) -> int:
        """Return the time by which messages may expire. It is called at least every few minutes."""
        wall_ms, steady_ms = self._wall_ms(), self._steady_ms()
        drift_ms = (wall_ms - self._last[0]) - (steady_ms - self._last[1])
        self._last = (wall_ms, steady_ms)
        if self.jumped_ms or drift_ms > MAX_JUMP_MS:
            self.jumped_ms = max(0, self.jumped_ms + drift_ms)
            if self.jumped_ms <= MAX_JUMP_MS:
                self.jumped_ms = 0  # set back
        elif self._gap_ms and drift_ms < -MAX_JUMP_MS:
            self._gap_ms = max(0, self._gap_ms + drift_ms)
        if steady_ms >= self._gap_until_ms or self._gap_ms <= MAX_GAP_MS:
            self._gap_ms = 0
        return wall_ms - self.jumped_ms - self._gap_ms

    @property
    def doubt(self) -> str | None:
        """Why the wall clock is not believed, and what to do; None if it is believed."""
        if self.jumped_ms:
            return (
                f"the wall clock was set forward by {self.jumped_ms / 3_600_000:.1f} h while the process ran;"
                " no message expires because of that. Correct the clock, or restart the broker if it is right now"
            )
        if self._gap_ms:
            return (
                f"the newest message is {self._gap_ms / 3_600_000:.1f} h older than the wall clock says; no message"
                f" expires because of that for {GAP_HOLD_MS // 3_600_000} h. Correct the clock within that time if it"
                " is wrong"
            )
        return None
