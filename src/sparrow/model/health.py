"""The health of a client or a bus: what hinders its work at the moment, since when, and what to do."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """Something that hinders the work."""

    cause: str
    """A short word that stays the same between versions, for programs."""
    text: str
    """What happens, with which value, and what to do."""
    since: datetime
    """When it began."""


class Health(msgspec.Struct, frozen=True):
    """The answer of `health()`."""

    ok: bool
    """Whether the work can be done."""
    findings: tuple[Finding, ...] = ()
    """What hinders it, the oldest first."""
