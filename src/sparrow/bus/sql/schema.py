"""Making the tables, safely by any number of processes at once."""

from __future__ import annotations

from sqlalchemy import Connection, inspect

from sparrow.bus.errors import TablesMissing
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.tables import metadata

_LOCK_NAME = "sparrow bus tables"
_LOCK_NUMBER = 0x53504152_524F57  # PostgreSQL's locks have numbers: the letters of our name
_WAIT_S = 60


def create_tables(db: Connection, sql: SqlDialect, space: str) -> bool:
    """Make what is missing; False when there was nothing to do. The caller commits."""
    if not _missing(db, sql, space):
        return False
    meta = metadata(sql.kind, space, strict=sql.is_strict)
    # IF NOT EXISTS is not enough: on PostgreSQL two of them at once fail with a unique violation.
    if sql.kind == "postgresql":
        sql.change(db, "SELECT pg_advisory_xact_lock(?)", _LOCK_NUMBER)
        db.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{space}"')
        meta.create_all(db)
        # Never analysed, the planner takes the queue for a table of some size and reads all of it.
        db.exec_driver_sql(f"ANALYZE {sql.names.queue}")
    elif sql.kind == "mysql":
        sql.rows(db, "SELECT GET_LOCK(?, ?)", _LOCK_NAME, _WAIT_S)
        try:
            meta.create_all(db)
        finally:
            sql.rows(db, "SELECT RELEASE_LOCK(?)", _LOCK_NAME)
    else:
        meta.create_all(db)
    return True


def check_tables(db: Connection, sql: SqlDialect, space: str) -> None:
    """Raise `TablesMissing` when a table is not there."""
    if _missing(db, sql, space):
        raise TablesMissing(f"{sql.kind} ({', '.join(_missing(db, sql, space))})")


def _missing(db: Connection, sql: SqlDialect, space: str) -> list[str]:
    meta = metadata(sql.kind, space, strict=sql.is_strict)
    inspector = inspect(db)
    schema = space if sql.kind == "postgresql" else None
    return [table.name for table in meta.sorted_tables if not inspector.has_table(table.name, schema=schema)]
