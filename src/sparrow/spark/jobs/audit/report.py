"""The report of an audit. Without NumPy and Arrow, so that the command line can name it."""

from __future__ import annotations

import msgspec


class FindingIds(msgspec.Struct, frozen=True):
    """The ids of one finding."""

    count: int
    first: tuple[str, ...]
    """In alphabetical order, at most `ids_max`."""


class AuditHour(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and findings of a topic and group in one hour."""

    topic: str
    group: str | None
    hour_ms: int | None
    """Start of the hour; None: ids from a table without times that are not stored."""
    sent: int | None
    """None: no data."""
    stored: int
    handled: int | None
    ok: int
    """Ids without a finding."""
    findings: dict[str, FindingIds]


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an audit."""

    hours: tuple[AuditHour, ...]
    without_id: int
    """Messages without an id, which are not audited."""
    elsewhere: int
    """Handled ids that match no message here: they belong to other topics, or are older."""
    notes: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether there are no findings."""
        return not any(hour.findings for hour in self.hours)
