"""Waiting for a condition instead of a fixed time."""

import asyncio
import time
from collections.abc import Callable

_POLL_MIN_S, _POLL_MAX_S = 0.001, 0.05
_PAUSE_SHARE = 0.02
WAIT_S = 18.0
"""Long, for busy machines, and less than the 20 s and 30 s after which clients look again by themselves."""


async def eventually(condition: Callable[[], object], *, within_s: float = WAIT_S) -> None:
    """Wait until the condition holds; fail after a timeout."""
    begun = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - begun
        assert waited_s < within_s, f"the condition was not met within {within_s} s"
        await asyncio.sleep(_pause_s(waited_s))


def wait_until(condition: Callable[[], object], *, within_s: float = WAIT_S) -> None:
    """The same without an event loop."""
    begun = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - begun
        assert waited_s < within_s, f"the condition was not met within {within_s} s"
        time.sleep(_pause_s(waited_s))


def _pause_s(waited_s: float) -> float:
    """Return a pause that grows with the time waited: checks must not take the CPU time of what they wait for."""
    return min(max(_POLL_MIN_S, waited_s * _PAUSE_SHARE), _POLL_MAX_S)
