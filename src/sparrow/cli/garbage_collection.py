"""Python's garbage collector in a server: full collections are rare, because the event loop waits for them.

A full collection looks at every container object that has lived for a while: 20 to 50 ms after the start of a broker,
0.4 s with 200,000 parked requests. Reference counts free almost everything in a server; full collections are for
the rest, cycles that lived for a while. So what exists when a server has started is never looked at again, and full
collections take at most a thousandth of the time.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable

START_S = 2.0
"""After this time a server has loaded its modules and opened its store."""
_LOOK_S = 1.0
PAUSE_S_MIN = 60.0
PAUSES_A_COLLECTION = 1_000
"""The pause after a full collection is so many times as long as it took."""
YOUNG_COLLECTIONS_MIN = 10
"""Young collections, each of which leaves some objects, between two full ones; also Python's own number."""
_NEVER = 1_000_000_000


class FullCollections:
    """When to make full collections."""

    def __init__(self, collect: Callable[[], object] = gc.collect, now_s: Callable[[], float] = time.monotonic) -> None:
        self._collect, self._now_s = collect, now_s
        self._next_s = now_s() + PAUSE_S_MIN

    def look(self, young_collections: int) -> bool:
        """Make a full collection if it is due, and return whether it was. `young_collections`: since the last one."""
        began_s = self._now_s()
        if began_s < self._next_s or young_collections < YOUNG_COLLECTIONS_MIN:
            return False
        self._collect()
        ended_s = self._now_s()
        self._next_s = ended_s + max(PAUSE_S_MIN, PAUSES_A_COLLECTION * (ended_s - began_s))
        return True


async def keep_collections_rare() -> None:
    """Replace Python's own full collections, until cancelled."""
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)  # without effect from Python 3.14 on, which collects in small steps
    try:
        await asyncio.sleep(START_S)
        gc.freeze()
        if sys.version_info >= (3, 14):
            return
        collections = FullCollections()
        while True:
            await asyncio.sleep(_LOOK_S)
            collections.look(gc.get_count()[2])
    finally:
        gc.set_threshold(young, middle, old)
