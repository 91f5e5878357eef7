"""Starting the bus with the first request, for servers without a start event.

The first request comes after the server has forked its workers. The bus runs in a thread and stops when the process
ends.
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
    """Starts the bus when it is called for the first time; call it at every request."""

    def __init__(self, bus: AnyEventBus, *, start: bool) -> None:
        """Create the hook; with `start=False` it only creates the tables."""
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
                    "the bus was started before this process was forked, and its threads do not exist in the child: "
                    "start it after the fork"
                )
            # In an empty context: the tasks must not keep values of this request.
            contextvars.Context().run(self._begin)
            self._pid = os.getpid()

    def _begin(self) -> None:
        if not self._start:
            self._bus.blocking.prepare()
        elif not self._bus.is_running:
            self._bus.blocking.start()
            at_exit(self._bus.blocking.stop)


def at_exit(call: Callable[[], None]) -> None:
    """Call a function before thread pools are shut down, if Python allows it: stopping needs them."""
    register: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
    register(call)
