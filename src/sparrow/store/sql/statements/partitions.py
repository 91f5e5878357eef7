"""Statements on the partitions of message tables, which only MySQL and PostgreSQL have."""

from __future__ import annotations

MYSQL_SELECT = """
    SELECT PARTITION_NAME, PARTITION_DESCRIPTION
    FROM information_schema.PARTITIONS
    WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = :name AND PARTITION_NAME IS NOT NULL"""

POSTGRES_SELECT = """
    SELECT c.relname::text, pg_get_expr(c.relpartbound, c.oid), i.inhdetachpending
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = to_regclass(:name)"""

POSTGRES_SELECT_DETACHED = """
    SELECT c.relname::text
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = current_schema() AND c.relkind = 'r' AND NOT c.relispartition
        AND left(c.relname::text, :length) = :start"""

SELECT_SERVER_VERSION = "SELECT VERSION()"


def mysql_add(number: int, end: int) -> str:
    """Add a partition (a clause of ALTER TABLE)."""
    return f"ADD PARTITION (PARTITION p{number} VALUES LESS THAN ({end}))"


def mysql_drop(names: list[str]) -> str:
    """Drop partitions (a clause of ALTER TABLE)."""
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"DROP PARTITION {quoted}"


def mysql_alter(table: str, wait: str, clause: str) -> str:
    """Alter a table; `wait` is NOWAIT or empty."""
    return f'ALTER TABLE "{table}" {wait} {clause}'


def mysql_set_lock_wait(seconds: int) -> str:
    """Set how long the session waits for a table lock."""
    return f"SET SESSION lock_wait_timeout = {seconds}"


def postgres_set_lock_wait(seconds: int) -> str:
    """Set how long the transaction waits for a lock."""
    return f"SET LOCAL lock_timeout = '{seconds}s'"


def postgres_create(table: str, partition: str) -> str:
    """Create a table like a partition, beside its table."""
    return f'CREATE TABLE "{partition}" (LIKE "{table}" INCLUDING ALL)'


def postgres_attach(table: str, partition: str, first: int, end: int) -> str:
    """Attach a table as a partition."""
    return f'ALTER TABLE "{table}" ATTACH PARTITION "{partition}" FOR VALUES FROM ({first}) TO ({end})'


def postgres_detach(table: str, partition: str, *, is_pending: bool) -> str:
    """Detach a partition; a detachment that has begun can only be finished."""
    how = "FINALIZE" if is_pending else "CONCURRENTLY"
    return f'ALTER TABLE "{table}" DETACH PARTITION "{partition}" {how}'


def drop_table(name: str) -> str:
    """Drop a table."""
    return f'DROP TABLE IF EXISTS "{name}"'
