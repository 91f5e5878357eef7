"""The exit codes of `sparrow`, for scripts."""

from __future__ import annotations

from enum import IntEnum

from sparrow.model.errors import NotPermitted, SparrowError, Unavailable, UnknownGroup, UnknownTopic
from sparrow.operations.errors import NotFound


class ExitCode(IntEnum):
    """What the exit code of a command says."""

    OK = 0
    FAILED = 1
    """Refused or failed, or a check found a problem."""
    USAGE = 2
    """The words or options of the command are wrong."""
    NOT_FOUND = 3
    """The topic, group or message does not exist, or a search found nothing."""
    NOT_PERMITTED = 4
    """The brokers require a token, or it does not permit the request."""
    UNREACHABLE = 5
    """No name server or broker answers in time."""
    PARTLY_DONE = 6
    """Some messages were processed and others were not."""
    INTERRUPTED = 130
    """Ctrl-C."""
    OUTPUT_CLOSED = 141
    """The reader of the output has closed it, as `head` does when it has enough."""


_CODES: tuple[tuple[tuple[type[SparrowError], ...], ExitCode], ...] = (
    ((UnknownTopic, UnknownGroup, NotFound), ExitCode.NOT_FOUND),
    ((NotPermitted,), ExitCode.NOT_PERMITTED),
    ((Unavailable,), ExitCode.UNREACHABLE),
)


def exit_code_of(error: SparrowError) -> ExitCode:
    """Return the exit code of a command that ends with this error."""
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), ExitCode.FAILED)
