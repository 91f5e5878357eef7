"""Buses as the command line names them: `module:bus`, or the URL of the database their tables are in."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparrow.model.errors import SettingsError, Unavailable

if TYPE_CHECKING:  # SQLAlchemy is an extra: `sparrow up` does without
    from sqlalchemy import Connection

    from sparrow.bus.aio import EventBus

BusOption = Annotated[
    str | None,
    typer.Option("--bus", "-b", help="Where it is in your code.", metavar="MODULE:BUS", envvar="SPARROW_BUS"),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        "-d",
        help="Or the database its tables are in: mysql://…, postgresql://… or sqlite:///…",
        metavar="URL",
        envvar="SPARROW_BUS_DATABASE",
    ),
]
SchemaOption = Annotated[str, typer.Option(help="With --database, on PostgreSQL: the schema.")]
PrefixOption = Annotated[str, typer.Option(help="With --database, elsewhere: what table names begin with.")]
ScanOption = Annotated[
    list[str] | None, typer.Option(help="A package whose modules declare handlers; may be repeated.", metavar="PACKAGE")
]


def load_bus(word: str, scan: list[str] | None = None) -> EventBus:
    """The bus in somebody's module, or what a function there makes. Modules in the current folder are found."""
    with bus_extra_required():
        from sparrow.bus.common import AnyEventBus
        from sparrow.bus.handlers.discovery import import_object

    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found = import_object(word)
    if not isinstance(found, AnyEventBus) and callable(found):
        found = found()
    if not isinstance(found, AnyEventBus):
        raise SettingsError(
            "bus", word, "the command line", f"the name of an EventBus (this is a {type(found).__name__})"
        )
    for package in scan or ():
        found.subscriptions.scan(package)
    return found.aio


@asynccontextmanager
async def open_bus(bus: str | None, database: str | None, schema: str, table_prefix: str) -> AsyncIterator[EventBus]:
    """Its tables, ready to be looked at; nothing runs, and nothing is made."""
    if (bus is None) == (database is None):
        raise typer.BadParameter("say which bus: --bus module:bus, or --database URL")
    opened = load_bus(bus) if bus is not None else _on_database(database or "", schema, table_prefix)
    opened.core.settings = replace(opened.settings, create_tables=False)
    try:
        with unavailable_if_unreachable(opened):
            await opened.prepare()
            if database is not None:
                await _find_inbox(opened)
        yield opened
    finally:
        await opened.database.close()


@contextmanager
def unavailable_if_unreachable(bus: EventBus) -> Iterator[None]:
    """What a driver says of a server that is not there, as a sentence."""
    from sqlalchemy.exc import SQLAlchemyError

    from sparrow.bus.sql.database import is_unreachable

    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        if not is_unreachable(error):
            raise
        cause = getattr(error, "orig", None) or error
        raise Unavailable(f"the database {bus.database} cannot be used: {cause}") from error


def _on_database(url: str, schema: str, table_prefix: str) -> EventBus:
    with bus_extra_required():
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

        from sparrow.bus.aio import EventBus

    suggestion = "mysql://…, postgresql://… or sqlite:///file"
    try:
        known = make_url(url)
        made = EventBus(known, "memory://", schema=schema, table_prefix=table_prefix, strict_tables=True)
    except ArgumentError as error:
        # No more of it than this: there may be a password in the rest.
        raise SettingsError("database", url.partition(":")[0], "the command line", suggestion) from error
    # Of a SQLite file that is not there one would be made.
    if made.database.kind == "sqlite" and not Path(known.database or "").is_file():
        raise SettingsError("database", str(made.database), "the command line", "a file that is there")
    return made


async def _find_inbox(bus: EventBus) -> None:
    """The URL does not say whether there are three tables or five: look."""
    from sqlalchemy import inspect

    space, is_schema = bus.settings.space(bus.database.kind), bus.database.kind == "postgresql"

    def look(db: Connection) -> bool:
        if is_schema:
            return bool(inspect(db).has_table("inbox", schema=space))
        return bool(inspect(db).has_table(f"{space}.inbox"))

    bus.core.context.sql = replace(bus.core.context.sql, is_strict=not await bus.database.run(look))


@contextmanager
def bus_extra_required() -> Iterator[None]:
    """Around imports of the bus: SQLAlchemy may be missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "sqlalchemy":
            raise
        raise SettingsError(
            "bus", "not installed", "this Python", "pip install 'sparrowmq[bus]', which has it,"
        ) from error
