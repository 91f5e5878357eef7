"""Periodic tasks: lease renewal, retry rounds, deletion of expired events, repair, and the worker number.

A row in the table `lock` lets one process at a time do what concerns all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from datetime import time as datetime_time
from functools import partial

from sqlalchemy import Connection

from sparrow.bus.context import BusContext
from sparrow.bus.handlers.executor import HandlerExecutor
from sparrow.bus.publish.snowflake import LEASED_WORKER_NUMBERS
from sparrow.bus.sql import locks, maintenance
from sparrow.bus.states import EventStatus
from sparrow.bus.worker.expired_archive import ExpiredEventArchive

log = logging.getLogger(__name__)

_LOCK_SLACK_S = 10.0
_WORKER_TTL_S = 120.0
_REENQUEUE_BATCH = 500
_START_JITTER_S = 30.0
_TICK_S = 0.25
"""Interval at which due times are checked: the clock of tests jumps."""


class BusMaintenance:
    """The periodic tasks of one worker."""

    def __init__(
        self, context: BusContext, executors: Mapping[str, HandlerExecutor], clock: Callable[[], float]
    ) -> None:
        """Create the tasks; `clock` returns seconds that only grow, and tests move it."""
        self._context, self._executors, self._clock = context, executors, clock
        self._archive = None if context.settings.archive is None else ExpiredEventArchive(context.settings.archive)

    # -- what is done -------------------------------------------------------------------------------------------------

    async def start_retry_rounds(self) -> int:
        """Start a new round of attempts for all failed messages; return how many."""
        context, settings, total = self._context, self._context.settings, 0
        for side in maintenance.MESSAGE_SIDES:
            while True:
                numbers = await context.database.run(
                    partial(
                        maintenance.start_retry_round,
                        sql=context.sql,
                        side=side,
                        count_max=_REENQUEUE_BATCH,
                        failed_retention_s=settings.failed_retention_s,
                    )
                )
                total += len(numbers)
                for number in numbers:
                    context.probe.changed("published" if side == 0 else "received", number, EventStatus.ENQUEUED)
                if len(numbers) < _REENQUEUE_BATCH:
                    break
        if total:
            context.probe.count("bus_retries_total", total, place="round")
            context.wake_relay()
            context.wake_executors()
        return total

    async def delete_expired(self) -> int:
        """Delete expired messages in small batches with pauses between them; return how many."""
        context, settings, total = self._context, self._context.settings, 0
        for side in maintenance.MESSAGE_SIDES:
            while True:
                count = await self._delete_expired_batch(side)
                total += count
                if count < settings.cleanup_batch:
                    break
                await asyncio.sleep(settings.cleanup_pause_s)
        while True:
            count = await context.database.run(
                lambda db: maintenance.delete_expired_inbox_keys(
                    db, context.sql, settings.cleanup_batch, settings.inbox_retention_s
                )
            )
            if count < settings.cleanup_batch:
                break
            await asyncio.sleep(settings.cleanup_pause_s)
        context.probe.count("bus_cleaner_rows_total", total)
        return total

    async def _delete_expired_batch(self, side: int) -> int:
        context, settings = self._context, self._context.settings
        archive = self._archive

        def work(db: Connection) -> int:
            numbers = maintenance.expired_ids(db, context.sql, side, settings.cleanup_batch)
            if not numbers:
                return 0
            if archive is not None:  # written before they are deleted; after a crash in between they are archived twice
                archive.write(
                    "published" if side == 0 else "received", maintenance.read_rows(db, context.sql, side, numbers)
                )
            return maintenance.delete_expired(db, context.sql, side, numbers)

        return await context.database.run(work)

    async def repair_orphans(self) -> tuple[int, int]:
        """Repair orphaned rows; both counts are 0 unless something else has changed the tables."""
        context, without_queue_row, without_message = self._context, 0, 0
        for side in maintenance.MESSAGE_SIDES:
            found = await context.database.run(partial(maintenance.repair_orphans, sql=context.sql, side=side))
            without_queue_row, without_message = without_queue_row + found[0], without_message + found[1]
        if without_queue_row or without_message:
            context.probe.count("bus_mended_total", without_queue_row + without_message)
            log.warning(
                "orphaned rows were repaired",
                extra={"without_queue": without_queue_row, "without_message": without_message},
            )
        return without_queue_row, without_message

    async def heartbeat(self) -> None:
        """Renew the leases of all executors."""
        for executor in list(self._executors.values()):
            await executor.heartbeat()

    async def lease_worker_number(self) -> None:
        """Lease a worker number for new ids, or renew the lease."""
        context = self._context
        if context.sql.is_strict:
            return
        worker = context.ids.worker
        if worker < LEASED_WORKER_NUMBERS and await context.database.run(
            lambda db: locks.acquire(
                db, context.sql, f"{locks.WORKER_LOCK_PREFIX}{worker}", context.instance, _WORKER_TTL_S
            )
        ):
            return
        context.ids.use(
            await context.database.run(
                lambda db: locks.lease_free_worker_number(
                    db, context.sql, context.instance, _WORKER_TTL_S, LEASED_WORKER_NUMBERS
                )
            )
        )

    async def release_worker_number(self) -> None:
        """Release the leased worker number."""
        context = self._context
        worker = context.ids.worker
        if worker < LEASED_WORKER_NUMBERS and not context.sql.is_strict:
            context.ids.use(None)
            await context.database.run(
                lambda db: locks.release(db, context.sql, f"{locks.WORKER_LOCK_PREFIX}{worker}", context.instance)
            )

    # -- when ---------------------------------------------------------------------------------------------------------

    async def run_heartbeats(self) -> None:
        interval_s = self._context.settings.lease_s / 3
        while True:
            await asyncio.sleep(interval_s)
            await self.heartbeat()

    async def run_worker_number_renewal(self) -> None:
        while True:
            await asyncio.sleep(_WORKER_TTL_S / 4)
            await self.lease_worker_number()

    async def run_retry_rounds(self) -> None:
        interval_s = self._context.settings.retry_round_interval_s
        if interval_s is not None:
            await self._every(interval_s, "retry", self.start_retry_rounds)

    async def run_cleanup(self) -> None:
        settings = self._context.settings

        async def clean_up() -> None:
            if settings.cleanup_between is None or is_between(datetime.now(UTC).time(), settings.cleanup_between):
                await self.delete_expired()
                await self.repair_orphans()

        # Also soon after the start: a process that is restarted every day must clean up as well.
        soon_s = self._context.rng.random() * min(_START_JITTER_S, settings.cleanup_interval_s / 10)
        await self._every(settings.cleanup_interval_s, "clean", clean_up, first_s=soon_s)

    async def _every(
        self, interval_s: float, key: str, work: Callable[[], Awaitable[object]], first_s: float | None = None
    ) -> None:
        due = self._clock() + (interval_s if first_s is None else first_s)
        while True:
            await asyncio.sleep(min(_TICK_S, interval_s))
            if self._clock() < due:
                continue
            due += interval_s * max(1, (self._clock() - due) // interval_s)
            if await self._alone(key, interval_s):
                await work()

    async def _alone(self, key: str, interval_s: float) -> bool:
        """Return whether this process runs the task; the lock expires just before the next run."""
        context = self._context
        if context.sql.is_strict:
            return True  # every process runs it: SKIP LOCKED separates them
        return await context.database.run(
            lambda db: locks.acquire(db, context.sql, key, context.instance, interval_s + _LOCK_SLACK_S)
        )


def is_between(now: datetime_time, hours: tuple[datetime_time, datetime_time]) -> bool:
    """Return whether a time lies in a range, which may include midnight."""
    first, last = hours
    if first <= last:
        return first <= now <= last
    return now >= first or now <= last
