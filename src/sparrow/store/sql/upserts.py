"""Inserting single rows that may exist already, and rows that the database numbers."""

from __future__ import annotations

from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.statements import upsert as statements


async def insert_if_absent(database: StoreDatabase, into: str, **values: object) -> bool:
    """Insert a row unless its key exists; return whether it was inserted."""
    return await database.execute(statements.insert_if_absent(database.dialect, into, values), **values) > 0


async def upsert(database: StoreDatabase, into: str, *, key: str, **values: object) -> None:
    """Insert a row, or update the row that has its key."""
    update = ", ".join(f'"{name}" = :{name}' for name in values if name != key)
    await database.execute(statements.upsert(database.dialect, into, values, key=key, update=update), **values)


async def insert_returning_id(database: StoreDatabase, into: str, **values: object) -> int:
    """Insert a row into a table that numbers its rows; return the number."""
    insert = statements.insert(into, values)
    async with database.transaction() as session:
        if database.dialect == "mysql":  # MySQL has no RETURNING
            await session.execute(insert, **values)
            found = await session.fetch("SELECT LAST_INSERT_ID()")
        else:
            found = await session.fetch(f"{insert} RETURNING id", **values)
    return int(found[0][0])
