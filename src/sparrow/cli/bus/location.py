"""The bus that a command works on: `module:bus` in the user's code, or the URL of the database with its tables."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from sparrow.model.errors import SettingsError, SparrowError

if TYPE_CHECKING:  # SQLAlchemy is an extra, which other commands do not need
    from sparrow.bus.aio import EventBus

T = TypeVar("T")

BusArgument = Annotated[str, typer.Argument(help="The bus in your code: module:bus.", metavar="MODULE:BUS")]
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
    with bus_extra_required():
        from sparrow.bus.operations.opened_tables import open_tables, opened

    if bus is not None:
        loaded = load_bus(bus)
        async with opened(loaded):
            yield loaded
    else:
        async with open_tables(database or "", schema=schema, table_prefix=table_prefix) as found:
            yield found


@contextmanager
def unavailable_if_unreachable(bus: EventBus) -> Iterator[None]:
    """Raise `Unavailable` in place of a driver's error about an unreachable database."""
    from sparrow.bus.operations import opened_tables

    with opened_tables.unavailable_if_unreachable(bus):
        yield


@contextmanager
def bus_extra_required() -> Iterator[None]:
    """Raise `SparrowError` if an import in the block fails because SQLAlchemy is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "sqlalchemy":
            raise
        raise SparrowError(str(error)) from error
