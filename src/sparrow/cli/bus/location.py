"""The bus that a command works on: `module:bus` in the user's code, or the URL of the database with its tables."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from sparrow.model.errors import SettingsError, Unavailable

if TYPE_CHECKING:  # SQLAlchemy is an extra, which other commands do not need
    from sqlalchemy import Connection

    from sparrow.bus.aio import EventBus

T = TypeVar("T")

BusOption = Annotated[
    str | None,
    typer.Option("--bus", "-b", help="The bus in your code.", metavar="MODULE:BUS", envvar="SPARROW_BUS"),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        "-d",
        help="Or the database with its tables: mysql://…, postgresql://… or sqlite:///…",
        metavar="URL",
        envvar="SPARROW_BUS_DATABASE",
    ),
]
SchemaOption = Annotated[str, typer.Option(help="Schema of the tables, with --database on PostgreSQL.")]
PrefixOption = Annotated[str, typer.Option(help="Prefix of the table names, with --database elsewhere.")]
ScanOption = Annotated[
    list[str] | None, typer.Option(help="Package whose modules declare handlers; may be repeated.", metavar="PACKAGE")
]


@dataclass(frozen=True, kw_only=True)
class BusLocation:
    """The options of a command that say which bus it works on."""

    bus: BusOption = None
    database: DatabaseOption = None
    schema: SchemaOption = "cap"
    table_prefix: PrefixOption = "cap"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[EventBus]:
        """Open the tables of the bus. The bus is not started, and no table is created."""
        async with open_bus(self.bus, self.database, self.schema, self.table_prefix) as bus:
            yield bus

    def run(self, work: Callable[[EventBus], Awaitable[T]]) -> T:
        """Open the bus, run `work` with it on an event loop, and return its result."""

        async def run() -> T:
            async with self.open() as bus:
                with unavailable_if_unreachable(bus):
                    return await work(bus)

        return asyncio.run(run())


def load_bus(name: str, scan: list[str] | None = None) -> EventBus:
    """Import the bus `module:name`, or call the function of that name. Modules in the current folder are found."""
    with bus_extra_required():
        from sparrow.bus.common import AnyEventBus
        from sparrow.bus.handlers.discovery import import_object

    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    found = import_object(name)
    if not isinstance(found, AnyEventBus) and callable(found):
        found = found()
    if not isinstance(found, AnyEventBus):
        raise SettingsError(
            "bus", name, "the command line", f"the name of an EventBus (this is a {type(found).__name__})"
        )
    for package in scan or ():
        found.subscriptions.scan(package)
    return found.aio


@asynccontextmanager
async def open_bus(bus: str | None, database: str | None, schema: str, table_prefix: str) -> AsyncIterator[EventBus]:
    """Open the tables of a bus. The bus is not started, and no table is created."""
    if (bus is None) == (database is None):
        raise typer.BadParameter("give either --bus module:bus or --database URL")
    opened = load_bus(bus) if bus is not None else _bus_on_database(database or "", schema, table_prefix)
    opened.core.settings = replace(opened.settings, create_tables=False)
    try:
        with unavailable_if_unreachable(opened):
            await opened.prepare()
            if database is not None:
                await _detect_inbox(opened)
        yield opened
    finally:
        await opened.database.close()


@contextmanager
def unavailable_if_unreachable(bus: EventBus) -> Iterator[None]:
    """Raise `Unavailable` in place of a driver's error about an unreachable database."""
    from sqlalchemy.exc import SQLAlchemyError

    from sparrow.bus.sql.database import is_unreachable

    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        if not is_unreachable(error):
            raise
        cause = getattr(error, "orig", None) or error
        raise Unavailable(
            f"cannot reach the database {bus.database}: {cause}. Check that its server runs and that the URL is right."
        ) from error


def _bus_on_database(url: str, schema: str, table_prefix: str) -> EventBus:
    with bus_extra_required():
        from sqlalchemy import make_url

        from sparrow.bus.aio import EventBus

    bus = EventBus(url, "memory://", schema=schema, table_prefix=table_prefix, strict_tables=True)
    # SQLite would create a missing file.
    if bus.database.kind == "sqlite" and not Path(make_url(url).database or "").is_file():
        raise SettingsError("database", str(bus.database), "the command line", "a file that exists")
    return bus


async def _detect_inbox(bus: EventBus) -> None:
    """Find out whether there are three tables or five, which the URL does not tell."""
    from sqlalchemy import inspect

    space, is_schema = bus.settings.space(bus.database.kind), bus.database.kind == "postgresql"

    def has_inbox(db: Connection) -> bool:
        if is_schema:
            return bool(inspect(db).has_table("inbox", schema=space))
        return bool(inspect(db).has_table(f"{space}.inbox"))

    bus.core.context.sql = replace(bus.core.context.sql, is_strict=not await bus.database.run(has_inbox))


@contextmanager
def bus_extra_required() -> Iterator[None]:
    """Raise `SettingsError` if an import in the block fails because SQLAlchemy is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "sqlalchemy":
            raise
        raise SettingsError(
            "the extra 'bus'", "not installed", "this Python", "pip install 'sparrowmq[bus]' to install it"
        ) from error
