"""The interface of a database, and how one is opened.

Statements name their values (`:group`) and quote identifiers the standard way (`"end"`); each driver translates them.
No method blocks the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from sparrow.databases.url import Dialect, parse_database_url
from sparrow.store.sql.append.batch_ids import AssignedIds, BatchId
from sparrow.store.sql.drivers.errors import MissingDriver
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import NewRow

ColumnValue = Any
"""What a column holds: int, str, bytes or None."""


class SqlSession(Protocol):
    """Executes statements one after the other."""

    async def fetch(self, sql: str, **values: ColumnValue) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        ...

    async def execute(self, sql: str, **values: ColumnValue) -> int:
        """Execute a statement; return how many rows it matched."""
        ...


class StoreDatabase(SqlSession, Protocol):
    """A pool of connections to one database. A statement outside `transaction` is a transaction of its own."""

    dialect: Dialect
    display_url: str
    """The URL without user and password, for messages."""
    packet_bytes_max: int
    """The limit of a message with its row."""
    shows_before_durable: bool
    """Whether other connections may see a commit that a crash of the server would still undo."""
    may_lose_answers: bool
    """Whether a transaction that fails may have been committed: its answer was lost with the connection."""

    def transaction(self) -> AbstractAsyncContextManager[SqlSession]:
        """Execute the statements of the block in one transaction."""
        ...

    async def append(
        self, lane: Lane, rows: Sequence[NewRow], batch_ids: Sequence[BatchId], now_ms: int
    ) -> AssignedIds:
        """Assign ids to the rows and insert them in one transaction, with few round trips."""
        ...

    async def server_identity(self) -> str:
        """Return a text that changes when the server restarts: it may have lost commits that it had shown."""
        ...

    async def close(self) -> None: ...


async def open_database(url: str, *, connections_max: int = 8) -> StoreDatabase:
    """Connect. The drivers are optional packages; the error for a missing one says what to install."""
    address = parse_database_url(url)
    opener: Callable[..., Awaitable[StoreDatabase]]
    try:
        if address.dialect == "mysql":
            from sparrow.store.sql.drivers.mysql import open_mysql as opener
        elif address.dialect == "postgresql":
            from sparrow.store.sql.drivers.postgres import open_postgres as opener
        else:
            from sparrow.store.sql.drivers.sqlite import open_sqlite as opener
    except ImportError as cause:
        extra = "mysql" if address.dialect == "mysql" else "postgres"
        raise MissingDriver(str(address), cause.name, extra) from cause
    return await opener(address, connections_max=connections_max)
