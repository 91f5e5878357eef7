"""Retention on a database: the leader deletes expired messages and adds partitions every ten minutes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sparrow import clock
from sparrow.model.errors import SparrowError
from sparrow.store.sql.drivers.errors import LockConflict
from sparrow.store.sql.engine import SqlStore

log = logging.getLogger(__name__)

TRIM_INTERVAL_S = 600.0


class SqlRetention:
    """Retention, while this broker leads."""

    def __init__(
        self,
        store: SqlStore,
        now_ms: Callable[[], int] = clock.now_ms,
        steady_ms: Callable[[], int] = clock.steady_ms,
        interval_s: float = TRIM_INTERVAL_S,
    ) -> None:
        self._store, self._interval_s = store, interval_s
        self._clock_guard = clock.ClockGuard(now_ms, steady_ms)

    async def run_as_leader(self) -> None:
        """Run retention every ten minutes until cancelled, unless the wall clock cannot be believed."""
        while True:
            await asyncio.sleep(self._interval_s)
            self._clock_guard.believed_ms()
            if self._clock_guard.doubt is not None:
                log.warning("%(doubt)s", {"doubt": self._clock_guard.doubt})
                continue
            try:
                count = await self._store.trim()
                if count:
                    log.info("%(count)s expired messages are deleted", {"count": count})
            except (SparrowError, LockConflict) as cause:
                log.warning(
                    "expired messages cannot be deleted: %(error)s; retrying in %(retry_s)s s",
                    {"error": cause, "retry_s": self._interval_s},
                )
