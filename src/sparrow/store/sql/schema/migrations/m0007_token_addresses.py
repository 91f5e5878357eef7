"""Version 7: column `addresses` of `meta_token`, the addresses and networks that the requests of a token may come from.

NULL, as for every token that was issued before: from anywhere.
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
_TYPE: dict[Dialect, str] = {
    "mysql": "MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "postgresql": "TEXT",
    "sqlite": "TEXT",
}


async def apply(session: SqlSession, dialect: Dialect) -> None:
    """Add the column."""
    if "addresses" not in [column for (column,) in await session.fetch(_SELECT_COLUMNS[dialect])]:
        await session.execute(f"ALTER TABLE meta_token ADD COLUMN addresses {_TYPE[dialect]}")
