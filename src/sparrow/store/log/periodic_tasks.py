"""Periodic tasks, and a thread that runs them one at a time, off the event loop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparrow.log_intervals import LogIntervals

log = logging.getLogger(__name__)

_BEAT_S = 0.05


class PeriodicTask(NamedTuple):
    """A function that is called at an interval. An exception is logged, and the next call is not affected."""

    name: str
    every_s: float
    do: Callable[[], object]


class PeriodicTaskThread:
    """Runs tasks when they are due. `paused()` keeps them from running while the store is truncated or closed.

    Tasks run together, early by less than the shortest interval: to wake an idle process costs more than most of them.
    """

    def __init__(self, name: str, tasks: Sequence[PeriodicTask]) -> None:
        self._early_s = min(task.every_s for task in tasks) * 0.9
        self._due = {task: time.monotonic() + task.every_s for task in tasks}
        self._working = threading.RLock()
        self._wake = threading.Event()
        self._requested: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sparrow-{name}", daemon=True)
        self._failures = LogIntervals()

    def start(self) -> None:
        self._thread.start()

    def paused(self) -> threading.RLock:
        """Return a lock; no task runs while it is held."""
        return self._working

    def run_soon(self, name: str) -> None:
        """Run a task next, due or not."""
        if name not in self._requested:
            self._requested.add(name)
            self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(max(_BEAT_S, min(self._due.values()) - time.monotonic()))
            self._wake.clear()
            for task, due in self._due.items():
                if self._stopping.is_set():
                    return
                if task.name in self._requested or time.monotonic() >= due - self._early_s:
                    self._requested.discard(task.name)
                    with self._working:
                        self._try(task)
                    self._due[task] = time.monotonic() + task.every_s

    def _try(self, task: PeriodicTask) -> None:
        try:
            task.do()
        except Exception as cause:  # a failed task must not stop the others
            if self._failures.is_due(task.name, type(cause)):
                log.exception(
                    "periodic task %(task)s of the store failed: %(error)s; retrying every %(every_s)s s",
                    {"task": task.name, "error": cause, "every_s": task.every_s},
                )
        else:
            if self._failures.end(task.name):
                log.info("periodic task %(task)s of the store succeeds again", {"task": task.name})
