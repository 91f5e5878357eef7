"""Applying the migrations, safely by any number of processes at once, and checking the schema version.

1. Versions only grow. A database whose version is newer than the newest migration here is refused, not used.
2. A migration runs under a lock of the database. It may be interrupted and run again: MySQL commits each DDL statement.
3. With `strict_tables` there are three tables and no `schema_version`: missing tables are created, nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sqlalchemy import Connection, inspect

from sparrow.bus.errors import SchemaTooNew, SchemaTooOld, TablesMissing
from sparrow.bus.sql.connections.database import TransactionConflict
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.migrations import m0001_create_tables
from sparrow.bus.sql.tables import SCHEMA_VERSION_TABLE, metadata


class Migration(NamedTuple):
    """A step from the version before to `version`."""

    version: int
    description: str
    apply: Callable[[Connection, SqlDialect, str], None]


MIGRATIONS: list[Migration] = [
    Migration(1, "create the tables", m0001_create_tables.apply),
]
_LOCK_NAME = "sparrow bus tables"
_LOCK_NUMBER = 0x53504152_524F57  # PostgreSQL's advisory locks have numbers: the ASCII codes of SPARROW
_LOCK_WAIT_S = 60


def latest_version() -> int:
    return MIGRATIONS[-1].version


def migrate(db: Connection, sql: SqlDialect, space: str) -> list[int]:
    """Apply the migrations that are missing, and return their versions. The caller commits."""
    if not _pending(db, sql, space):
        return []
    with _locked(db, sql):
        pending = _pending(db, sql, space)  # another process may have applied them while this one waited
        for migration in pending:
            migration.apply(db, sql, space)
            if not sql.is_strict:
                sql.change(
                    db,
                    f'INSERT INTO {sql.names.schema_version} ("Version", "Description", "AppliedAt")'
                    f" VALUES (?, ?, {sql.now})",
                    migration.version,
                    migration.description,
                )
    return [migration.version for migration in pending]


def check_schema(db: Connection, sql: SqlDialect, space: str) -> None:
    """Raise `TablesMissing`, `SchemaTooOld` or `SchemaTooNew` unless the tables are those this version uses.

    Tables of version 0.1, which recorded no schema version, count as version 1.
    """
    if missing := _missing_tables(db, sql, space):
        raise TablesMissing(f"{sql.kind} ({', '.join(missing)})")
    version = schema_version(db, sql, space) or 1
    _refuse_newer(sql, version)
    if version < latest_version() and not sql.is_strict:
        raise SchemaTooOld(sql.kind, version, latest_version())


def schema_version(db: Connection, sql: SqlDialect, space: str) -> int:
    """Return the version of the tables; 0 if none is recorded."""
    if sql.is_strict or not _has_table(db, sql, space, SCHEMA_VERSION_TABLE):
        return 0
    return int(sql.rows(db, f'SELECT MAX("Version") FROM {sql.names.schema_version}')[0][0] or 0)


def _pending(db: Connection, sql: SqlDialect, space: str) -> list[Migration]:
    if sql.is_strict:
        return MIGRATIONS[:1] if _missing_tables(db, sql, space) else []
    version = schema_version(db, sql, space)
    _refuse_newer(sql, version)
    return [migration for migration in MIGRATIONS if migration.version > version]


def _refuse_newer(sql: SqlDialect, version: int) -> None:
    if version > latest_version():
        raise SchemaTooNew(sql.kind, version, latest_version())


@contextmanager
def _locked(db: Connection, sql: SqlDialect) -> Iterator[None]:
    """Let one process at a time create tables: on PostgreSQL even two CREATE … IF NOT EXISTS at once may fail."""
    if sql.kind == "postgresql":
        sql.change(db, "SELECT pg_advisory_xact_lock(?)", _LOCK_NUMBER)
        yield
    elif sql.kind == "mysql":
        # Commit first: the transaction has read tables, which blocks the process that has the lock and changes them.
        # MySQL detects that and fails; MariaDB waits.
        sql.change(db, "COMMIT")
        if not sql.rows(db, "SELECT GET_LOCK(?, ?)", _LOCK_NAME, _LOCK_WAIT_S)[0][0]:
            raise TransactionConflict("another process is changing the tables of the bus")
        try:
            # The lock does not belong to a transaction. Commit after it is acquired, to read what the last process
            # recorded, and before it is released, so that the next process reads what this one recorded.
            sql.change(db, "COMMIT")
            yield
            sql.change(db, "COMMIT")
        finally:
            sql.rows(db, "SELECT RELEASE_LOCK(?)", _LOCK_NAME)
    else:  # the transaction holds SQLite's write lock already
        yield


def _missing_tables(db: Connection, sql: SqlDialect, space: str) -> list[str]:
    tables = metadata(sql.kind, space, strict=sql.is_strict).sorted_tables
    names = [table.name.removeprefix(f"{space}.") for table in tables]
    return [name for name in names if name != SCHEMA_VERSION_TABLE and not _has_table(db, sql, space, name)]


def _has_table(db: Connection, sql: SqlDialect, space: str, name: str) -> bool:
    if sql.kind == "postgresql":
        return inspect(db).has_table(name, schema=space)
    return inspect(db).has_table(f"{space}.{name}")
