"""Version 8: columns `acl` and `disabled_at` of `meta_token`, for users and ACLs as RocketMQ's tools administer them.

NULL, as for every token that was issued before: type and patterns decide what it may do, and it is not disabled.
"""

from __future__ import annotations

from sparrow.databases.url import Dialect
from sparrow.store.sql.drivers.database import SqlSession

_SELECT_COLUMNS: dict[Dialect, str] = {
    "mysql": """
        SELECT column_name FROM information_schema.columns
        WHERE table_schema = DATABASE() AND table_name = 'meta_token'""",
    "postgresql": """
        SELECT column_name FROM information_schema.columns
        WHERE table_schema = CURRENT_SCHEMA() AND table_name = 'meta_token'""",
    "sqlite": "SELECT name FROM pragma_table_info('meta_token')",
}
_TYPES: dict[Dialect, dict[str, str]] = {
    "mysql": {"acl": "MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "disabled_at": "BIGINT"},
    "postgresql": {"acl": "TEXT", "disabled_at": "BIGINT"},
    "sqlite": {"acl": "TEXT", "disabled_at": "INTEGER"},
}


async def apply(session: SqlSession, dialect: Dialect) -> None:
    """Add the columns."""
    existing = [column for (column,) in await session.fetch(_SELECT_COLUMNS[dialect])]
    for column, kind in _TYPES[dialect].items():
        if column not in existing:
            await session.execute(f"ALTER TABLE meta_token ADD COLUMN {column} {kind}")
