"""Version 3: the table `hermes_ledger`, which atomic appends need. Some databases of version 1 have it already."""

from __future__ import annotations

from sparrow.databases.url import Dialect
from sparrow.store.sql.drivers.database import SqlSession

_CREATE: dict[Dialect, str] = {
    "mysql": """
        CREATE TABLE IF NOT EXISTS hermes_ledger (
            scope VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
            reached BIGINT NOT NULL, at BIGINT NOT NULL
        ) ENGINE=InnoDB""",
    "postgresql": """
        CREATE TABLE IF NOT EXISTS hermes_ledger (
            scope TEXT COLLATE "C" NOT NULL PRIMARY KEY, reached BIGINT NOT NULL, at BIGINT NOT NULL
        )""",
    "sqlite": """
        CREATE TABLE IF NOT EXISTS hermes_ledger (
            scope TEXT NOT NULL PRIMARY KEY, reached INTEGER NOT NULL, at INTEGER NOT NULL
        ) STRICT""",
}


async def apply(session: SqlSession, dialect: Dialect) -> None:
    """Create the table."""
    await session.execute(_CREATE[dialect])
