"""Run a server until Ctrl-C or SIGTERM. A second Ctrl-C ends the process at once."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import typer

from sparrow.cli.garbage_collection import keep_collections_rare
from sparrow.client.blocking.loop_thread import new_event_loop

ServeUntilStopped = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Serves until the event is set, then stops in order."""

_INTERRUPTED_EXIT_CODE = 130
_SWITCH_INTERVAL_S = 0.002
"""How long a busy thread keeps the event loop waiting for the interpreter, each time the loop has read or written."""


def run_until_stopped(serve: ServeUntilStopped, *, has_user_code: bool = False) -> None:
    """Run `serve` on an event loop of its own, and set its event on the first signal.

    `has_user_code`: the process runs handlers of users, which may leave more to Python's garbage collector than we do.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve_with_signals(serve if has_user_code else partial(_serve_with_rare_collections, serve)))


async def _serve_with_rare_collections(serve: ServeUntilStopped, stop: asyncio.Event) -> None:
    collecting = asyncio.create_task(keep_collections_rare(), name="garbage collection")
    try:
        await serve(stop)
    finally:
        collecting.cancel()


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
