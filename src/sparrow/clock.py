"""The wall clock, in the unit the wire uses. Pure code takes time as an argument instead."""

import time


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
