"""`sparrow up --shards`: one name server and several broker processes, which are restarted when they exit."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

from sparrow.cli.server.broker_process import announce, supervise
from sparrow.cli.server.console_process import running_console
from sparrow.cli.server.first_administrator import administrator_environment
from sparrow.cli.server.output import port_flag, print_name_server
from sparrow.cli.server.platform import guarded_like
from sparrow.cli.server.telemetry_endpoint import print_metrics, telemetry_endpoint
from sparrow.settings import Settings

STORE_VARIABLE = "SPARROW_BROKER__STORE"
"""The environment variable that sets the URL of the database."""
SHARD_PORT_STEP = 10
"""RocketMQ's brokers also use the ports next to their own, and tools may expect them to be free."""


async def serve_shards(settings: Settings, data: Path, shards: int, stop: asyncio.Event) -> None:
    """Run the name server in this process, and each broker in a process of its own."""
    from sparrow.nameserver.server import NameServer

    started_s = time.perf_counter()
    has_metrics = settings.telemetry.metrics_port is not None
    guarded = guarded_like(settings.broker, settings.name_server)
    server = NameServer(guarded, kv_path=data / "naming.json", has_metrics=has_metrics)
    with port_flag("--name-server-port"):
        await server.start()
    stack = AsyncExitStack()
    try:
        endpoint = await stack.enter_async_context(telemetry_endpoint(settings.telemetry, [server]))
        print_name_server(str(server.address))
        print_metrics(endpoint)
        ready = [asyncio.Event() for _ in range(shards)]
        supervisors = [
            asyncio.create_task(
                supervise(
                    f"shard {number}",
                    _shard_arguments(settings, data, number, str(server.address)),
                    ready[number],
                    stop,
                    environment=_shard_environment(settings),
                )
            )
            for number in range(shards)
        ]
        announcement = asyncio.create_task(announce(ready, data, started_s, settings.broker.store))
        async with running_console(settings, str(server.address), data):
            await asyncio.gather(*supervisors)
        announcement.cancel()
    finally:
        await server.stop()
        await stack.aclose()


def _shard_arguments(settings: Settings, data: Path, number: int, name_servers: str) -> list[str]:
    broker = settings.broker
    port = broker.port + SHARD_PORT_STEP * number if broker.port else 0
    # Shards on one database share one broker name; one of them leads.
    name = broker.name if broker.store else f"{broker.name}-{number}"
    arguments = ["--name", name, "--host", broker.host, "--port", str(port), "--name-servers", name_servers]
    if settings.telemetry.metrics_port is not None:
        # The name server's process has the port itself; each shard has one of its own.
        metrics_port = settings.telemetry.metrics_port
        arguments += ["--metrics-port", str(metrics_port + 1 + number if metrics_port else 0)]
        arguments += ["--metrics-host", settings.telemetry.metrics_host]
    arguments += ["--log-format", settings.telemetry.log_format]
    arguments += ["--data", str(data / f"shard-{number}"), "--flush", settings.log.flush]
    if broker.advertised_host:
        arguments += ["--advertised-host", broker.advertised_host]
    return arguments


def _shard_environment(settings: Settings) -> dict[str, str]:
    """Return the settings that contain secrets: the URL of the database, and the first administrator."""
    store = settings.broker.store
    return ({STORE_VARIABLE: store} if store else {}) | administrator_environment(settings)
