"""`sparrow up --shards`: one name server and several broker processes, which are restarted when they exit."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import typer

from sparrow.cli.server.output import port_flag, print_name_server, print_ready
from sparrow.settings import Settings

SHARD_PORT_STEP = 10
"""RocketMQ's brokers also use the ports next to their own, and tools may expect them to be free."""
_RESTART_DELAY_S = 1.0


async def serve_shards(settings: Settings, data: Path, shards: int, stop: asyncio.Event) -> None:
    """Run the name server in this process, and each broker in a process of its own."""
    from sparrow.nameserver.server import NameServer

    started_s = time.perf_counter()
    server = NameServer(settings.name_server, kv_path=data / "naming.json")
    with port_flag("--name-server-port"):
        await server.start()
    try:
        print_name_server(str(server.address))
        ready = [asyncio.Event() for _ in range(shards)]
        supervisors = [
            asyncio.create_task(_supervise(settings, data, number, str(server.address), ready[number], stop))
            for number in range(shards)
        ]
        announcement = asyncio.create_task(_announce(ready, data, started_s, settings.broker.store))
        await asyncio.gather(*supervisors)
        announcement.cancel()
    finally:
        await server.stop()


async def _announce(ready: list[asyncio.Event], data: Path, started_s: float, store: str | None) -> None:
    for event in ready:
        await event.wait()
    print_ready(data, started_s, store)


async def _supervise(
    settings: Settings, data: Path, number: int, name_servers: str, ready: asyncio.Event, stop: asyncio.Event
) -> None:
    """Run one shard, and start it again until `stop` is set."""
    arguments = _shard_arguments(settings, data, number, name_servers)
    while not stop.is_set():
        # A session of its own: Ctrl-C reaches only this process, which then stops the shards in order.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sparrow", "broker", *arguments),
            stdin=asyncio.subprocess.PIPE,  # closes when this process ends, even by SIGKILL, and so stops the shard
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        forwarding = asyncio.create_task(_forward_output(process, ready))
        exiting, stopping = asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())
        await asyncio.wait([exiting, stopping], return_when="FIRST_COMPLETED")
        if not exiting.done():
            process.terminate()
        await exiting
        await forwarding
        if not stop.is_set():
            typer.secho(f"shard {number} exited with code {process.returncode}; restarting it", err=True)
            await asyncio.wait([stopping], timeout=_RESTART_DELAY_S)
        stopping.cancel()


def _shard_arguments(settings: Settings, data: Path, number: int, name_servers: str) -> list[str]:
    broker = settings.broker
    port = broker.port + SHARD_PORT_STEP * number if broker.port else 0
    # Shards on one database share one broker name; one of them leads.
    name = broker.name if broker.store else f"{broker.name}-{number}"
    arguments = ["--name", name, "--host", broker.host, "--port", str(port), "--name-servers", name_servers]
    arguments += ["--data", str(data / f"shard-{number}"), "--flush", settings.log.flush, "--stop-on-stdin-eof"]
    if broker.advertised_host:
        arguments += ["--advertised-host", broker.advertised_host]
    if broker.store:
        arguments += ["--store", broker.store]
    return arguments


async def _forward_output(process: asyncio.subprocess.Process, ready: asyncio.Event) -> None:
    """Print what a shard prints, except its line that it is ready."""
    assert process.stdout is not None
    async for line in process.stdout:
        text = line.decode(errors="replace").rstrip()
        if text.startswith("ready"):
            ready.set()
        else:
            typer.echo(text)
