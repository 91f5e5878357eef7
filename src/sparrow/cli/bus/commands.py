"""`sparrow bus`: the subcommands, and those without a module of their own: ddl, asyncapi, clean."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer

from sparrow.cli.bus import actions, check, messages, stats, worker
from sparrow.cli.bus.location import BusArgument, BusLocation, ScanOption, bus_extra_required, load_bus
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.model.errors import SettingsError

app = typer.Typer(help="Run an event bus, and inspect and change its messages.", no_args_is_help=True)
app.command("worker", epilog=worker.EXAMPLES)(worker.worker)
app.command("list")(messages.list_all)
app.command("search")(messages.search)
app.command("show")(messages.show)
actions.register(app)
app.command("stats", epilog=stats.EXAMPLES)(stats.stats)
app.command("failures", epilog=stats.FAILURE_EXAMPLES)(stats.failures)
app.command("check")(check.check)

DIALECTS = ("mysql", "postgresql", "sqlite")


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
