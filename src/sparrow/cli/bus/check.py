"""`sparrow bus check`: list the handlers of a bus, and check that its database and broker can be used."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparrow.cli.bus.location import BusArgument, ScanOption, load_bus, unavailable_if_unreachable
from sparrow.cli.exit_codes import ExitCode
from sparrow.cli.output import JsonOption, print_json
from sparrow.model.errors import SparrowError

if TYPE_CHECKING:
    from sparrow.bus.aio import EventBus

_CHECK_TIMEOUT_S = 5.0


class HandlerRow(msgspec.Struct, frozen=True):
    """A handler of a bus."""

    group: str
    topic: str
    handler: str
    payload: str
    """The type of its payload; empty if it takes none."""
    kind: str
    """async, thread or process: where it runs."""


class BusCheck(msgspec.Struct, frozen=True):
    """What `sparrow bus check` found."""

    handlers: list[HandlerRow]
    problems: list[str]
    """Why the database or the broker cannot be used; empty if both can."""
    is_offline: bool
    """Whether database and broker were left out."""


def check(
    bus: BusArgument,
    scan: ScanOption = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Check the handlers only, without database and broker.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the handlers of a bus, and check that its database and broker can be used. Exit with 1 if not.

    Example: [bold]sparrow bus check shop.events:bus[/bold]
    """
    found = load_bus(bus, scan)
    found.core.check()
    result = BusCheck(_handlers(found), [] if offline else asyncio.run(_problems(found)), offline)
    if as_json:
        print_json(result)
    else:
        _print(result)
    if result.problems:
        raise typer.Exit(ExitCode.FAILED)


def _print(result: BusCheck) -> None:
    console = Console()
    table = Table("group", "topic", "handler", "payload", "kind")
    for row in result.handlers:
        table.add_row(*map(escape, msgspec.structs.astuple(row)))
    console.print(table)
    for problem in result.problems:
        console.print(f"[red]{escape(problem)}[/red]")
    if not result.problems:
        console.print("the handlers are valid" if result.is_offline else "handlers, database and broker are usable")


def _handlers(bus: EventBus) -> list[HandlerRow]:
    rows = []
    for group, plan in sorted(bus.subscriptions.groups().items()):
        for each in sorted(plan.subscriptions, key=lambda each: each.topic):
            payload = each.plan.payload_annotation
            shown = "" if payload is None else getattr(payload, "__name__", str(payload))
            kind = "async" if each.plan.is_async else each.executor
            rows.append(HandlerRow(group, each.topic, each.name, shown, kind))
    return rows


async def _problems(bus: EventBus) -> list[str]:
    problems: list[str] = []
    # A check must not create tables.
    bus.core.settings = replace(bus.settings, create_tables=False)
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            with unavailable_if_unreachable(bus):
                await bus.prepare()
    except (SparrowError, TimeoutError) as error:
        problems.append(str(error) or f"the database {bus.database} did not answer within {_CHECK_TIMEOUT_S:g} s")
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            await bus.core.context.transport.open()
    except Exception as error:  # each client library has its own exceptions
        problems.append(f"cannot use the broker: {str(error) or f'no answer within {_CHECK_TIMEOUT_S:g} s'}")
    await bus.core.context.transport.close()
    await bus.database.close()
    return problems
