"""The wall clock in milliseconds, the unit of the protocol. Pure code takes the time as an argument instead."""

import time


def now_ms() -> int:
    """Return the milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
