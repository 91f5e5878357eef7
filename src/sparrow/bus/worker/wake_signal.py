"""Wake-up signals between threads and event loops. A lost signal costs one poll interval."""

from __future__ import annotations

import asyncio
import threading


class WakeSignal:
    """A signal that wakes listeners on their event loops."""

    def __init__(self) -> None:
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Wake all listeners, from any thread."""
        with self._lock:
            waiting = list(self._waiting)
        here = _running_loop()
        for loop, event in waiting:
            if loop is here:
                event.set()
                continue
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # the loop is closed
                with self._lock:
                    self._waiting.discard((loop, event))

    def listener(self) -> WakeListener:
        return WakeListener(self)

    def join(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
        with self._lock:
            self._waiting.add((loop, event))

    def leave(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
        with self._lock:
            self._waiting.discard((loop, event))


class WakeListener:
    """Waits for a signal on one event loop."""

    def __init__(self, wake: WakeSignal) -> None:
        self._wake = wake
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        wake.join(self._loop, self._event)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a signal or the timeout; return whether a signal came."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        finally:
            self._event.clear()
        return True

    def close(self) -> None:
        self._wake.leave(self._loop, self._event)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
