"""Version 2: on SQLite, the keys of `hermes_delay` and `hermes_half` are AUTOINCREMENT.

Files made by the first versions have plain integer keys, which SQLite reuses: a cancelled delayed message or an ended
half message could be mistaken for a later one with the same number. The other databases never reused them.
"""

from __future__ import annotations

from sparrow.databases.url import Dialect
from sparrow.store.sql.drivers.database import SqlSession

_SKIPPED_IDS = 1_000_000
"""New ids start this much higher: rows that are gone may have had greater ids than those that are left."""

_TABLES = {
    "hermes_delay": """
        id INTEGER PRIMARY KEY AUTOINCREMENT, due INTEGER NOT NULL, topic TEXT NOT NULL, queue_id INTEGER NOT NULL,
        unique_key BLOB, body BLOB NOT NULL, source_ip INTEGER NOT NULL, properties BLOB NOT NULL,
        at INTEGER NOT NULL""",
    "hermes_half": """
        id INTEGER PRIMARY KEY AUTOINCREMENT, producer_group TEXT NOT NULL, topic TEXT NOT NULL,
        queue_id INTEGER NOT NULL, body BLOB NOT NULL, source_ip INTEGER NOT NULL, properties BLOB NOT NULL,
        at INTEGER NOT NULL, checks INTEGER NOT NULL DEFAULT 0, check_at INTEGER NOT NULL, state TEXT NOT NULL""",
}
_INDEXES = (
    "CREATE INDEX IF NOT EXISTS hermes_delay_due ON hermes_delay (due, id)",
    "CREATE INDEX IF NOT EXISTS hermes_delay_key ON hermes_delay (unique_key)",
    "CREATE INDEX IF NOT EXISTS hermes_half_check ON hermes_half (state, check_at)",
)


async def apply(session: SqlSession, dialect: Dialect) -> None:
    """Rebuild the tables that have the old keys."""
    if dialect != "sqlite":
        return
    for table, columns in _TABLES.items():
        ((definition,),) = await session.fetch("SELECT sql FROM sqlite_master WHERE name = :name", name=table)
        if "AUTOINCREMENT" in definition.upper():
            continue
        names = ", ".join(name for (name,) in await session.fetch(f"SELECT name FROM pragma_table_info('{table}')"))
        ((last_id,),) = await session.fetch(f"SELECT COALESCE(MAX(id), 0) FROM {table}")
        await session.execute(f"CREATE TABLE {table}_rebuilt ({columns}) STRICT")
        await session.execute(f"INSERT INTO {table}_rebuilt ({names}) SELECT {names} FROM {table}")
        await session.execute(f"DROP TABLE {table}")
        await session.execute(f"ALTER TABLE {table}_rebuilt RENAME TO {table}")
        await session.execute("DELETE FROM sqlite_sequence WHERE name = :name", name=table)
        await session.execute(
            "INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :seq)",
            name=table,
            seq=last_id + _SKIPPED_IDS,
        )
    for statement in _INDEXES:
        await session.execute(statement)
