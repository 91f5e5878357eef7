"""A worker process: runs the bus until Ctrl-C or SIGTERM, then finishes the running handlers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from sparrow.client.aio.health_server import HealthServer

if TYPE_CHECKING:
    from sparrow.bus.common import AnyEventBus


def run_worker(bus: AnyEventBus, echo: Callable[[str], object], *, health_port: int | None = None) -> None:
    asyncio.run(_work(bus, echo, health_port))


async def _work(bus: AnyEventBus, echo: Callable[[str], object], health_port: int | None) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        if health_port is not None:
            server = await stack.enter_async_context(HealthServer(bus, port=health_port))
            echo(f"Health is at http://{server.address}/live and /ready.")
        await stack.enter_async_context(bus.aio)
        groups = ", ".join(sorted(bus.subscriptions.groups())) or "no group (relay only)"
        echo(f"The bus is running for {groups}.")
        await stop.wait()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)  # a second Ctrl-C stops at once
        echo("Stopping; finishing the running handlers (Ctrl-C again to stop now).")
