"""`sparrow bus stats` and `failures`: message counts, backlogs and errors."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from sparrow.cli.bus.location import BusLocation, unavailable_if_unreachable
from sparrow.cli.output import JsonOption, print_json, print_json_line
from sparrow.cli.parameter_groups import with_parameter_groups

if TYPE_CHECKING:
    from sparrow.bus.operations.stored_event import BusStats, GroupBacklog, RowCount

EXAMPLES = """
Examples:

[bold]sparrow bus stats --bus shop.events:bus[/bold]

[bold]sparrow bus stats --database postgresql://me@db/shop --topics --watch[/bold]
"""
FAILURE_EXAMPLES = """
Example:

[bold]sparrow bus failures --bus shop.events:bus[/bold]
"""


@with_parameter_groups
def stats(
    topics: Annotated[bool, typer.Option("--topics", help="Also by topic; reads every open message.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(help="Interval of --watch, in seconds.", min=0.1)] = 2.0,
    *,
    location: BusLocation,
    as_json: JsonOption = False,
) -> None:
    """Count messages by state, and show the backlog of each group. Fast, however large the tables are."""

    async def work() -> None:
        async with location.open() as bus:

            async def read_stats() -> tuple[BusStats, list[GroupBacklog]]:
                with unavailable_if_unreachable(bus):
                    backlog = await bus.operations.backlog(by_name=True) if topics else []
                    return await bus.operations.stats(), backlog

            if as_json:
                from sparrow.cli.bus.json_rows import stats_report

                show = print_json_line if watch else print_json
                show(stats_report(*await read_stats()))
                while watch:
                    await asyncio.sleep(every)
                    show(stats_report(*await read_stats()))
                return
            tables = _tables(*await read_stats())
            if not watch:
                Console().print(tables)
                return
            with Live(tables, auto_refresh=False) as live:
                while True:
                    await asyncio.sleep(every)
                    live.update(_tables(*await read_stats()), refresh=True)

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(work())


@with_parameter_groups
def failures(
    location: BusLocation,
    as_json: JsonOption = False,
) -> None:
    """Show failed messages by kind of error."""

    async def work() -> list[Any]:
        async with location.open() as bus:
            return list(await bus.operations.failures())

    kinds = asyncio.run(work())
    if as_json:
        from sparrow.cli.bus.json_rows import failure_row

        print_json([failure_row(each) for each in kinds])
        return
    table = Table("table", "failed", "parked", "error", "topics", "groups", "last")
    for each in kinds:
        last = each.last_added.strftime("%Y-%m-%d %H:%M:%S UTC")
        cells = (escape(each.error), ", ".join(each.names), ", ".join(each.groups), last)
        table.add_row(each.side, f"{each.count:,}", f"{each.parked:,}", *cells)
    Console().print(table if kinds else "no failed messages")


def _tables(stats: BusStats, topics: list[GroupBacklog]) -> Group:
    states = Table("", "published", "received", title="messages")
    published, received = stats.sides
    for status in published.by_status:
        states.add_row(status, f"{published.by_status[status]:,}", f"{received.by_status[status]:,}")
    states.add_row("  parked", f"{published.parked:,}", f"{received.parked:,}")
    states.add_row("Successed", _total(published.succeeded), _total(received.succeeded))
    states.add_row("oldest open", _age(published.oldest_open_s), _age(received.oldest_open_s))
    tables = [states]
    groups = [each for side in stats.sides for each in side.groups]
    if groups:
        tables.append(_backlog("open work", groups))
    if topics:
        tables.append(_backlog("by topic", topics))
    return Group(*tables)


def _backlog(title: str, found: list[GroupBacklog]) -> Table:
    by_topic = found[0].name is not None
    table = Table("group", *(["topic"] if by_topic else []), "open", "in work", "due", "waiting for", title=title)
    for each in found:
        group = escape(each.group) if each.side == "received" else "(to be sent)"
        names = (group, escape(each.name or "")) if by_topic else (group,)
        table.add_row(*names, f"{each.open:,}", f"{each.held:,}", f"{each.due:,}", _age(each.lag_s))
    return table


def _total(total: RowCount) -> str:
    return f"{total.count:,}" if total.is_exact else f"about {total.count:,}"


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds else "-"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
