"""When a finding that repeats is logged: at once, and while it lasts after 1, 2, 4 … 10 minutes."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

FIRST_INTERVAL_S = 60.0
INTERVAL_S_MAX = 600.0


class LogIntervals:
    """The findings of one component that are not over yet."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._findings: dict[Hashable, tuple[object, float, float]] = {}
        """For each subject: the cause, when it is logged next, and the interval before that."""

    def is_due(self, subject: Hashable, cause: object = None) -> bool:
        """Return whether to log a finding now: it is new, its cause is another one, or its interval is over."""
        now_s = self._now_s()
        known = self._findings.get(subject)
        if known is None or known[0] != cause:
            self._findings[subject] = cause, now_s + FIRST_INTERVAL_S, FIRST_INTERVAL_S
            return True
        _, next_s, interval_s = known
        if now_s < next_s:
            return False
        interval_s = min(2 * interval_s, INTERVAL_S_MAX)
        self._findings[subject] = cause, now_s + interval_s, interval_s
        return True

    def is_waiting(self, subject: Hashable) -> bool:
        """Return whether a finding was logged, and its interval is not over yet."""
        known = self._findings.get(subject)
        return known is not None and self._now_s() < known[1]

    def __contains__(self, subject: Hashable) -> bool:
        return subject in self._findings

    def end(self, subject: Hashable) -> bool:
        """Forget a finding that is over; return whether there was one."""
        return self._findings.pop(subject, None) is not None
