"""Run a server until Ctrl-C or SIGTERM. A second Ctrl-C ends the process at once."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import typer

from sparrow.client.blocking.loop_thread import new_event_loop

ServeUntilStopped = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Serves until the event is set, then stops in order."""

_INTERRUPTED_EXIT_CODE = 130


def run_until_stopped(serve: ServeUntilStopped) -> None:
    """Run `serve` on an event loop of its own, and set its event on the first signal."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve_with_signals(serve))


async def _serve_with_signals(serve: ServeUntilStopped) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            raise SystemExit(_INTERRUPTED_EXIT_CODE)
        typer.echo("\nStopping; finishing requests in progress (Ctrl-C again to stop now).", err=True)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    await serve(stop)


def stop_on_stdin_eof(stop: asyncio.Event) -> None:
    """Set the event when standard input ends: the parent process has stopped, or was killed."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def on_end() -> None:
        loop.remove_reader(descriptor)  # the end stays readable
        stop.set()

    loop.add_reader(descriptor, on_end)
