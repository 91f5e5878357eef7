"""What the store needs of a database, whichever it is.

Statements name their values (`:group`) and quote identifiers the standard way (`"end"`); a driver turns them into its
own form. Nothing here blocks the event loop.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from sparrow.model.errors import SettingsError, StorageError, Unavailable
from sparrow.store.sql.row_codec import NewRow
from sparrow.store.sql.schema.table_names import Lane

ColumnValue = Any
"""What a column may hold: int, str, bytes or None."""


class BatchId(NamedTuple):
    """Names a run of entries so that it is stored once, however often it is tried."""

    producer: int
    seq: int
    first: int
    """Which of the entries it starts with."""
    size: int
    is_for_all_lanes: bool = False
    """A producer's: it counts on every lane, since a repeat may be sent to another queue."""

    def lane(self, lane: Lane) -> int:
        """What `hermes_batch` files it under: 0 for every lane."""
        return 0 if self.is_for_all_lanes else lane.number

    def offset(self, lane: Lane) -> int:
        """What is added to the first id of the run: filed under every lane, it must say which one it is."""
        return lane.physical_offset(self.first) if self.is_for_all_lanes else self.first


class AssignedIds(NamedTuple):
    """Where a run of entries came to lie."""

    base_id: int
    store_ms: int
    lane: int


class LockConflict(Exception):
    """Somebody was in the way (a deadlock, a lock held too long): nothing was done, do the whole of it again."""


class DuplicateKey(Exception):
    """A unique key is there already: nothing was done."""


class MissingPartition(Exception):
    """The id lies past the last partition: nothing was done; add one."""


class StoreDatabaseUnreachable(Unavailable):
    """The database went away. Whatever was under way may have been done."""

    def __init__(self, database: str, why: str) -> None:
        super().__init__(database, why)
        self.database, self.why = database, why

    def __str__(self) -> str:
        return f"the database {self.database} cannot be reached: {self.why}"


class DatabaseRefused(StorageError):
    """The database understood, and said no."""

    def __init__(self, database: str, why: str) -> None:
        super().__init__(database, why)
        self.database, self.why = database, why

    def __str__(self) -> str:
        return f"the database {self.database} refused: {self.why}"


class SqlSession(Protocol):
    """Statements, one after the other."""

    async def fetch(self, sql: str, **values: ColumnValue) -> list[tuple[Any, ...]]:
        """What a query finds."""
        ...

    async def execute(self, sql: str, **values: ColumnValue) -> int:
        """How many rows a statement matched."""
        ...


class StoreDatabase(SqlSession, Protocol):
    """A pool of connections. By itself each statement is a transaction of its own."""

    dialect: Dialect
    display_url: str
    """For messages: never with a password."""
    packet_bytes_max: int
    """A message and its row must be smaller."""
    shows_before_durable: bool
    """Whether others may see a commit that a crash of the server would take back."""

    def transaction(self) -> AbstractAsyncContextManager[SqlSession]:
        """Everything in the block happens, or nothing."""
        ...

    async def append(
        self, lane: Lane, entries: Sequence[NewRow], tickets: Sequence[BatchId], now_ms: int
    ) -> AssignedIds:
        """Number the entries and insert them, in one transaction and one round trip."""
        ...

    async def server_identity(self) -> str:
        """Another one when the server was started anew: it may have lost what it had shown."""
        ...

    async def close(self) -> None: ...


Dialect = Literal["mysql", "postgresql", "sqlite"]


class DatabaseUrl(NamedTuple):
    """A database's URL, taken apart."""

    dialect: Dialect
    host: str
    port: int
    user: str
    password: str
    name: str
    """Of the database; of SQLite's the path of its file."""

    def __str__(self) -> str:
        return self.name if self.dialect == "sqlite" else f"{self.dialect}://{self.host}:{self.port}/{self.name}"


_KINDS: dict[str, tuple[Dialect, int]] = {
    "mysql": ("mysql", 3306),
    "mariadb": ("mysql", 3306),
    "postgresql": ("postgresql", 5432),
    "postgres": ("postgresql", 5432),
    "sqlite": ("sqlite", 0),
}


def parse_database_url(url: str) -> DatabaseUrl:
    """`mysql://user:password@host:port/name`, `postgresql://...`, `sqlite:///path`."""
    parts = urlsplit(url)
    if parts.scheme not in _KINDS:
        raise _unusable(url, "mysql://user:password@host/name, postgresql://... or sqlite:///path")
    kind, port = _KINDS[parts.scheme]
    if kind == "sqlite":
        if parts.netloc or len(parts.path) < 2:
            raise _unusable(url, "sqlite:///relative/path or sqlite:////absolute/path")
        return DatabaseUrl(kind, "", 0, "", "", unquote(parts.path[1:]))
    name = unquote(parts.path.strip("/"))
    try:
        port = parts.port or port
    except ValueError:
        raise _unusable(url, "a port number") from None
    if not parts.hostname or not name or "/" in name:
        raise _unusable(url, f"{parts.scheme}://user:password@host/name, with the database's name at the end,")
    return DatabaseUrl(kind, parts.hostname, port, unquote(parts.username or ""), unquote(parts.password or ""), name)


def is_database_url(store: str) -> bool:
    """Whether a store is named by a URL, not by a directory."""
    return "://" in store


def _unusable(url: str, suggestion: str) -> SettingsError:
    return SettingsError("store", re.sub(r":[^:@/]+@", ":***@", url), "the URL", suggestion)


_NAMED = re.compile(r"(?<![:\w]):([a-z_][a-z_0-9]*)")


@lru_cache(4096)
def to_numeric_style(sql: str) -> tuple[str, tuple[str, ...]]:
    """`:name` as `$1`, and the names in order."""
    names: list[str] = []

    def place(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    return _NAMED.sub(place, sql), tuple(names)


@lru_cache(4096)
def to_pyformat_style(sql: str) -> str:
    """`:name` as `%(name)s`."""
    return _NAMED.sub(r"%(\1)s", sql.replace("%", "%%"))


async def open_database(url: str, *, connections_max: int = 8) -> StoreDatabase:
    """Connect. The drivers are optional: a missing one says what to install."""
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
        raise SettingsError(
            "store", str(address), f"its driver {cause.name!r} is not installed", f"pip install 'sparrowmq[{extra}]'"
        ) from cause
    return await opener(address, connections_max=connections_max)
