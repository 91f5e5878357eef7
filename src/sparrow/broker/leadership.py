"""Leadership among the brokers on one database, and the number that each has in routes.

All of them have one broker name. The leader is number 0: clients send to it, lock queues and end transactions there.
The others serve the same requests, because the database is the same. When the leader stops renewing its lease, the
lease expires and another broker acquires it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import SparrowError
from sparrow.store.sql.drivers.errors import LockConflict
from sparrow.store.sql.engine import SqlStore

log = logging.getLogger(__name__)

LEADER_LEASE = "leader"
SEAT_PREFIX = "seat:"
"""Prefix of the leases by which brokers that do not lead hold their numbers."""
BROKERS_MAX = 64
_LEASE_QUARTERS = 4
"""A lease is renewed after a quarter of its time; after three quarters without renewal the leader steps down."""
_RENEWAL_MAX_S = 0.5
"""Another broker notices within this time that a leader has released its lease."""
_REGISTRATION_S = 0.1
"""How long a new leader needs to register with the name servers."""
_RESTART_S = 1.0
_SUCCESSOR_CHECKS = 20
"""How often a leader that stops checks, with that pause, whether another leads."""


class Leadership:
    """Renews this broker's lease, and runs the leader's background jobs while it holds it."""

    def __init__(
        self,
        store: SqlStore,
        *,
        work: Sequence[Callable[[], Coroutine[Any, Any, None]]],
        on_change: Callable[[int], Awaitable[None]],
    ) -> None:
        self._store, self._work, self._on_change = store, work, on_change
        self.number = -1
        """The broker's number in routes; 0 is the leader."""
        self._running: list[asyncio.Task[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._held_at = 0.0
        self._failures = LogIntervals()

    @property
    def is_leader(self) -> bool:
        return self.number == 0

    async def start(self) -> None:
        """Acquire a lease, and so a number; renew it in the background."""
        await self._renew()
        self._task = asyncio.get_running_loop().create_task(self._renew_forever())

    async def leave(self) -> None:
        """Release the lease; if there are other brokers, wait until one leads, so that clients find a leader."""
        await self._release()
        if not self.is_leader:
            return
        leases = self._store.leases
        with contextlib.suppress(SparrowError, LockConflict):
            for _ in range(_SUCCESSOR_CHECKS if await leases.other_holders(_seat()) else 0):
                await asyncio.sleep(_REGISTRATION_S)
                if await leases.other_holders(LEADER_LEASE):
                    await asyncio.sleep(_REGISTRATION_S)
                    return

    async def stop(self) -> None:
        await self._release()

    async def _release(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._step_down()
        with contextlib.suppress(SparrowError, LockConflict):
            await self._store.leases.release(LEADER_LEASE if self.is_leader else _seat(self.number))

    async def _renew_forever(self) -> None:
        lease_s = self._store.settings.lease_ms / 1000
        while True:
            await asyncio.sleep(min(lease_s / _LEASE_QUARTERS, _RENEWAL_MAX_S))
            try:
                await self._renew()
                if self._failures.end("renew"):
                    log.info("the lease is renewed again")
            except (SparrowError, LockConflict) as cause:
                if self._failures.is_due("renew", type(cause)):
                    log.warning("the lease cannot be renewed: %(error)s; retrying", {"error": cause})
            except Exception as bug:  # the loop must continue, to notice below that the lease has expired
                if self._failures.is_due("renew", type(bug)):
                    log.error("the lease cannot be renewed because of a bug; retrying", exc_info=bug)
            unrenewed_s = time.monotonic() - self._held_at
            if self._running and unrenewed_s > lease_s * (_LEASE_QUARTERS - 1) / _LEASE_QUARTERS:
                log.warning("stepping down: the lease was not renewed in time and may have another owner")
                await self._step_down()

    async def _renew(self) -> None:
        begun = time.monotonic()
        epoch = await self._store.leases.acquire(LEADER_LEASE)
        if epoch is not None:
            self._store.epoch = epoch
            self._held_at = begun
            if not self._running:
                log.info("this broker is the leader of epoch %(epoch)s", {"epoch": epoch})
                self._running = [asyncio.get_running_loop().create_task(_run_forever(work)) for work in self._work]
            await self._become(0)
            return
        await self._step_down()
        self._store.epoch = await self._store.leases.epoch(LEADER_LEASE)
        if self.number <= 0 or await self._store.leases.acquire(_seat(self.number)) is None:
            await self._become(await self._free_seat())

    async def _free_seat(self) -> int:
        for number in range(1, BROKERS_MAX):
            if await self._store.leases.acquire(_seat(number)) is not None:
                return number
        raise SparrowError(f"{BROKERS_MAX} brokers share this database already; stop one before starting another")

    async def _become(self, number: int) -> None:
        if number == self.number:
            return
        before, self.number = self.number, number
        if before > 0:
            await self._store.leases.release(_seat(before))
        await self._on_change(number)

    async def _step_down(self) -> None:
        running, self._running = self._running, []
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _run_forever(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Restart a background job that fails: a bug must not end it for as long as this broker leads."""
    failures = LogIntervals()
    while True:
        try:
            await work()
        except Exception as bug:
            if failures.is_due("work", type(bug)):
                log.error(
                    "background job %(job)s of the leader failed; restarting it",
                    {"job": getattr(work, "__qualname__", work)},
                    exc_info=bug,
                )
            await asyncio.sleep(_RESTART_S)


def _seat(number: int | None = None) -> str:
    return f"{SEAT_PREFIX}{'' if number is None else number}"
