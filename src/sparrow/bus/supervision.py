"""Loops that are not allowed to end: one that fails begins again, after a pause that grows."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 5.0
_HEALTHY_S = 10.0


class Supervised:
    """A task that runs `work` again and again until it returns or is cancelled."""

    def __init__(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self.last_error: BaseException | None = None
        """Why it is not at work just now; None: it is."""
        self._work = work
        self._task = asyncio.create_task(self._run(), name=name)

    async def _run(self) -> None:
        pause_s = PAUSE_MIN_S
        while True:
            began = time.monotonic()
            try:
                await self._work()
                return
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if time.monotonic() - began > _HEALTHY_S:
                    pause_s = PAUSE_MIN_S
                # The first one with where it came from; the same again would only fill the log.
                is_new = self.last_error is None or str(self.last_error) != str(error)
                self.last_error = error
                log.warning(
                    "%s begins again", self.name, extra={"error": str(error), "pause_s": pause_s}, exc_info=is_new
                )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    def well(self) -> None:
        """Said by the work when it got something done."""
        self.last_error = None

    async def stop(self) -> None:
        self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            pass
