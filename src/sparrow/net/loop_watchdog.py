"""The watchdog of an event loop: finds the requests that hold the loop, while all other connections wait.

1. The requests of one read are measured together, by one look at the clock at the end of the read; handlers that are
   coroutines step by step.
2. A timer finds delays that no request explains, such as background work or many short requests in a row.
3. A hold above the limit is counted by request, and logged with the peer, rarely for each request code.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, ClassVar

from sparrow.log_intervals import LogIntervals
from sparrow.net.channel import Channel
from sparrow.net.request_meter import UNKNOWN_NAME, request_name
from sparrow.telemetry.histogram import DurationHistogram
from sparrow.telemetry.metric import HistogramValue
from sparrow.wire.codes import request_code_name

log = logging.getLogger(__name__)

_TICK_S = 0.25
"""How often the timer looks. Each look wakes an idle process, which costs more than the look."""
CLOSED_CONNECTION, NO_REQUEST = "closed_connection", "none"
"""What held the loop, if it was no request."""
_NAMES_LOGGED_MAX = 5


class LoopWatchdog:
    """The watchdog of one server. `start` measures the running loop until `stop`."""

    _last_hold_s: ClassVar[float] = 0.0
    """When a request last held the loop for too long; servers in one process share it, as they share the loop."""
    _unexplained: ClassVar[LogIntervals] = LogIntervals()

    def __init__(
        self,
        limit_ms: int,
        *,
        now_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self.limit_s = limit_ms / 1000
        self.now_s, self._cpu_s = now_s, cpu_s
        self._intervals = LogIntervals(now_s)
        self._tick_cpu_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.holds: dict[str, DurationHistogram] = {}
        """The holds above the limit, in seconds, by the name of the request, or what else it was."""

    def start(self) -> None:
        """Start to measure the running event loop."""
        self._schedule()

    def stop(self) -> None:
        """Stop to measure."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note_read(self, channel: Channel, codes: Iterable[int], held_s: float) -> None:
        """Note that the requests of one read held the loop for longer than the limit."""
        counts = Counter(codes).most_common()
        shown = ", ".join(
            request_code_name(code) if count == 1 else f"{count} × {request_code_name(code)}"
            for code, count in counts[:_NAMES_LOGGED_MAX]
        )
        if len(counts) > _NAMES_LOGGED_MAX:
            shown += f" and {len(counts) - _NAMES_LOGGED_MAX} other codes"
        name = request_name(counts[0][0]) if counts else UNKNOWN_NAME
        self._note(name, shown or "an incomplete request", channel.address, held_s)

    def note_close(self, channel: Channel, began_s: float) -> None:
        """Note the end of a connection, if its cleaning up held the loop for longer than the limit."""
        held_s = self.now_s() - began_s
        if held_s > self.limit_s:
            self._note(CLOSED_CONNECTION, "the end of the connection", channel.address, held_s)

    def watch(self, work: Coroutine[Any, Any, Any], code: int, channel: Channel) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that does the same work, and whose steps are measured."""
        return _WatchedCoroutine(work, self, code, channel)

    def note_step(self, code: int, channel: Channel, held_s: float) -> None:
        """Note that one step of a handler held the loop for longer than the limit."""
        self._note(request_name(code), request_code_name(code), channel.address, held_s)

    def _note(self, name: str, what: str, peer: str, held_s: float) -> None:
        LoopWatchdog._last_hold_s = self.now_s()
        self._count(name, held_s)
        if self._intervals.is_due(name):
            log.warning(
                "%(what)s of %(peer)s held the event loop for %(held_ms)s ms, at most %(cpu_ms)s ms of it CPU time:"
                " all other clients waited. The limit is net.loop_hold_ms = %(limit_ms)s; the metric"
                " loop_hold_seconds has all cases",
                {
                    "what": what,
                    "peer": peer,
                    "held_ms": round(held_s * 1000),
                    "cpu_ms": round((self._cpu_s() - self._tick_cpu_s) * 1000),
                    "limit_ms": round(self.limit_s * 1000),
                },
            )

    def _count(self, name: str, held_s: float) -> None:
        if name not in self.holds:
            self.holds[name] = DurationHistogram()
        self.holds[name].add(held_s)

    def values(self) -> list[tuple[tuple[str], HistogramValue]]:
        """Return the holds above the limit, by request, as a metric has them."""
        return [((name,), histogram.value) for name, histogram in self.holds.items()]

    # -- the timer ----------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        self._tick_cpu_s = self._cpu_s()
        # Not call_at: the clock of uvloop stands still during an iteration.
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self.tick, self.now_s() + _TICK_S)

    def tick(self, due_s: float) -> None:
        """Find out whether the loop was late, and no request explains it."""
        now_s = self.now_s()
        if now_s - due_s > self.limit_s and LoopWatchdog._last_hold_s < due_s:
            self._count(NO_REQUEST, now_s - due_s)
            # A process that did not run, because it was stopped or the machine is busy, has nothing to mend.
            cpu_s = self._cpu_s() - self._tick_cpu_s
            if cpu_s > max(self.limit_s, (now_s - due_s) / 2) and self._unexplained.is_due(NO_REQUEST):
                log.warning(
                    "the event loop was late by %(late_ms)s ms, at most %(cpu_ms)s ms of it CPU time, and no single"
                    " request held it for more than %(limit_ms)s ms: too many requests at once, or work in the"
                    " background",
                    {
                        "late_ms": round((now_s - due_s) * 1000),
                        "cpu_ms": round(cpu_s * 1000),
                        "limit_ms": round(self.limit_s * 1000),
                    },
                )
        self._schedule()


class _WatchedCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are measured."""

    __slots__ = ("_channel", "_code", "_watchdog", "_work")

    def __init__(self, work: Coroutine[Any, Any, Any], watchdog: LoopWatchdog, code: int, channel: Channel) -> None:
        self._work, self._watchdog, self._code, self._channel = work, watchdog, code, channel

    def send(self, value: Any) -> Any:
        began_s = self._watchdog.now_s()
        try:
            return self._work.send(value)
        finally:
            self._end_step(began_s)

    def throw(self, *error: Any) -> Any:
        began_s = self._watchdog.now_s()
        try:
            return self._work.throw(*error)
        finally:
            self._end_step(began_s)

    def _end_step(self, began_s: float) -> None:
        held_s = self._watchdog.now_s() - began_s
        if held_s > self._watchdog.limit_s:
            self._watchdog.note_step(self._code, self._channel, held_s)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()
