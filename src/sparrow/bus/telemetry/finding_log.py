"""Logging what hinders a bus: once when it begins, at growing intervals while it lasts, and once when it is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sparrow.bus.sql.database import is_unreachable
from sparrow.model.errors import Unavailable
from sparrow.model.health import Finding

log = logging.getLogger(__name__)

REPEAT_MIN_S = 60.0
REPEAT_MAX_S = 600.0


class KeyedFinding(NamedTuple):
    """A finding, with what identifies it while it lasts: its text may change."""

    key: str
    finding: Finding
    error: BaseException | None = None
    """Its traceback is logged once."""


@dataclass
class _Logged:
    finding: Finding
    repeat_s: float
    due_s: float


class FindingLog:
    """The log of the findings of one bus."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[str, _Logged] = {}

    def update(self, found: Iterable[KeyedFinding]) -> None:
        """Log what has begun, what still lasts and is due again, and what is over."""
        now_s, by_key = self._clock(), {each.key: each for each in found}
        for key in self._logged.keys() - by_key.keys():
            over = self._logged.pop(key).finding
            log.info("%(cause)s: over, it began at %(since)s", {"cause": over.cause, "since": _shown(over)})
        for key, (_, finding, error) in by_key.items():
            logged = self._logged.get(key)
            if logged is None:
                self._logged[key] = _Logged(finding, REPEAT_MIN_S, now_s + REPEAT_MIN_S)
                log.warning(
                    "%(cause)s: %(text)s",
                    {"cause": finding.cause, "text": finding.text},
                    exc_info=error if has_useful_traceback(error) else None,
                )
            elif now_s >= logged.due_s:
                logged.repeat_s = min(logged.repeat_s * 2, REPEAT_MAX_S)
                logged.due_s = now_s + logged.repeat_s
                log.warning(
                    "%(cause)s: %(text)s (since %(since)s)",
                    {"cause": finding.cause, "text": finding.text, "since": _shown(finding)},
                )


def has_useful_traceback(error: BaseException | None) -> bool:
    """Return whether a traceback helps to find the cause; that of an unreachable server does not."""
    return error is not None and not isinstance(error, Unavailable) and not is_unreachable(error)


def _shown(finding: Finding) -> str:
    return finding.since.strftime("%Y-%m-%d %H:%M:%S UTC")
