"""`sparrow bus worker`: relay published messages and run handlers until Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from sparrow.cli import lifecycle
from sparrow.cli.bus.location import ScanOption, load_bus, unavailable_if_unreachable
from sparrow.model.errors import Unavailable

if TYPE_CHECKING:
    from sparrow.bus.aio import EventBus

EXAMPLES = """
Examples:

[bold]sparrow bus worker shop.events:bus[/bold]

[bold]sparrow bus worker shop.events:bus --scan shop.handlers --execute-only[/bold]
"""
_HEALTH_INTERVAL_S = 1.0
_RETRY_INTERVAL_S = 2.0
_NEW_LINE = "\n"


def worker(
    bus: Annotated[str, typer.Argument(help="The bus in your code: module:bus.", metavar="MODULE:BUS")],
    relay_only: Annotated[
        bool, typer.Option("--relay-only", help="Relay published messages; run no handlers.")
    ] = False,
    execute_only: Annotated[bool, typer.Option("--execute-only", help="Run handlers; relay nothing.")] = False,
    scan: ScanOption = None,
) -> None:
    """Relay published messages and run the handlers, until Ctrl-C.

    Several workers may share the tables. The worker waits for a database or a broker that is not reachable yet.
    """
    if relay_only and execute_only:
        raise typer.BadParameter("give --relay-only or --execute-only, or neither for both")
    found = load_bus(bus, scan)
    found.core.settings = replace(
        found.settings,
        runs_relay=found.settings.runs_relay and not execute_only,
        runs_handlers=found.settings.runs_handlers and not relay_only,
    )
    logging.getLogger("sparrow.bus.worker.supervision").addFilter(_drop_traceback)
    lifecycle.run_until_stopped(lambda stop: _work(found, stop))


def _drop_traceback(record: logging.LogRecord) -> bool:
    """Log an unreachable server without a traceback, which would not help to find the cause."""
    from sparrow.bus.sql.database import is_unreachable

    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, Unavailable) or (error is not None and is_unreachable(error)):
        record.exc_info = None
    return True


async def _work(bus: EventBus, stop: asyncio.Event) -> None:
    started_s = time.perf_counter()
    bus.check()
    typer.echo(f"bus {bus.settings.app}, version {bus.settings.version}, tables in {bus.database}")
    if bus.settings.runs_handlers:
        for group, plan in sorted(bus.subscriptions.groups().items()):
            typer.echo(f"group {group}: {', '.join(plan.topics)}")
    if not await _start(bus, stop):
        return
    typer.echo(f"ready after {time.perf_counter() - started_s:.2f} s; {_activity(bus)}; Ctrl-C stops it")
    sys.stdout.flush()
    try:
        await _watch(bus, stop)
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


async def _watch(bus: EventBus, stop: asyncio.Event) -> None:
    """Print which parts of the bus fail, and when they recover."""
    known: dict[str, str] = {}
    while not stop.is_set():
        await _wait(stop, _HEALTH_INTERVAL_S)
        problems = bus.problems()
        for name in known.keys() - problems.keys():
            typer.secho(f"{name}: recovered", fg=typer.colors.GREEN, err=True)
        for name, problem in problems.items():
            if known.get(name) != problem:
                typer.secho(f"{name}: {problem.partition(_NEW_LINE)[0]}", fg=typer.colors.YELLOW, err=True)
        known = problems


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
