"""The health of a client or a bus: what hinders its work at the moment, since when, and what to do."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that hinders the work."""

    cause: str
    """A short word that stays the same between versions, for programs."""
    text: str
    """What happens, with which value, and what to do."""
    since: datetime
    """When it began."""
    address: str | None = None
    """The server that it is about, if it is about one."""
    topic: str | None = None
    """The topic that it is about, if it is about one."""


class Health(msgspec.Struct, frozen=True):
    """The answer of `health()`."""

    ok: bool
    """Whether the work can be done."""
    findings: tuple[Finding, ...] = ()
    """What hinders it, the oldest first."""

    def __str__(self) -> str:
        return "; ".join(finding.text for finding in self.findings) or "ok"
