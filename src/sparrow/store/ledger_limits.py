"""What a ledger takes for a scope and a number: the same in every engine."""

from __future__ import annotations

from sparrow.model.errors import Refused

SCOPE_CHARS_MAX = 190
"""Characters: what a key of every database has room for."""
LEDGER_NUMBER_MAX = (1 << 63) - 1


def checked_scope(scope: str) -> str:
    """The scope itself, if it may be one."""
    if not 0 < len(scope) <= SCOPE_CHARS_MAX:
        raise Refused(f"a scope has 1 to {SCOPE_CHARS_MAX} characters, this one has {len(scope)}")
    if not scope.isprintable():  # neither do databases agree on control characters, nor does anybody see them
        raise Refused(f"{scope!r} is no scope: it holds characters that cannot be printed")
    return scope


def checked_number(number: int) -> int:
    """The number itself, if a scope may get as far."""
    if not 0 <= number <= LEDGER_NUMBER_MAX:
        raise Refused(f"{number} cannot be noted: a scope counts from 0 to {LEDGER_NUMBER_MAX}")
    return number
