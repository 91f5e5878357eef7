"""The steps of a replica's state machine: one at a time, in the order in which their events arrive.

1. A step whose effects block nothing is taken at once, in the caller's iteration of the event loop: most fetches are
   answered, and most chunks written, without a task.
2. Events that arrive while the effects of a step run in a thread wait until these are done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from sparrow.replication.core.output import Output

log = logging.getLogger(__name__)

StepEvent = Callable[[int], Output]
"""Takes the time in ms, and one step of the state machine."""
Effects = Coroutine[Any, Any, None]


class _WaitingStep(NamedTuple):
    event: StepEvent
    body: bytes | memoryview
    done: asyncio.Future[None] | None


class StepQueue:
    """Takes steps. `take` gets an event and its bytes, and returns effects that are still to be awaited, or None."""

    def __init__(self, take: Callable[[StepEvent, bytes | memoryview], Effects | None]) -> None:
        self._take = take
        self._waiting: deque[_WaitingStep] = deque()
        self.is_running = False
        """Whether the effects of a step are not complete yet."""
        self._task: asyncio.Task[None] | None = None
        self.on_idle: Callable[[], None] = lambda: None
        """Called after steps, when none waits."""

    def submit(self, event: StepEvent, body: bytes | memoryview = b"") -> None:
        """Take a step, at once if none is running."""
        self._waiting.append(_WaitingStep(event, body, None))
        self._drain()

    async def step(self, event: StepEvent) -> None:
        """Take a step, and return when its effects are complete."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_WaitingStep(event, b"", done))
        self._drain()
        await done

    async def hold(self) -> None:
        """Take no more steps until `release`, as a replica that hangs."""
        await self.step(lambda _: Output())
        while self.is_running:
            await self.step(lambda _: Output())
        self.is_running = True

    def release(self) -> None:
        """Take the steps that have waited."""
        self.is_running = False
        self._drain()

    def stop(self) -> None:
        """Drop the steps that wait, and stop to wait for effects."""
        if self._task is not None:
            self._task.cancel()
        self.is_running = True
        for waiting in self._waiting:
            _settle(waiting.done)
        self._waiting.clear()

    def _drain(self) -> None:
        if self.is_running:
            return
        self.is_running = True  # also against a step inside a step
        while self._waiting:
            event, body, done = self._waiting.popleft()
            try:
                effects = self._take(event, body)
            except Exception as error:  # one step must not end all others
                _report(error)
                effects = None
            if effects is not None:
                self._task = asyncio.get_running_loop().create_task(self._complete(effects, done))
                return
            _settle(done)
        self.is_running = False
        self.on_idle()

    async def _complete(self, effects: Effects, done: asyncio.Future[None] | None) -> None:
        try:
            await effects
        except Exception as error:
            _report(error)
        _settle(done)
        self._task, self.is_running = None, False
        self._drain()


def _report(error: Exception) -> None:
    log.error("a step of the replica failed: %(error)r", {"error": error}, exc_info=error)


def _settle(done: asyncio.Future[None] | None) -> None:
    if done is not None and not done.done():
        done.set_result(None)
