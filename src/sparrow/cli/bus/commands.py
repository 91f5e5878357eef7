"""`sparrow bus`: run an event bus, look after its messages, and show what it is."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparrow.cli.bus import actions, messages, stats, worker
from sparrow.cli.bus.location import (
    BusOption,
    DatabaseOption,
    PrefixOption,
    ScanOption,
    SchemaOption,
    bus_extra_required,
    load_bus,
    open_bus,
    unavailable_if_unreachable,
)
from sparrow.model.errors import SettingsError, SparrowError

if TYPE_CHECKING:
    from sparrow.bus.aio import EventBus

app = typer.Typer(help="Run an event bus, and look after its messages.", no_args_is_help=True)
app.command("worker", epilog=worker.EXAMPLES)(worker.worker)
app.command("list")(messages.list_all)
app.command("search")(messages.search)
app.command("show")(messages.show)
actions.register(app)
app.command("stats", epilog=stats.EXAMPLES)(stats.stats)
app.command("failures", epilog=stats.FAILURE_EXAMPLES)(stats.failures)

BusArgument = Annotated[str, typer.Argument(help="The bus in your code: module:bus.", metavar="MODULE:BUS")]
DIALECTS = ("mysql", "postgresql", "sqlite")
_PATIENCE_S = 5.0


@app.command()
def ddl(
    dialect: Annotated[str, typer.Option(help="mysql (also MariaDB), postgresql or sqlite.")],
    schema: Annotated[str, typer.Option(help="PostgreSQL: the schema.")] = "cap",
    table_prefix: Annotated[str, typer.Option(help="Elsewhere: what table names begin with.")] = "cap",
    strict: Annotated[bool, typer.Option("--strict", help="Exactly three tables (strict_tables=True).")] = False,
) -> None:
    """Print the statements that make the tables, for a bus with create_tables=False.

    Example: [bold]sparrow bus ddl --dialect postgresql > bus.sql[/bold]
    """
    with bus_extra_required():
        from sparrow.bus.sql.dialect import DATABASE_KINDS, BusTableNames
        from sparrow.bus.sql.tables import ddl as text_of

    kind = DATABASE_KINDS.get(dialect.lower())
    if kind is None:
        raise SettingsError("dialect", dialect, "the command line", " or ".join(DIALECTS))
    space = schema if kind == "postgresql" else table_prefix
    BusTableNames.of(kind, space)  # refuses what would not stay inside its quotes
    typer.echo(text_of(kind, space, strict=strict), nl=False)


@app.command()
def check(
    bus: BusArgument,
    scan: ScanOption = None,
    offline: Annotated[bool, typer.Option("--offline", help="Only the handlers: ask no database, no broker.")] = False,
) -> None:
    """List the handlers of a bus, and say what would keep it from working. Leaves with 1 if there is anything.

    Example: [bold]sparrow bus check shop.events:bus[/bold]
    """
    found = load_bus(bus, scan)
    found.check()
    console = Console()
    table = Table("group", "topic", "handler", "payload", "kind")
    for group, plan in sorted(found.subscriptions.groups().items()):
        for each in sorted(plan.subscriptions, key=lambda each: each.topic):
            kind = "async" if each.plan.is_async else each.executor
            payload = each.plan.payload_annotation
            shown = "" if payload is None else getattr(payload, "__name__", str(payload))
            table.add_row(*map(escape, (group, each.topic, each.name, shown, kind)))
    console.print(table)
    problems = [] if offline else asyncio.run(_problems(found))
    for problem in problems:
        console.print(f"[red]{escape(problem)}[/red]")
    if problems:
        raise typer.Exit(1)
    console.print("the handlers can be called" if offline else "handlers, database and broker are in order")


async def _problems(bus: EventBus) -> list[str]:
    problems: list[str] = []
    # Its tables are looked for, not made: a check changes nothing.
    bus.core.settings = replace(bus.settings, create_tables=False)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            with unavailable_if_unreachable(bus):
                await bus.prepare()
    except (SparrowError, TimeoutError) as error:
        problems.append(str(error) or f"the database {bus.database} does not answer")
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await bus.core.context.transport.open()
    except Exception as error:  # each client library has its own
        problems.append(f"the broker cannot be used: {str(error) or 'it does not answer'}")
    await bus.core.context.transport.close()
    await bus.database.close()
    return problems


@app.command()
def asyncapi(
    bus: BusArgument,
    scan: ScanOption = None,
    yaml: Annotated[bool, typer.Option("--yaml", help="YAML in place of JSON; needs pyyaml.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file, in place of the screen.")] = None,
    title: Annotated[str | None, typer.Option(help="The document's title; the application's name by default.")] = None,
) -> None:
    """Print what the handlers take as an AsyncAPI 3 document.

    Example: [bold]sparrow bus asyncapi shop.events:bus -o asyncapi.json[/bold]
    """
    found = load_bus(bus, scan)
    from sparrow.bus.asyncapi import asyncapi as document_of
    from sparrow.bus.asyncapi import format_document

    text = format_document(document_of(found, title=title), "yaml" if yaml else "json")
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        typer.echo(f"written to {output}")


@app.command()
def clean(
    bus: BusOption = None,
    database: DatabaseOption = None,
    schema: SchemaOption = "cap",
    table_prefix: PrefixOption = "cap",
) -> None:
    """Delete now what has expired; running buses do so every hour. With --bus its archive is written first.

    Example: [bold]sparrow bus clean --database postgresql://me@db/shop[/bold]
    """

    async def work() -> tuple[int, int, int]:
        from sparrow.bus.worker.maintenance import BusMaintenance

        async with open_bus(bus, database, schema, table_prefix) as found:
            maintenance = BusMaintenance(found.core.context, {}, time.monotonic)
            deleted = await maintenance.delete_expired()
            lost, strays = await maintenance.repair_orphans()
            return deleted, lost, strays

    deleted, lost, strays = asyncio.run(work())
    typer.echo(f"{deleted:,} messages had expired and are deleted")
    if lost or strays:
        typer.echo(f"mended: {lost:,} open messages without a queue row, {strays:,} queue rows without a message")
