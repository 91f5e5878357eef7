"""Handlers that fail again and again: how often in a row, since when, and with which error."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sparrow.bus.telemetry.finding_log import KeyedFinding
from sparrow.model.health import Finding

FAILURES_MIN = 3
"""Failed attempts in a row that make a finding: one message that fails now and then does not."""


@dataclass
class _Row:
    count: int
    since: datetime
    event: str
    error: str


class HandlerFailures:
    """Failed attempts of each handler since its last success, in this process."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Row] = {}

    def failed(self, group: str, handler: str, event: str, error: str) -> None:
        """Count a failed attempt."""
        row = self._rows.setdefault((group, handler), _Row(0, datetime.now(UTC), event, error))
        row.count, row.event, row.error = row.count + 1, event, error

    def succeeded(self, group: str, handler: str) -> None:
        """Forget the failures of a handler."""
        if self._rows:
            self._rows.pop((group, handler), None)

    def findings(self) -> list[KeyedFinding]:
        """Return the handlers that keep failing."""
        return [
            KeyedFinding(
                f"handler:{group}:{handler}",
                Finding(
                    "handler",
                    f"handler {handler} of group {group} failed {row.count} times in a row, the last time with event"
                    f" {row.event}: {row.error}; its messages are tried again later: correct the handler, or see"
                    " `sparrow bus failures`",
                    row.since,
                ),
            )
            for (group, handler), row in list(self._rows.items())
            if row.count >= FAILURES_MIN
        ]
