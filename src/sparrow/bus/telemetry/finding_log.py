"""Logging what hinders a bus: once when it begins, at growing intervals while it lasts, and once when it is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sparrow.bus.sql.connections.database import is_unreachable
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import Unavailable
from sparrow.model.health import Finding

log = logging.getLogger(__name__)


class KeyedFinding(NamedTuple):
    """A finding, with what identifies it while it lasts: its text may change."""

    key: str
    finding: Finding
    error: BaseException | None = None
    """Its traceback is logged once."""


class FindingLog:
    """The log of the findings of one bus."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._intervals = LogIntervals(clock)
        self._lasting: dict[str, Finding] = {}

    def update(self, found: Iterable[KeyedFinding]) -> None:
        """Log what has begun, what still lasts and is due again, and what is over."""
        by_key = {each.key: each for each in found}
        for key in self._lasting.keys() - by_key.keys():
            over = self._lasting.pop(key)
            self._intervals.end(key)
            log.info("%(cause)s: over, it began at %(since)s", {"cause": over.cause, "since": _shown(over)})
        for key, (_, finding, error) in by_key.items():
            if not self._intervals.is_due(key):
                continue
            if key not in self._lasting:
                self._lasting[key] = finding
                log.warning(
                    "%(cause)s: %(text)s",
                    {"cause": finding.cause, "text": finding.text},
                    exc_info=error if has_useful_traceback(error) else None,
                )
            else:
                log.warning(
                    "%(cause)s: %(text)s (since %(since)s)",
                    {"cause": finding.cause, "text": finding.text, "since": _shown(finding)},
                )


def has_useful_traceback(error: BaseException | None) -> bool:
    """Return whether a traceback helps to find the cause; that of an unreachable server does not."""
    return error is not None and not isinstance(error, Unavailable) and not is_unreachable(error)


def _shown(finding: Finding) -> str:
    return finding.since.strftime("%Y-%m-%d %H:%M:%S UTC")
