"""The flusher: makes appends durable by group commit.

One thread does nothing but `fdatasync`. Everything written before a sync starts is durable when it ends, and all
appends that wait meanwhile share the next sync: the slower the disk, the larger the group. No sync is delayed on
purpose.
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
"""A physical offset, the future that waits for it, and its deadline."""


class Flusher:
    """Syncs the log when an append waits for it, and at least every `interval_s`."""

    def __init__(
        self, writer: LogWriter, *, interval_s: float, timeout_s: float, failed: Callable[[OSError], SparrowError]
    ) -> None:
        self._writer, self._interval_s, self._timeout_s, self._failed = writer, interval_s, timeout_s, failed
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="sparrow-flush", daemon=True)
        self._releasing = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        """In the order of their offsets."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    def when_durable(self, end: int) -> asyncio.Future[None] | None:
        """Return a future that is done once the log is durable up to `end`; None if it is already.

        The future fails with `FlushTimeout` after `timeout_s`.
        """
        if end <= self._writer.durable:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, future, time.monotonic() + self._timeout_s))
        if not self._wanted.is_set():
            self._wanted.set()
        return future

    def truncate(self, end: int) -> None:
        """Fail the futures that wait for an offset beyond `end`, at which the log was truncated."""
        with self._releasing:
            lost = [future for at, future, _ in self._waiting if at > end]
            self._waiting = deque(waiting for waiting in self._waiting if waiting[0] <= end)
        _resolve(lost, Busy("the log was truncated before the message was durable; send it again"))

    def sync(self) -> None:
        """Make everything written so far durable. Any thread may call this."""
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
                # After a failed fdatasync the kernel may have dropped the dirty pages: a second one could succeed
                # without having written them.
                log.error(
                    "fdatasync of the commit log failed: %(error)s; the store refuses writes until it is restarted",
                    {"error": cause},
                )
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
                return  # all waiting futures have failed, and the store refuses writes

    def expire(self) -> None:
        """Fail futures past their deadline. A periodic task, so that an append needs no timer of its own."""
        now = time.monotonic()
        late = []
        with self._releasing:
            while self._waiting and self._waiting[0][2] <= now:
                late.append(self._waiting.popleft()[1])
        _resolve(late, FlushTimeout(int(self._timeout_s * 1000)))

    def _release(self, durable: int, error: SparrowError | None = None) -> None:
        """Resolve the futures that wait for an offset up to `durable`."""
        ready = []
        with self._releasing:  # the flusher's thread and a checkpoint may run this at the same time
            while self._waiting and self._waiting[0][0] <= durable:
                ready.append(self._waiting.popleft()[1])
        _resolve(ready, error)


def _resolve(futures: list[asyncio.Future[None]], error: SparrowError | None) -> None:
    """Resolve futures with one call into each event loop, not one per future."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for future in futures:
        by_loop.setdefault(future.get_loop(), []).append(future)
    for loop, ready in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, ready, error)
        except RuntimeError:  # the event loop is closed
            log.debug("event loop closed before the flush of its appends")


def _settle(futures: list[asyncio.Future[None]], error: SparrowError | None) -> None:
    for future in futures:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
