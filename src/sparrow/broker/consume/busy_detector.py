"""Whether an event loop is busy: it executes a timer late, by more than a limit on average over some seconds.

Once busy, it stays so for a minute at least, and until the average is below half of the limit: the load that a busy
broker hands over would otherwise come back at once.
"""

from __future__ import annotations

from collections import deque

SAMPLE_S = 0.25
WINDOW_S = 5.0
HOLD_S = 60.0


class BusyDetector:
    """Decides from measured delays whether an event loop is busy. Time is an argument."""

    def __init__(self, limit_s: float, *, window_s: float = WINDOW_S, hold_s: float = HOLD_S) -> None:
        self._limit_s, self._window_s, self._hold_s = limit_s, window_s, hold_s
        self._samples: deque[tuple[float, float]] = deque()
        self._begun_s = 0.0
        self._busy_since_s = 0.0
        self.is_busy = False

    def add(self, now_s: float, delay_s: float) -> bool:
        """Add a measurement; return whether the loop is busy."""
        if not self._samples:
            self._begun_s = now_s
        self._samples.append((now_s, delay_s))
        while self._samples[0][0] < now_s - self._window_s:
            self._samples.popleft()
        mean_s = sum(delay for _, delay in self._samples) / len(self._samples)
        if self.is_busy:
            self.is_busy = now_s - self._busy_since_s < self._hold_s or mean_s >= self._limit_s / 2
        elif mean_s > self._limit_s and now_s - self._begun_s >= self._window_s:
            self.is_busy, self._busy_since_s = True, now_s
        return self.is_busy
