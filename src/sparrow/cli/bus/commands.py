"""`sparrow bus`: the subcommands, and those without a module of their own: ddl, check, asyncapi, clean."""

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
from sparrow.cli.bus.location import BusLocation, ScanOption, bus_extra_required, load_bus, unavailable_if_unreachable
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.model.errors import SettingsError, SparrowError

if TYPE_CHECKING:
    from sparrow.bus.aio import EventBus

app = typer.Typer(help="Run an event bus, and inspect and change its messages.", no_args_is_help=True)
app.command("worker", epilog=worker.EXAMPLES)(worker.worker)
app.command("list")(messages.list_all)
app.command("search")(messages.search)
app.command("show")(messages.show)
actions.register(app)
app.command("stats", epilog=stats.EXAMPLES)(stats.stats)
app.command("failures", epilog=stats.FAILURE_EXAMPLES)(stats.failures)

BusArgument = Annotated[str, typer.Argument(help="The bus in your code: module:bus.", metavar="MODULE:BUS")]
DIALECTS = ("mysql", "postgresql", "sqlite")
_CHECK_TIMEOUT_S = 5.0


@app.command()
def ddl(
    dialect: Annotated[str, typer.Option(help="mysql (also MariaDB), postgresql or sqlite.")],
    schema: Annotated[str, typer.Option(help="Schema of the tables on PostgreSQL.")] = "cap",
    table_prefix: Annotated[str, typer.Option(help="Prefix of the table names elsewhere.")] = "cap",
    strict: Annotated[
        bool, typer.Option("--strict", help="Only the three tables of CAP (strict_tables=True).")
    ] = False,
) -> None:
    """Print the SQL statements that create the tables, for a bus with create_tables=False.

    Example: [bold]sparrow bus ddl --dialect postgresql > bus.sql[/bold]
    """
    with bus_extra_required():
        from sparrow.bus.sql.dialect import DATABASE_KINDS, BusTableNames
        from sparrow.bus.sql.tables import ddl as text_of

    kind = DATABASE_KINDS.get(dialect.lower())
    if kind is None:
        raise SettingsError("dialect", dialect, "the command line", " or ".join(DIALECTS))
    space = schema if kind == "postgresql" else table_prefix
    BusTableNames.of(kind, space)  # refuses names that cannot be quoted
    typer.echo(text_of(kind, space, strict=strict), nl=False)


@app.command()
def check(
    bus: BusArgument,
    scan: ScanOption = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Check the handlers only, without database and broker.")
    ] = False,
) -> None:
    """List the handlers of a bus, and check that its database and broker can be used. Exit with 1 if not.

    Example: [bold]sparrow bus check shop.events:bus[/bold]
    """
    found = load_bus(bus, scan)
    found.core.check()
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
    console.print("the handlers are valid" if offline else "handlers, database and broker are usable")


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


@app.command()
def asyncapi(
    bus: BusArgument,
    scan: ScanOption = None,
    yaml: Annotated[bool, typer.Option("--yaml", help="YAML instead of JSON; needs pyyaml.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write, instead of standard output.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the document; by default the application's name.")] = None,
) -> None:
    """Print an AsyncAPI 3 document of the topics and payloads of the handlers.

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
        typer.echo(f"wrote {output}")


@app.command()
@with_parameter_groups
def clean(
    location: BusLocation,
) -> None:
    """Delete expired messages now; running buses do so every hour. With --bus, its archive is written first.

    Example: [bold]sparrow bus clean --database postgresql://me@db/shop[/bold]
    """

    async def work() -> tuple[int, int, int]:
        from sparrow.bus.worker.maintenance import BusMaintenance

        async with location.open() as bus:
            maintenance = BusMaintenance(bus.core.context, {}, time.monotonic)
            deleted = await maintenance.delete_expired()
            lost, strays = await maintenance.repair_orphans()
            return deleted, lost, strays

    deleted, lost, strays = asyncio.run(work())
    typer.echo(f"deleted {deleted:,} expired messages")
    if lost or strays:
        typer.echo(f"repaired {lost:,} open messages without a queue row and {strays:,} queue rows without a message")
