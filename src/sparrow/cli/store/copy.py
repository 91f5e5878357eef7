"""`sparrow store copy`: copy topics, groups, offsets and tokens from one store to another."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sparrow.cli.settings import load_settings
from sparrow.cli.store.location import open_store, store_identity
from sparrow.databases.url import is_database_url
from sparrow.model.topic import validate_topic_name
from sparrow.store.copy import copier
from sparrow.store.sql.schema.table_names import validate_new_topic

EXAMPLES = """
Examples:

[bold]sparrow store copy ./sparrow-data mysql://me@db/messages[/bold]

[bold]sparrow store copy ./sparrow-data sqlite:///orders.db --topic Orders --rename Orders=orders[/bold]

[bold]sparrow store copy postgresql://me@db/messages ./restored[/bold]
"""


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="URL of a database, or directory of a stopped broker.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The same; may be new or empty.")],
    topic: Annotated[list[str] | None, typer.Option(help="Topic to copy; may be repeated. Default: all.")] = None,
    rename: Annotated[
        list[str] | None, typer.Option(help="New name of a topic; may be repeated.", metavar="OLD=NEW")
    ] = None,
) -> None:
    """Copy topics, groups, offsets and tokens to another store.

    After an interruption, run it again: it continues where it stopped and copies nothing twice.
    """
    renames = dict(_parse_rename(pair) for pair in rename or ())
    done = asyncio.run(_copy(source, target, topic or [], renames))
    typer.echo(
        f"{done.messages:,} messages of {done.topics:,} topics copied,"
        f" {done.groups:,} groups, {done.offsets:,} offsets, {done.tokens:,} tokens"
    )
    for note in done.notes:
        typer.echo(f"note: {note}")


def _parse_rename(pair: str) -> tuple[str, str]:
    old, middle, new = pair.partition("=")
    if not (old and middle and new):
        raise typer.BadParameter(f"{pair!r} is not a pair of names: use OLD=NEW")
    return old, new


async def _copy(source: str, target: str, topics: list[str], renames: dict[str, str]) -> copier.CopyReport:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    check_name = (
        partial(validate_new_topic, allowed=load_settings().sql.topic_names)
        if is_database_url(target)
        else validate_topic_name
    )
    async with open_store(source) as read, open_store(target, is_new=True) as written:
        with Progress(*columns, console=Console(stderr=True)) as bar:
            work = bar.add_task("copying", total=None)
            return await copier.copy_store(
                read,
                written,
                source_name=store_identity(source),
                chosen=topics,
                renames=renames,
                check_name=check_name,
                progress=lambda done, total, topic: bar.update(
                    work, completed=done, total=total, description=topic or "copied"
                ),
            )
