"""Leases: which broker does what when several share a database.

Only the database's clock counts. When a lease gets another owner its epoch grows, and whatever is written under a lease
carries the epoch: an owner that paused longer than its lease can change nothing any more.
"""

from __future__ import annotations

from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.statements.state import leases as statements
from sparrow.store.sql.upserts import insert_if_absent

_NO_OWNER = "nobody"


class Leases:
    """The leases of one process."""

    def __init__(self, database: StoreDatabase, owner: str, ttl_ms: int) -> None:
        self._database, self.owner, self._ttl_ms = database, owner, ttl_ms

    async def acquire(self, name: str) -> int | None:
        """Acquire or renew a lease; return its epoch, or None while another process owns it."""
        epoch = await self._acquire(name)
        if epoch is None and await insert_if_absent(
            self._database, "hermes_lease", name=name, owner=_NO_OWNER, epoch=0, expires_at=0
        ):
            epoch = await self._acquire(name)
        return epoch

    async def _acquire(self, name: str) -> int | None:
        acquire = statements.acquire(self._database.dialect, self._ttl_ms)
        if not await self._database.execute(acquire, owner=self.owner, name=name):
            return None
        found = await self._database.fetch(statements.SELECT_EPOCH_OF_OWNER, name=name, owner=self.owner)
        return int(found[0][0]) if found else None

    async def release(self, name: str) -> None:
        """Let another process acquire the lease at once."""
        await self._database.execute(statements.RELEASE, name=name, owner=self.owner)

    async def other_holders(self, prefix: str) -> list[str]:
        """Return the other owners of leases whose names start with a prefix."""
        return [owner for _, owner in await self._leases_of_others(prefix)]

    async def names_of_others(self, prefix: str) -> list[str]:
        """Return the names of leases that start with a prefix and have other owners."""
        return [name for name, _ in await self._leases_of_others(prefix)]

    async def _leases_of_others(self, prefix: str) -> list[tuple[str, str]]:
        select = statements.select_other_holders(self._database.dialect)
        found = await self._database.fetch(select, prefix=f"{prefix}%", owner=self.owner)
        return [(name, owner) for name, owner in found]

    async def epoch(self, name: str) -> int:
        """Return the current epoch of a lease, whichever process owns it."""
        found = await self._database.fetch(statements.SELECT_EPOCH, name=name)
        return int(found[0][0]) if found else 0
