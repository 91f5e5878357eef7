"""Progress marks of the broker's background jobs, in the table `hermes_mark`."""

from __future__ import annotations

from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.statements.state import marks as statements
from sparrow.store.sql.upserts import upsert


class SqlMarks:
    """Named integers."""

    def __init__(self, database: StoreDatabase) -> None:
        self._database = database

    async def get(self, name: str) -> int | None:
        found = await self._database.fetch(statements.SELECT, name=name)
        return int(found[0][0]) if found else None

    async def put(self, name: str, value: int) -> None:
        await upsert(self._database, "hermes_mark", key="name", name=name, value=value)
