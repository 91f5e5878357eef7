"""The tables of a bus, opened for operators by the URL of their database: nothing is started, no table is created."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect
from sqlalchemy.exc import SQLAlchemyError

from sparrow.bus.aio import EventBus
from sparrow.bus.sql.connections.database import is_unreachable
from sparrow.model.errors import SettingsError, Unavailable

if TYPE_CHECKING:
    from sparrow.bus.common import AnyEventBus


@asynccontextmanager
async def open_tables(url: str, *, schema: str = "cap", table_prefix: str = "cap") -> AsyncIterator[EventBus]:
    """Open the tables in a database; raise `Unavailable` if it cannot be reached."""
    bus = _bus_on_database(url, schema, table_prefix)
    async with opened(bus):
        with unavailable_if_unreachable(bus):
            await _detect_inbox(bus)
        yield bus


@asynccontextmanager
async def opened(bus: EventBus) -> AsyncIterator[None]:
    """Check the tables of a bus, and close its connections at the end."""
    bus.core.settings = replace(bus.settings, create_tables=False)
    try:
        with unavailable_if_unreachable(bus):
            await bus.prepare()
        yield
    finally:
        await bus.database.close()


@contextmanager
def unavailable_if_unreachable(bus: AnyEventBus) -> Iterator[None]:
    """Raise `Unavailable` in place of a driver's error about an unreachable database."""
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
    bus = EventBus(url, "memory://", schema=schema, table_prefix=table_prefix, strict_tables=True)
    # SQLite would create a missing file.
    if bus.database.kind == "sqlite" and not Path(bus.database.engine.url.database or "").is_file():
        raise SettingsError("database", str(bus.database), "the command line", "a file that exists")
    return bus


async def _detect_inbox(bus: EventBus) -> None:
    """Find out whether there are three tables or five, which the URL does not tell."""
    space, is_schema = bus.settings.space(bus.database.kind), bus.database.kind == "postgresql"

    def has_inbox(db: Connection) -> bool:
        if is_schema:
            return bool(inspect(db).has_table("inbox", schema=space))
        return bool(inspect(db).has_table(f"{space}.inbox"))

    bus.core.context.sql = replace(bus.core.context.sql, is_strict=not await bus.database.run(has_inbox))
