"""`sparrow bus worker`: relay published messages and run handlers until Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from sparrow.cli import lifecycle
from sparrow.cli.bus.location import BusArgument, ScanOption, load_bus, unavailable_if_unreachable
from sparrow.client.aio.health_server import HealthServer
from sparrow.model.errors import Unavailable

if TYPE_CHECKING:
    from sparrow.bus.aio import EventBus

EXAMPLES = """
Examples:

[bold]sparrow bus worker shop.events:bus[/bold]

[bold]sparrow bus worker shop.events:bus --scan shop.handlers --execute-only[/bold]

[bold]sparrow bus worker shop.events:bus --health-port 8080[/bold]
"""
_RETRY_INTERVAL_S = 2.0


def worker(
    bus: BusArgument,
    relay_only: Annotated[
        bool, typer.Option("--relay-only", help="Relay published messages; run no handlers.")
    ] = False,
    execute_only: Annotated[bool, typer.Option("--execute-only", help="Run handlers; relay nothing.")] = False,
    scan: ScanOption = None,
    health_port: Annotated[
        int | None, typer.Option(help="Answer GET /live and /ready over HTTP on this port; 0: any free one.", min=0)
    ] = None,
    health_host: Annotated[str, typer.Option(help="Address on which --health-port listens.")] = "0.0.0.0",
) -> None:
    """Relay published messages and run the handlers, until Ctrl-C or SIGTERM.

    Several workers may share the tables. The worker waits for a database or a broker that is not reachable yet. When
    it is stopped, it finishes the running handlers and releases what it has not begun.
    """
    if relay_only and execute_only:
        raise typer.BadParameter("give --relay-only or --execute-only, or neither for both")
    found = load_bus(bus, scan)
    found.core.settings = replace(
        found.settings,
        runs_relay=found.settings.runs_relay and not execute_only,
        runs_handlers=found.settings.runs_handlers and not relay_only,
    )
    # A person who reads that something fails must also read that it is over, which is logged at INFO.
    logging.getLogger("sparrow.bus.telemetry.finding_log").setLevel(logging.INFO)
    server = None if health_port is None else HealthServer(found, host=health_host, port=health_port)
    lifecycle.run_until_stopped(lambda stop: _serve(found, server, stop), has_user_code=True)


async def _serve(bus: EventBus, server: HealthServer | None, stop: asyncio.Event) -> None:
    async with AsyncExitStack() as stack:
        if server is not None:
            await stack.enter_async_context(server)
            typer.echo(f"health at http://{server.address}/live and /ready")
        await _work(bus, stop)


async def _work(bus: EventBus, stop: asyncio.Event) -> None:
    started_s = time.perf_counter()
    bus.core.check()
    typer.echo(f"bus {bus.settings.app}, version {bus.settings.version}, tables in {bus.database}")
    if bus.settings.runs_handlers:
        for group, plan in sorted(bus.subscriptions.groups().items()):
            typer.echo(f"group {group}: {', '.join(plan.topics)}")
    if not await _start(bus, stop):
        return
    typer.echo(f"ready after {time.perf_counter() - started_s:.2f} s; {_activity(bus)}; Ctrl-C stops it")
    sys.stdout.flush()
    try:
        await stop.wait()
    finally:
        await bus.stop()
    totals = bus.core.context.probe.totals
    handled = totals['bus_handled_total{result="ok"}']
    typer.echo(f"stopped; {totals['bus_sent_total']:,} sent, {handled:,} handled")


async def _start(bus: EventBus, stop: asyncio.Event) -> bool:
    """Start the bus, waiting for its servers. Return False if `stop` is set before."""
    last_error = ""
    while not stop.is_set():
        try:
            with unavailable_if_unreachable(bus):
                await bus.start()
            return True
        except Unavailable as error:
            await bus.stop()
            if str(error) != last_error:
                typer.secho(f"waiting: {error}", fg=typer.colors.YELLOW, err=True)
            last_error = str(error)
            await _wait(stop, _RETRY_INTERVAL_S)
    return False


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass


def _activity(bus: EventBus) -> str:
    groups = len(bus.subscriptions.groups())
    activities = ["relays published messages"] if bus.settings.runs_relay else []
    if bus.settings.runs_handlers:
        activities.append(f"runs the handlers of {groups} group{'' if groups == 1 else 's'}")
    return " and ".join(activities) or "only maintains the tables"
