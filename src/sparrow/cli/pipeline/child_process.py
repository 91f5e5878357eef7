"""The end of a process that runs a pipeline as a child of another one: the console, or the demo."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import NoReturn

SHUTDOWN_TIMEOUT_S = 10.0
"""How long a clean stop may take: without a broker Spark might retry for a minute."""


def stop_with_input() -> None:
    """Interrupt this process when it gets SIGTERM, or when standard input ends: then the parent process is gone.

    It stops within `SHUTDOWN_TIMEOUT_S` at the latest, and must be the leader of a process group, so that Java can be
    killed.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_wait_for_input_end, name="sparrow-parent", daemon=True).start()


def _interrupt(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the shutdown
    raise KeyboardInterrupt


def _wait_for_input_end() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(SHUTDOWN_TIMEOUT_S)
    os.killpg(0, signal.SIGKILL)
