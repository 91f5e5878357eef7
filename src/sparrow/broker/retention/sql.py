"""Retention on a database: the leader deletes expired messages and adds partitions every ten minutes."""

from __future__ import annotations

import asyncio
import logging

from sparrow.model.errors import SparrowError
from sparrow.store.sql.drivers.errors import LockConflict
from sparrow.store.sql.engine import SqlStore

log = logging.getLogger(__name__)

TRIM_INTERVAL_S = 600.0


class SqlRetention:
    """Retention, while this broker leads."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def run_as_leader(self) -> None:
        """Run retention every ten minutes until cancelled."""
        while True:
            await asyncio.sleep(TRIM_INTERVAL_S)
            try:
                count = await self._store.trim()
                if count:
                    log.info("%(count)s expired messages are deleted", {"count": count})
            except (SparrowError, LockConflict) as cause:
                log.warning(
                    "expired messages cannot be deleted: %(error)s; retrying in %(retry_s)s s",
                    {"error": cause, "retry_s": TRIM_INTERVAL_S},
                )
