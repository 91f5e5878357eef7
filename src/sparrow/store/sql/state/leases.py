"""Who does what when several brokers share a database: rows that belong to somebody for a while.

Time is the database's alone. Each time a lease changes hands its epoch grows, and whatever is written in its name
carries the epoch: a holder that slept too long changes nothing any more.
"""

from __future__ import annotations

from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.drivers.url import Dialect
from sparrow.store.sql.state.catalog import insert_if_absent

_NOW_MS: dict[Dialect, str] = {
    "mysql": "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}
_UNUSED = "nobody"


class Leases:
    """The leases of one process."""

    def __init__(self, database: StoreDatabase, owner: str, ttl_ms: int) -> None:
        self._database, self.owner, self._ttl_ms = database, owner, ttl_ms
        self._now = _NOW_MS[database.dialect]

    async def acquire(self, name: str) -> int | None:
        """Take a lease or keep it; its epoch, or None while somebody else has it."""
        taken = await self._acquire(name)
        if taken is None and await insert_if_absent(
            self._database, "hermes_lease", name=name, owner=_UNUSED, epoch=0, expires_at=0
        ):
            taken = await self._acquire(name)
        return taken

    async def _acquire(self, name: str) -> int | None:
        # MySQL assigns from left to right: the epoch must be reckoned while the owner is still the old one.
        changed = await self._database.execute(
            "UPDATE hermes_lease SET epoch = epoch + (CASE WHEN owner = :owner THEN 0 ELSE 1 END), owner = :owner,"
            f" expires_at = {self._now} + {self._ttl_ms}"
            f" WHERE name = :name AND (owner = :owner OR expires_at < {self._now})",
            owner=self.owner,
            name=name,
        )
        if not changed:
            return None
        found = await self._database.fetch(
            "SELECT epoch FROM hermes_lease WHERE name = :name AND owner = :owner", name=name, owner=self.owner
        )
        return int(found[0][0]) if found else None

    async def release(self, name: str) -> None:
        """Let somebody else have it at once."""
        await self._database.execute(
            "UPDATE hermes_lease SET expires_at = 0 WHERE name = :name AND owner = :owner", name=name, owner=self.owner
        )

    async def other_holders(self, prefix: str) -> list[str]:
        """Who else holds leases whose names begin so."""
        found = await self._database.fetch(
            f"SELECT owner FROM hermes_lease WHERE name LIKE :prefix AND owner <> :owner AND expires_at > {self._now}",
            prefix=f"{prefix}%",
            owner=self.owner,
        )
        return [owner for (owner,) in found]

    async def epoch(self, name: str) -> int:
        """The newest, whoever has it."""
        found = await self._database.fetch("SELECT epoch FROM hermes_lease WHERE name = :name", name=name)
        return int(found[0][0]) if found else 0
