"""`SqlDialect`: the differences between MySQL, PostgreSQL and SQLite.

A statement is written once: `?` for values, `"Name"` for identifiers. `SqlDialect.text` converts it for a driver. All
times are the database's own, in UTC: the clocks of the hosts need not agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import Connection, CursorResult

from sparrow.bus.states import EventStatus
from sparrow.model.errors import SettingsError

DatabaseKind = Literal["mysql", "postgresql", "sqlite"]
DATABASE_KINDS: dict[str, DatabaseKind] = {
    "mysql": "mysql",
    "mariadb": "mysql",
    "postgresql": "postgresql",
    "sqlite": "sqlite",
}

SUPPORTED_DATABASES = "mysql, mariadb, postgresql or sqlite"
_SQLITE_TIME = "%Y-%m-%dT%H:%M:%f"  # SQLite's clock has milliseconds; six digits make the texts comparable


@dataclass
class DatabaseClock:
    """The clock of the database, shifted by tests."""

    shift_s: float = 0.0


@dataclass(frozen=True)
class BusTableNames:
    """The table names, quoted for statements."""

    published: str
    received: str
    queue: str
    inbox: str
    lock: str
    schema_version: str

    @classmethod
    def of(cls, kind: DatabaseKind, space: str) -> BusTableNames:
        """Return the names; `space` is a schema on PostgreSQL, elsewhere a prefix of the table names."""
        if '"' in space or "`" in space:
            raise SettingsError("schema or table_prefix", space, "the bus", "a name without quotes")
        names = ("published", "received", "queue", "inbox", "lock", "schema_version")
        if kind == "postgresql":
            return cls(*(f'"{space}"."{name}"' for name in names))
        return cls(*(f'"{space}.{name}"' for name in names))


@dataclass(frozen=True)
class SqlDialect:
    """The SQL of one database and driver, and the names of the tables."""

    kind: DatabaseKind
    paramstyle: str
    names: BusTableNames
    clock: DatabaseClock = field(default_factory=DatabaseClock)
    skips_locked: bool = True
    """Whether claims skip rows that another worker has locked; MySQL 5.7 cannot."""
    succeeded_spelling: str = EventStatus.SUCCESSED.value
    writes_progress_states: bool = True
    """Whether Enqueued and Processing are written to the message tables."""
    is_strict: bool = False
    """Three tables only: Received itself recognises duplicates, while the row exists."""

    # -- running ------------------------------------------------------------------------------------------------------

    def text(self, statement: str) -> str:
        return _in_style(statement, self.paramstyle, self.kind == "mysql")

    def run(self, db: Connection, statement: str, *values: Any) -> CursorResult[Any]:
        return db.exec_driver_sql(_in_style(statement, self.paramstyle, self.kind == "mysql"), values)

    def rows(self, db: Connection, statement: str, *values: Any) -> list[Any]:
        """Run a statement and return its rows."""
        return list(self.run(db, statement, *values).all())

    def change(self, db: Connection, statement: str, *values: Any) -> int:
        """Run a statement and return the number of rows it affected."""
        return self.run(db, statement, *values).rowcount

    def status_name(self, status: EventStatus) -> str:
        """Return the spelling of a status in StatusName."""
        return self.succeeded_spelling if status is EventStatus.SUCCESSED else status.value

    # -- fragments ----------------------------------------------------------------------------------------------------

    @property
    def now(self) -> str:
        shift = self.clock.shift_s
        if self.kind == "postgresql":
            return "now()" if not shift else f"(now() + {shift!r} * interval '1 second')"
        if self.kind == "mysql":
            return "UTC_TIMESTAMP(6)" if not shift else f"(UTC_TIMESTAMP(6) + INTERVAL {int(shift * 1e6)} MICROSECOND)"
        moved = "" if not shift else f", '{shift:+.3f} seconds'"
        return f"(strftime('{_SQLITE_TIME}', 'now'{moved}) || '000')"

    def plus(self, moment: str) -> str:
        """Return an expression for a time plus the seconds of a value made by `span`."""
        if self.kind == "postgresql":
            return f"({moment} + ? * interval '1 second')"
        if self.kind == "mysql":
            return f"({moment} + INTERVAL ? MICROSECOND)"
        return f"(strftime('{_SQLITE_TIME}', {moment}, ?) || '000')"

    def span(self, seconds: float) -> float | int | str:
        if self.kind == "postgresql":
            return float(seconds)
        if self.kind == "mysql":
            return round(seconds * 1_000_000)
        return f"{seconds:+.3f} seconds"

    def among(self, column: str, values: Sequence[Any]) -> tuple[str, Sequence[Any]]:
        """Return a condition and its values.

        PostgreSQL gets an array, so that the statement is the same for any number of values and is prepared once.
        """
        if self.kind == "postgresql":
            return f"{column} = ANY(?)", (list(values),)
        return f"{column} IN ({','.join('?' * len(values))})", values

    @property
    def locking(self) -> str:
        """The end of a SELECT whose rows are about to be changed."""
        if self.kind == "sqlite":
            return ""
        return " FOR UPDATE SKIP LOCKED" if self.skips_locked else " FOR UPDATE"

    def to_time(self, moment: datetime) -> Any:
        """Return a time as a value of a statement."""
        moment = moment.astimezone(UTC)
        if self.kind == "postgresql":
            return moment
        if self.kind == "mysql":
            return moment.replace(tzinfo=None)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")

    def from_time(self, value: Any) -> datetime:
        """Return the time in a column."""
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        assert isinstance(moment, datetime)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def database_kind(dialect_name: str) -> DatabaseKind:
    if dialect_name not in DATABASE_KINDS:
        raise SettingsError("database", dialect_name, "the bus", SUPPORTED_DATABASES)
    return DATABASE_KINDS[dialect_name]


@lru_cache(2048)
def _in_style(statement: str, paramstyle: str, is_mysql: bool) -> str:
    if is_mysql:
        statement = statement.replace('"', "`")
    if paramstyle == "qmark":
        return statement
    if paramstyle in ("format", "pyformat"):
        return statement.replace("%", "%%").replace("?", "%s")
    mark = "$" if paramstyle == "numeric_dollar" else ":"
    if paramstyle not in ("numeric_dollar", "numeric"):
        raise SettingsError("paramstyle", paramstyle, "the driver", "qmark, format, pyformat or numeric")
    first, *rest = statement.split("?")
    return first + "".join(f"{mark}{number}{piece}" for number, piece in enumerate(rest, 1))
