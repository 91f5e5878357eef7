"""Waiting for a condition instead of a fixed time."""

import asyncio
import time
from collections.abc import Callable

_LOOK_MIN_S, _LOOK_MAX_S = 0.001, 0.05
_PAUSE_SHARE = 0.02


async def eventually(claim: Callable[[], object], *, within_s: float = 10.0) -> None:
    """Wait until the condition holds; fail after a timeout."""
    begun = time.monotonic()
    while not claim():
        waited_s = time.monotonic() - begun
        assert waited_s < within_s, f"it did not come true within {within_s} s"
        await asyncio.sleep(_pause_s(waited_s))


def wait_until(claim: Callable[[], object], *, within_s: float = 10.0) -> None:
    """The same without an event loop."""
    begun = time.monotonic()
    while not claim():
        waited_s = time.monotonic() - begun
        assert waited_s < within_s, f"it did not come true within {within_s} s"
        time.sleep(_pause_s(waited_s))


def _pause_s(waited_s: float) -> float:
    """Return a pause that grows with the time waited: checks must not take the CPU time of what they wait for."""
    return min(max(_LOOK_MIN_S, waited_s * _PAUSE_SHARE), _LOOK_MAX_S)
