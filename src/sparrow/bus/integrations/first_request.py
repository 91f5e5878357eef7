"""A bus in a thread of a process that serves requests, and has no word for its own start.

It starts with the first request, which comes after a server has forked its workers, and stops when the process ends.
"""

from __future__ import annotations

import atexit
import contextvars
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from sparrow.model.errors import Refused

if TYPE_CHECKING:
    from sparrow.bus.common import AnyEventBus


class StartOnFirstRequest:
    """Call it at every request; only the first one does anything."""

    def __init__(self, bus: AnyEventBus, *, start: bool) -> None:
        """`start=False`: only make the tables; some other process sends and handles."""
        self._bus, self._start = bus, start
        self._lock = threading.Lock()
        self._pid: int | None = None

    def __call__(self) -> None:
        if self._pid == os.getpid():
            return
        with self._lock:
            if self._pid == os.getpid():
                return
            if self._pid is not None and self._start:
                raise Refused(
                    "the bus was started before this process was forked, and threads do not survive that: "
                    "let the first request come after the fork"
                )
            # In a context of its own: its tasks would keep what belongs to this request for ever.
            contextvars.Context().run(self._begin)
            self._pid = os.getpid()

    def _begin(self) -> None:
        if not self._start:
            self._bus.blocking.prepare()
        elif not self._bus.is_running:
            self._bus.blocking.start()
            at_exit(self._bus.blocking.stop)


def at_exit(call: Callable[[], None]) -> None:
    """Before thread pools are shut, if that can be had: stopping needs them, and atexit comes after."""
    register: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
    register(call)
