"""`sparrow store check`: verify a store; `sparrow store skip-ids`: continue a database lane after a loss."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sparrow import clock
from sparrow.cli.exit_codes import ExitCode
from sparrow.cli.output import JsonOption, print_json, print_table
from sparrow.cli.store.location import find_database, find_log_directory
from sparrow.databases.url import is_database_url
from sparrow.store.log import LogStore
from sparrow.store.sql.drivers.database import StoreDatabase, open_database
from sparrow.store.sql.maintenance.check import check_store, skip_ids
from sparrow.store.sql.maintenance.lane_check import CheckFinding

Url = Annotated[str, typer.Argument(help="URL of a database: mysql://…, postgresql://… or sqlite:///path.")]


class StoreFinding(msgspec.Struct, frozen=True):
    """Something that is wrong in a store."""

    where: str
    """A table, a topic, or the log."""
    what: str


def check(
    store: Annotated[str, typer.Argument(help="URL of a database, or directory of a stopped broker.")],
    as_json: JsonOption = False,
) -> None:
    """Check a whole store for inconsistencies. Exit with 1 if there are any.

    A database may be in use, and is not changed.

    Example: [bold]sparrow store check postgresql://me@db/messages[/bold]
    """
    if is_database_url(store):
        findings = asyncio.run(_check_database(store))
        subject = "the database"
    else:
        findings = _check_log(find_log_directory(Path(store)))
        subject = "the log, which is checked whenever it is opened,"
    if as_json:
        print_json([StoreFinding(*finding) for finding in findings])
    elif findings:
        print_table(("where", "what"), findings)
    else:
        typer.echo(f"{subject} is consistent")
    if findings:
        raise typer.Exit(ExitCode.FAILED)


async def _check_database(url: str) -> list[CheckFinding]:
    find_database(url)
    database = await open_database(url, connections_max=2)
    columns = (TextColumn("checking rows"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True)) as bar:
            work = bar.add_task("", total=None)
            return await check_store(database, lambda done, total: bar.update(work, completed=done, total=total))
    finally:
        await database.close()


def _check_log(directory: Path) -> list[CheckFinding]:
    with LogStore(directory) as store:
        return [
            CheckFinding("commitlog", f"bytes {damage.start:,} to {damage.end:,} are damaged and skipped")
            for damage in store.damage
        ]


def skip(
    url: Url,
    lane: Annotated[int, typer.Option(help="Number of the lane, as in the table hermes_lane.")],
    to: Annotated[int, typer.Option(help="Id of the next message.", min=2)],
    reason: Annotated[str, typer.Option(help="Reason, which is stored with the gap.")],
) -> None:
    """Continue a lane of a database at a higher id after a loss, so that no id is assigned twice.

    Example: [bold]sparrow store skip-ids mysql://me@db/messages --lane 4 --to 90001 --reason "backup of Monday"[/bold]
    """
    find_database(url)
    gaps = asyncio.run(_skip(url, lane, to, reason))
    typer.echo(f"lane {lane} continues at {to:,}; {sum(end - start for start, end in gaps):,} ids stay unused")


async def _skip(url: str, lane: int, to: int, reason: str) -> list[tuple[int, int]]:
    database: StoreDatabase = await open_database(url, connections_max=2)
    try:
        return await skip_ids(database, lane, to, reason, clock.now_ms())
    finally:
        await database.close()
