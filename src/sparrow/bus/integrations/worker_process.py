"""A process that is nothing but a worker: it runs until Ctrl-C or SIGTERM, and finishes what it has in hand."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparrow.bus.common import AnyEventBus


def run_worker(bus: AnyEventBus, say: Callable[[str], object]) -> None:
    asyncio.run(_work(bus, say))


async def _work(bus: AnyEventBus, say: Callable[[str], object]) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with bus.aio:
        groups = ", ".join(sorted(bus.subscriptions.groups())) or "no group: it only sends"
        say(f"the bus is at work for {groups}")
        await stop.wait()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)  # a second Ctrl-C does not wait
        say("stopping: what is in hand is finished first")
