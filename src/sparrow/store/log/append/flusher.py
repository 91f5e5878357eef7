"""The flusher: makes appends durable by group commit.

One thread does nothing but `fdatasync`. Everything written before a sync starts is durable when it ends, and all
appends that wait meanwhile share the next sync: the slower the disk, the larger the group. No sync is delayed on
purpose.

1. The appends of a group share one future: a message costs neither a future nor a callback of its own.
2. No append joins a group after the sync for it has started.
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
from sparrow.telemetry.histogram import DurationHistogram

log = logging.getLogger(__name__)

_JOIN_S = 0.1
"""How long appends may join a group, whose deadline is that of its first append. `expire` runs as often."""


class _FlushGroup:
    """Appends of one event loop that wait for the same sync."""

    __slots__ = ("deadline", "end", "future", "join_until", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, now: float, timeout_s: float) -> None:
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()
        self.end = 0
        """The physical offset that the last append waits for."""
        self.join_until, self.deadline = now + _JOIN_S, now + timeout_s


class Flusher:
    """Syncs the log when an append waits for it, and at least every `interval_s`."""

    def __init__(
        self, writer: LogWriter, *, interval_s: float, timeout_s: float, failed: Callable[[OSError], SparrowError]
    ) -> None:
        self._writer, self._interval_s, self._timeout_s, self._failed = writer, interval_s, timeout_s, failed
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="sparrow-flush", daemon=True)
        self._groups_lock = threading.Lock()
        self._groups: deque[_FlushGroup] = deque()
        """In the order of their offsets."""
        self._open_group: _FlushGroup | None = None
        """The group that appends join: the last one, until a sync for it starts."""
        self.durations = DurationHistogram()
        """How long flushes took, in seconds."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    def when_durable(self, end: int) -> asyncio.Future[None] | None:
        """Return a future that is done once the log is durable up to `end`; None if it is already.

        Other appends share the future: shield it from cancellation. It fails with `FlushTimeout` after `timeout_s`.
        """
        if end <= self._writer.durable:
            return None
        loop, now = asyncio.get_running_loop(), time.monotonic()
        with self._groups_lock:
            group = self._open_group
            if group is None or group.join_until < now or group.loop is not loop:
                group = self._open_group = _FlushGroup(loop, now, self._timeout_s)
                self._groups.append(group)
                # At the end of this iteration: what it appends is in the log when the sync starts.
                loop.call_soon(self._wanted.set)
            group.end = max(group.end, end)
            return group.future

    def truncate(self, end: int) -> None:
        """Fail the groups that wait for an offset beyond `end`, at which the log was truncated."""
        with self._groups_lock:
            lost = [group for group in self._groups if group.end > end]
            self._groups = deque(group for group in self._groups if group.end <= end)
            self._open_group = None
        _resolve(lost, Busy("the log was truncated before the message was durable; send it again"))

    def sync(self) -> None:
        """Make everything written so far durable. Any thread may call this."""
        writer = self._writer
        with self._groups_lock:  # before the end is read: what the group waits for is written already
            self._open_group = None
        with writer.lock:
            start, end, truncations = writer.durable, writer.log.written, writer.truncations
        if start < end:
            begun_s = time.perf_counter()
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
            self.durations.add(time.perf_counter() - begun_s)
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
                return  # all groups have failed, and the store refuses writes

    def expire(self) -> None:
        """Fail groups past their deadline. A periodic task, so that no append needs a timer of its own."""
        now = time.monotonic()
        late = []
        with self._groups_lock:
            while self._groups and self._groups[0].deadline <= now:
                late.append(self._groups.popleft())
            if self._open_group in late:
                self._open_group = None
        _resolve(late, FlushTimeout(int(self._timeout_s * 1000)))

    def _release(self, durable: int, error: SparrowError | None = None) -> None:
        """Resolve the groups that wait for an offset up to `durable`."""
        ready = []
        with self._groups_lock:  # the flusher's thread and a checkpoint may run this at the same time
            while self._groups and self._groups[0].end <= durable:
                ready.append(self._groups.popleft())
            if self._open_group in ready:
                self._open_group = None
        _resolve(ready, error)


def _resolve(groups: list[_FlushGroup], error: SparrowError | None) -> None:
    for group in groups:
        try:
            group.loop.call_soon_threadsafe(_settle, group.future, error)
        except RuntimeError:  # the event loop is closed
            log.debug("event loop closed before the flush of its appends")


def _settle(future: asyncio.Future[None], error: SparrowError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
