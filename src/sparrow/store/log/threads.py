"""The threads of an open log store: periodic maintenance, preparation of segments, and a pool for work that blocks."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from sparrow.model.errors import Closed
from sparrow.store.log.maintenance import LogMaintenance
from sparrow.store.log.parts import LogParts
from sparrow.store.log.periodic_tasks import PeriodicTask, PeriodicTaskThread

_Result = TypeVar("_Result")
_COLD_READERS = 4
_PREPARATION = "prepare segments"


class LogThreads:
    """Runs whatever may block of a log store, off the event loop."""

    def __init__(self, parts: LogParts, maintenance: LogMaintenance) -> None:
        self._path = parts.path
        self.maintenance = PeriodicTaskThread("maintenance", maintenance.tasks())
        # A thread of its own: pages must be ready and timeouts reported in time, however busy maintenance is. Appends
        # ask for pages; the interval is for segments that are half full.
        tasks = [PeriodicTask(_PREPARATION, 0.5, parts.log.prepare)]
        if parts.settings.flush == "sync":
            tasks.append(PeriodicTask("expire flush timeouts", 0.1, parts.flusher.expire))
        self.segments = PeriodicTaskThread("segments", tasks)
        parts.log.on_pages_low = functools.partial(self.segments.run_soon, _PREPARATION)
        self._pool = ThreadPoolExecutor(_COLD_READERS, "sparrow-store")
        self._is_stopped = False

    def start(self) -> None:
        self.maintenance.start()
        self.segments.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep periodic tasks from running meanwhile."""
        with self.maintenance.paused(), self.segments.paused():
            yield

    async def run(self, work: Callable[..., _Result], *args: object, **named: object) -> _Result:
        """Call a function in a thread of the pool, and return its result."""
        if self._is_stopped:
            raise Closed(f"the store {self._path}")
        return await asyncio.get_running_loop().run_in_executor(self._pool, functools.partial(work, *args, **named))

    def stop(self) -> None:
        """Finish what runs, and accept nothing more."""
        self._is_stopped = True
        self.maintenance.stop()
        self.segments.stop()
        self._pool.shutdown()
