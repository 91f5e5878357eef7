"""Broker processes that `sparrow up` starts, restarts when they exit, and stops in order."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from sparrow.cli.server.output import print_ready

_RESTART_DELAY_S = 1.0


async def announce(ready: list[asyncio.Event], data: Path, started_s: float, store: str | None) -> None:
    """Print that the servers are ready, once all are."""
    for event in ready:
        await event.wait()
    print_ready(data, started_s, store)


async def supervise(
    label: str,
    arguments: Sequence[str],
    ready: asyncio.Event,
    stop: asyncio.Event,
    *,
    tells_process: bool = False,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run `sparrow broker --stop-on-stdin-eof` with these arguments, and start it again until `stop` is set.

    `environment` adds variables, such as those with secrets: every user of the machine can read arguments.
    """
    while not stop.is_set():
        # A session of its own: Ctrl-C reaches only this process, which then stops the brokers in order.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sparrow", "broker", "--stop-on-stdin-eof", *arguments),
            stdin=asyncio.subprocess.PIPE,  # closes when this process ends, even by SIGKILL, and so stops the broker
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        if tells_process:
            typer.echo(f"{label} is process {process.pid}")
        forwarding = asyncio.create_task(_forward_output(process, ready))
        exiting, stopping = asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())
        await asyncio.wait([exiting, stopping], return_when="FIRST_COMPLETED")
        if not exiting.done():
            assert process.stdin is not None
            process.stdin.close()  # not SIGTERM: every broker would say that it stops
        await exiting
        await forwarding
        if not stop.is_set():
            typer.secho(f"{label} exited with code {process.returncode}; restarting it", err=True)
            await asyncio.wait([stopping], timeout=_RESTART_DELAY_S)
        stopping.cancel()


async def _forward_output(process: asyncio.subprocess.Process, ready: asyncio.Event) -> None:
    """Print what a broker prints, except its line that it is ready."""
    assert process.stdout is not None
    async for line in process.stdout:
        text = line.decode(errors="replace").rstrip()
        if text.startswith("ready"):
            ready.set()
        else:
            typer.echo(text)
