"""What has to be done again and again, off the event loop: a thread that does its chores one at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

log = logging.getLogger(__name__)

_BEAT_S = 0.05


class PeriodicTask(NamedTuple):
    """Something to do every so often. What it raises is logged, and it is tried again next time."""

    name: str
    every_s: float
    do: Callable[[], None]


class PeriodicTaskThread:
    """Runs chores when they are due. `paused()` keeps them out while the store is cut or closed."""

    def __init__(self, name: str, chores: Sequence[PeriodicTask]) -> None:
        self._due = {chore: time.monotonic() + chore.every_s for chore in chores}
        self._working = threading.RLock()
        self._wake = threading.Event()
        self._hurried: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sparrow-{name}", daemon=True)
        self._failing: set[str] = set()

    def start(self) -> None:
        self._thread.start()

    def paused(self) -> threading.RLock:
        """A lock: while it is held no chore runs."""
        return self._working

    def run_soon(self, name: str) -> None:
        """Do this chore next, due or not."""
        if name not in self._hurried:
            self._hurried.add(name)
            self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(_BEAT_S)
            self._wake.clear()
            for chore, due in self._due.items():
                if self._stopping.is_set():
                    return
                if chore.name in self._hurried or time.monotonic() >= due:
                    self._hurried.discard(chore.name)
                    with self._working:
                        self._try(chore)
                    self._due[chore] = time.monotonic() + chore.every_s

    def _try(self, chore: PeriodicTask) -> None:
        try:
            chore.do()
        except Exception as cause:  # a chore that fails must not take the others with it
            if chore.name not in self._failing:
                self._failing.add(chore.name)
                log.exception("a chore of the store failed", extra={"chore": chore.name, "cause": str(cause)})
        else:
            self._failing.discard(chore.name)
