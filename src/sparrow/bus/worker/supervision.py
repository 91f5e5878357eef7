"""Supervised tasks: a loop that fails is started again after a growing pause."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 5.0
_HEALTHY_S = 10.0
_SETTLED_S = 1.0
_SAY_AGAIN_S = 10.0


class SupervisedTask:
    """A task that restarts `work` until it returns or is cancelled."""

    def __init__(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self._error: BaseException | None = None
        """The last error."""
        self._began: float | None = None
        """None: it waits after a failure."""
        self._work = work
        self._task = asyncio.create_task(self._run(), name=name)

    async def _run(self) -> None:
        pause_s = PAUSE_MIN_S
        while True:
            self._began = began = time.monotonic()
            try:
                await self._work()
                return
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if time.monotonic() - began > _HEALTHY_S:
                    pause_s = PAUSE_MIN_S
                # Log the traceback of a new error only.
                is_new = self._error is None or str(self._error) != str(error)
                self._error, self._began = error, None
                log.warning(
                    "%s failed and is restarted",
                    self.name,
                    extra={"error": str(error), "pause_s": pause_s},
                    exc_info=is_new,
                )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    @property
    def problem(self) -> BaseException | None:
        """The error, if the task is failing; None once it has run for a moment."""
        if self._began is not None and time.monotonic() - self._began > _SETTLED_S:
            return None
        return self._error

    async def stop(self) -> None:
        while not self._task.done():
            self._task.cancel()
            # Cancel again: before Python 3.12 `wait_for` in a driver may swallow a cancellation.
            await asyncio.wait([self._task], timeout=_SAY_AGAIN_S)
