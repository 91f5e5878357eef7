"""How much open work there is."""

from __future__ import annotations

from sqlalchemy import Connection

from sparrow.bus.sql.dialect import SqlDialect


def count_due(db: Connection, sql: SqlDialect) -> int:
    """Messages that are being worked on, or could be: of those with one key only the first."""
    queue = sql.names.queue
    heads = f'SELECT MIN("Seq") FROM {queue} WHERE "OrderKey" IS NOT NULL GROUP BY "MessageType", "Group", "OrderKey"'
    [row] = sql.rows(
        db,
        f'SELECT COUNT(*) FROM {queue} WHERE "LockedBy" IS NOT NULL'
        f' OR ("NextAt" <= {sql.now} AND ("OrderKey" IS NULL OR "Seq" IN ({heads})))',
    )
    return int(row[0])
