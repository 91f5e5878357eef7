"""Supervised tasks: a loop that fails is started again after a growing pause."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

log = logging.getLogger(__name__)

PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 5.0
_HEALTHY_S = 10.0
_SETTLED_S = 1.0
_SAY_AGAIN_S = 10.0


class SupervisedTask:
    """A task that restarts `work` until it returns or is cancelled."""

    def __init__(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        *,
        is_settled: Callable[[], bool] | None = None,
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        """Start the task.

        `is_settled` returns whether restarted work has succeeded; without it, it has after running for a moment.
        `on_failure` is called after each failure.
        """
        self.name = name
        self.failing_since: datetime | None = None
        """When the current or last problem began."""
        self._error: BaseException | None = None
        """The last error."""
        self._began: float | None = None
        """None: it waits after a failure."""
        self._work, self._is_settled, self._on_failure = work, is_settled, on_failure
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
                if self.problem is None:
                    self.failing_since = datetime.now(UTC)
                self._error, self._began = error, None
                log.debug(
                    "%(task)s failed and is restarted in %(pause_s).1f s: %(error)s",
                    {"task": self.name, "pause_s": pause_s, "error": error},
                )
                if self._on_failure is not None:
                    self._on_failure()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    @property
    def problem(self) -> BaseException | None:
        """The error, if the task is failing; None once it works again."""
        if self._error is None or self._began is None:
            return self._error
        if self._is_settled is not None:
            return None if self._is_settled() else self._error
        return None if time.monotonic() - self._began > _SETTLED_S else self._error

    async def stop(self) -> None:
        while not self._task.done():
            self._task.cancel()
            # Cancel again: before Python 3.12 `wait_for` in a driver may swallow a cancellation.
            await asyncio.wait([self._task], timeout=_SAY_AGAIN_S)
