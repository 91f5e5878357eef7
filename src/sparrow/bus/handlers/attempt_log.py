"""Log lines about failed attempts of one group's handlers.

Each failed attempt has its line, with a traceback. While a database is away every attempt fails for the same reason,
so then there is one line a minute for each handler, and it counts the attempts that it stands for.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from sparrow.bus.failures import error_text
from sparrow.bus.sql.claims import ClaimedEvent
from sparrow.bus.sql.connections.database import is_database_away
from sparrow.log_intervals import LogIntervals

log = logging.getLogger(__name__)


class AttemptLog:
    """The log of one group."""

    def __init__(self, group: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._away = LogIntervals(now_s)
        self._unlogged: Counter[str] = Counter()
        """By handler: attempts without a line since the last one."""

    def failed(
        self, work: ClaimedEvent, handler: str, error: BaseException, next_try: str, *, logs_traceback: bool = True
    ) -> None:
        """Log a failed attempt whose result is stored."""
        is_away = is_database_away(error)
        if is_away and not self._is_due(handler):
            return
        log.warning(
            "event %(event)s, message %(id)d of group %(group)s: attempt %(attempt)d of %(handler)s failed: %(error)s;"
            " %(next_try)s%(others)s",
            {
                "event": work.name,
                "id": work.claim.message_id,
                "group": self._group,
                "attempt": work.retries + 1,
                "handler": handler,
                "error": error_text(error),
                "next_try": next_try,
                "others": self._others(handler),
            },
            exc_info=error if logs_traceback and not is_away else None,
        )

    def not_stored(self, handler: str, error: BaseException) -> None:
        """Log an attempt whose result could not be stored."""
        is_away = is_database_away(error)
        if is_away and not self._is_due(handler):
            return
        log.warning(
            "group %(group)s: the result of an attempt of %(handler)s was not stored: %(error)s; the message is handled"
            " again when its lease ends%(others)s",
            {"group": self._group, "handler": handler, "error": error, "others": self._others(handler)},
            exc_info=None if is_away else error,
        )

    def succeeded(self, handler: str) -> None:
        """Note a success: after a minute without a new line, the next failure has one at once."""
        if handler in self._away and not self._away.is_waiting(handler):
            self._away.end(handler)
            log.info(
                "handler %(handler)s of group %(group)s succeeds again; %(count)d failed attempts have no line here",
                {"handler": handler, "group": self._group, "count": self._unlogged.pop(handler, 0)},
            )

    def _is_due(self, handler: str) -> bool:
        if self._away.is_due(handler):
            return True
        self._unlogged[handler] += 1
        return False

    def _others(self, handler: str) -> str:
        count = self._unlogged.pop(handler, 0)
        return f" ({count} more attempts failed since the last line)" if count else ""
