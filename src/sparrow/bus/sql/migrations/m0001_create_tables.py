"""Migration 1: create the tables of the bus that are missing.

Version 0.1 of Sparrow created the same tables and recorded no version: there this migration only creates
`schema_version`. A later migration that changes these tables must first copy today's definitions here.
"""

from __future__ import annotations

from sqlalchemy import Connection

from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.tables import metadata


def apply(db: Connection, sql: SqlDialect, space: str) -> None:
    """Create the schema, if the database has schemas, and the missing tables."""
    if sql.kind == "postgresql":
        db.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{space}"')
    metadata(sql.kind, space, strict=sql.is_strict).create_all(db)
    if sql.kind == "postgresql":
        # Without statistics the planner takes the queue for a large table and reads all of it.
        db.exec_driver_sql(f"ANALYZE {sql.names.queue}")
