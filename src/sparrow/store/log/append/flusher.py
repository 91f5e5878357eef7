"""Making appends durable, a group at a time.

One thread does nothing but `fdatasync`. Whatever was written by the time it starts is durable when it ends, so all who
wait meanwhile share the next one: under load a group is as large as the disk is slow, and nobody lingers on purpose.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from sparrow.model.errors import Busy, FlushTimeout, SparrowError
from sparrow.store.log.append.writer import LogWriter

log = logging.getLogger(__name__)

_Waiting = tuple[int, "asyncio.Future[None]", float]
"""The offset, who waits for it, and until when."""


class Flusher:
    """Syncs the log when someone waits for it, and every `interval_s` anyhow."""

    def __init__(
        self, writer: LogWriter, *, interval_s: float, timeout_s: float, failed: Callable[[OSError], SparrowError]
    ) -> None:
        self._writer, self._interval_s, self._timeout_s, self._failed = writer, interval_s, timeout_s, failed
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="sparrow-flush", daemon=True)
        self._releasing = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        """In the order of their offsets, as appends are."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    def when_durable(self, end: int) -> asyncio.Future[None] | None:
        """Done once the log is durable up to `end`, or failed (`FlushTimeout`) in time; None if it is already."""
        if end <= self._writer.durable:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, future, time.monotonic() + self._timeout_s))
        if not self._wanted.is_set():
            self._wanted.set()
        return future

    def truncate(self, end: int) -> None:
        """The log was cut at `end`: those who wait for more than that are told, since it will never come."""
        with self._releasing:
            lost = [future for at, future, _ in self._waiting if at > end]
            self._waiting = deque(waiting for waiting in self._waiting if waiting[0] <= end)
        _answer(lost, Busy("the log was cut before this was safe"))

    def sync(self) -> None:
        """Make durable what is written now. May be called by any thread."""
        writer = self._writer
        with writer.lock:
            start, end, truncations = writer.durable, writer.log.written, writer.truncations
        if start < end:
            try:
                for segment in reversed(writer.log.segments):
                    if segment.end <= start:
                        break
                    if segment.base < end:
                        segment.sync()
            except OSError as cause:
                # After a failed fdatasync the kernel may have dropped the dirty pages: trying again would lie.
                log.error("the log could not be made durable", extra={"cause": str(cause)})
                self._release(1 << 62, self._failed(cause))
                raise
            with writer.lock:
                if writer.truncations == truncations:  # else other bytes may lie below `end` now
                    writer.advance_watermark("durable", end)
        self._release(writer.durable)

    def _run(self) -> None:
        while not self._stopping:
            self._wanted.wait(self._interval_s)
            self._wanted.clear()
            try:
                self.sync()
            except OSError:
                return  # told to all who waited, and the store takes no more writes

    def expire(self) -> None:
        """Tell those who have waited too long. A chore, so that an append needs no timer of its own."""
        now = time.monotonic()
        late = []
        with self._releasing:
            while self._waiting and self._waiting[0][2] <= now:
                late.append(self._waiting.popleft()[1])
        _answer(late, FlushTimeout(int(self._timeout_s * 1000)))

    def _release(self, durable: int, error: SparrowError | None = None) -> None:
        """Answer those who wait for no more than `durable`."""
        ready = []
        with self._releasing:  # the flusher and a checkpoint may both get here; each takes only what it saw
            while self._waiting and self._waiting[0][0] <= durable:
                ready.append(self._waiting.popleft()[1])
        _answer(ready, error)


def _answer(futures: list[asyncio.Future[None]], error: SparrowError | None) -> None:
    """One call into each event loop, not one a future."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for future in futures:
        by_loop.setdefault(future.get_loop(), []).append(future)
    for loop, ready in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, ready, error)
        except RuntimeError:  # the loop is closed, and with it all who waited
            log.debug("waiters went away before their flush")


def _settle(futures: list[asyncio.Future[None]], error: SparrowError | None) -> None:
    for future in futures:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
