"""Now and then whoever leads deletes what is old, and sees to it that tables have room."""

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
        """Tidy up every ten minutes, until cancelled."""
        while True:
            await asyncio.sleep(TRIM_INTERVAL_S)
            try:
                count = await self._store.trim()
                if count:
                    log.info("old messages deleted", extra={"count": count})
            except (SparrowError, LockConflict) as cause:
                log.warning("old messages not deleted", extra={"why": str(cause)})
