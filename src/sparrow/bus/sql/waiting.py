"""How much open work there is."""

from __future__ import annotations

from sqlalchemy import Connection

from sparrow.bus.sql.dialect import Sql


def count_due(db: Connection, sql: Sql) -> int:
    """Messages that are being worked on, or could be."""
    row = sql.rows(db, f'SELECT COUNT(*) FROM {sql.names.queue} WHERE "NextAt" <= {sql.now} OR "LockedBy" IS NOT NULL')[
        0
    ]
    return int(row[0])
