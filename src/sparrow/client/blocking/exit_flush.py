"""The end of a program that has not closed its producers: what `send_soon` has not sent yet is sent, or counted.

1. All open producers together get as long as a send may take (`timeout_ms`, the longest of theirs).
2. Whatever is not stored by then is counted in one line on stderr.
3. A process that is killed sends nothing more.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable

from sparrow.client.aio.produce.unsent_report import report_unsent

ExitFlush = Callable[[float], tuple[int, str]]
"""Sends what is unsent within some seconds; returns how many messages are not stored, and why."""

_flushes: dict[ExitFlush, int] = {}
"""The flushes of open producers with their timeouts. They keep the producers from the garbage collector: a program may
forget a producer as soon as it has given it its messages."""


def add(flush: ExitFlush, timeout_ms: int) -> None:
    """Call the function when the program ends, unless it is removed before."""
    if not _flushes:
        # Registered late, so that it runs before what was registered earlier, such as the end of logging.
        atexit.unregister(_flush_all)
        atexit.register(_flush_all)
    _flushes[flush] = timeout_ms


def remove(flush: ExitFlush) -> None:
    """Forget a producer that is closed."""
    _flushes.pop(flush, None)


def _flush_all() -> None:
    if not _flushes:
        return
    deadline = time.monotonic() + max(_flushes.values()) / 1000
    for flush in list(_flushes):
        report_unsent(*flush(max(0.0, deadline - time.monotonic())))
