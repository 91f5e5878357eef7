"""Waiting for a condition instead of a fixed time."""

import asyncio
import time
from collections.abc import Callable

_POLL_INTERVAL_S = 0.001


async def eventually(condition: Callable[[], object], *, within_s: float = 10.0) -> None:
    """Wait until the condition holds; fail after a timeout."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {within_s} s"
        await asyncio.sleep(_POLL_INTERVAL_S)


def wait_until(condition: Callable[[], object], *, within_s: float = 10.0) -> None:
    """The same without an event loop."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {within_s} s"
        time.sleep(_POLL_INTERVAL_S)
