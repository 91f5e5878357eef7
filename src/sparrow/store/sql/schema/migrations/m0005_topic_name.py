"""Version 5: column `name` of `hermes_topic`, the name of a topic whose tables are named by a digest of it.

Brokers of an older version, which may be running, insert rows without it: it may be NULL.
"""

from __future__ import annotations

import json

from sparrow.store.sql.drivers.database import SqlSession

_SELECT_COLUMNS: dict[str, str] = {
    "mysql": """
        SELECT column_name FROM information_schema.columns
        WHERE table_schema = DATABASE() AND table_name = 'hermes_topic'""",
    "postgresql": """
        SELECT column_name FROM information_schema.columns
        WHERE table_schema = CURRENT_SCHEMA() AND table_name = 'hermes_topic'""",
    "sqlite": "SELECT name FROM pragma_table_info('hermes_topic')",
}
_TYPE: dict[str, str] = {
    "mysql": "VARCHAR(190) CHARACTER SET ascii COLLATE ascii_bin",
    "postgresql": 'TEXT COLLATE "C"',
    "sqlite": "TEXT",
}


async def apply(session: SqlSession, dialect: str) -> None:
    """Add the column and fill it for topics that exist."""
    if "name" not in [column for (column,) in await session.fetch(_SELECT_COLUMNS[dialect])]:
        await session.execute(f"ALTER TABLE hermes_topic ADD COLUMN name {_TYPE[dialect]}")
    for topic, options in await session.fetch("SELECT topic, options FROM hermes_topic WHERE name IS NULL"):
        name = json.loads(options)["name"]
        await session.execute("UPDATE hermes_topic SET name = :name WHERE topic = :topic", name=name, topic=topic)
