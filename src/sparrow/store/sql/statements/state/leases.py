"""Statements on `hermes_lease`. Only the database's clock decides whether a lease has expired."""

from __future__ import annotations

from sparrow.databases.url import Dialect

_NOW_MS: dict[Dialect, str] = {
    "mysql": "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}


def acquire(dialect: Dialect, ttl_ms: int) -> str:
    """Acquire or renew a lease that is the owner's own or has expired.

    MySQL assigns from left to right: the epoch comes first, while `owner` still holds the previous owner.
    """
    now_ms = _NOW_MS[dialect]
    return f"""
        UPDATE hermes_lease
        SET epoch = epoch + (CASE WHEN owner = :owner THEN 0 ELSE 1 END), owner = :owner,
            expires_at = {now_ms} + {ttl_ms}
        WHERE name = :name AND (owner = :owner OR expires_at < {now_ms})"""


def select_other_holders(dialect: Dialect) -> str:
    """Select the unexpired leases of others whose names match: name and owner."""
    return f"""
        SELECT name, owner
        FROM hermes_lease
        WHERE name LIKE :prefix AND owner <> :owner AND expires_at > {_NOW_MS[dialect]}"""


SELECT_EPOCH_OF_OWNER = "SELECT epoch FROM hermes_lease WHERE name = :name AND owner = :owner"

SELECT_EPOCH = "SELECT epoch FROM hermes_lease WHERE name = :name"

RELEASE = "UPDATE hermes_lease SET expires_at = 0 WHERE name = :name AND owner = :owner"
