"""Limits of ledger scopes and numbers, the same in every engine."""

from __future__ import annotations

from sparrow.model.errors import Refused

SCOPE_CHARS_MAX = 190
"""Characters that fit into a key of every supported database."""
LEDGER_NUMBER_MAX = (1 << 63) - 1


def checked_scope(scope: str) -> str:
    """Return the scope; `Refused` if it is not valid."""
    if not 0 < len(scope) <= SCOPE_CHARS_MAX:
        raise Refused(f"a scope must have 1 to {SCOPE_CHARS_MAX} characters, not {len(scope)}")
    if not scope.isprintable():  # databases treat control characters differently
        raise Refused(f"scope {scope!r} contains characters that cannot be printed: remove them")
    return scope


def checked_number(number: int) -> int:
    """Return the number; `Refused` if it is out of range."""
    if not 0 <= number <= LEDGER_NUMBER_MAX:
        raise Refused(f"ledger number {number} is out of range: use 0 to {LEDGER_NUMBER_MAX}")
    return number
