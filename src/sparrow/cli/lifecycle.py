"""Runs servers until somebody asks to stop: Ctrl-C, or SIGTERM. A second Ctrl-C does not wait."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import typer
import uvloop

ServeUntilStopped = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Serves until the event is set, then stops in order."""


def run_until_stopped(serve: ServeUntilStopped) -> None:
    uvloop.run(_until_stopped(serve))


async def _until_stopped(serve: ServeUntilStopped) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def asked() -> None:
        if stop.is_set():
            raise SystemExit(130)
        typer.echo("\nstopping: what is in hand is finished first", err=True)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    await serve(stop)
