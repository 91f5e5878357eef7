"""Which of the brokers on one database leads, and what number each has in routes.

Routes know one broker by name: the database. Its leader is number 0, where clients send, lock and end transactions; the
others serve whatever they are asked all the same, since the database is the same. When the leader falls silent its
lease runs out, and another takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from sparrow.model.errors import SparrowError
from sparrow.store.sql.drivers.errors import LockConflict
from sparrow.store.sql.engine import SqlStore

log = logging.getLogger(__name__)

LEADER_LEASE = "leader"
BROKERS_MAX = 64
_SHARES = 4
"""A lease is renewed after a quarter of its time, and no longer counted on after three."""
_LOOK_S = 0.5
"""At the latest: a leader that stops is replaced as soon as somebody looks."""
_REGISTERED_S = 0.1
"""Between leading and being known for it to the name servers."""
_AGAIN_S = 1.0
_LOOKS = 20
"""So often, with that pause, a leader that stops looks for another."""


class Leadership:
    """Keeps this broker's lease, and runs what only the leader does while it has it."""

    def __init__(
        self,
        store: SqlStore,
        *,
        work: Sequence[Callable[[], Coroutine[Any, Any, None]]],
        on_change: Callable[[int], Awaitable[None]],
    ) -> None:
        self._store, self._work, self._on_change = store, work, on_change
        self.number = -1
        """In routes; 0 leads."""
        self._running: list[asyncio.Task[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._held_at = 0.0

    @property
    def is_leader(self) -> bool:
        return self.number == 0

    async def start(self) -> None:
        """Has a number when this returns."""
        await self._renew()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def leave(self) -> None:
        """Let another lead, if there is one; done when it does, so that clients always find somebody."""
        await self._let_go()
        if not self.is_leader:
            return
        leases = self._store.leases
        with contextlib.suppress(SparrowError, LockConflict):
            for _ in range(_LOOKS if await leases.other_holders(_seat()) else 0):
                await asyncio.sleep(_REGISTERED_S)
                if await leases.other_holders(LEADER_LEASE):
                    await asyncio.sleep(_REGISTERED_S)
                    return

    async def stop(self) -> None:
        await self._let_go()

    async def _let_go(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._step_down()
        with contextlib.suppress(SparrowError, LockConflict):
            await self._store.leases.release(LEADER_LEASE if self.is_leader else _seat(self.number))

    async def _keep(self) -> None:
        lease_s = self._store.settings.lease_ms / 1000
        while True:
            await asyncio.sleep(min(lease_s / _SHARES, _LOOK_S))
            try:
                await self._renew()
            except (SparrowError, LockConflict) as cause:
                log.warning("the lease could not be renewed", extra={"cause": str(cause)})
            except Exception as mistake:  # ours: but who does not renew must also hear that it has lost the lease
                log.error("the lease could not be renewed", exc_info=mistake)
            passed_s = asyncio.get_running_loop().time() - self._held_at
            if self._running and passed_s > lease_s * (_SHARES - 1) / _SHARES:
                log.warning("the lease may have been lost: another broker leads from now on")
                await self._step_down()

    async def _renew(self) -> None:
        begun = asyncio.get_running_loop().time()
        epoch = await self._store.leases.acquire(LEADER_LEASE)
        if epoch is not None:
            self._store.epoch = epoch
            self._held_at = begun
            if not self._running:
                log.info("this broker leads", extra={"epoch": epoch})
                self._running = [asyncio.get_running_loop().create_task(_on_and_on(work)) for work in self._work]
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
        raise SparrowError(f"{BROKERS_MAX} brokers share this database already")

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


async def _on_and_on(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A mistake of ours in one piece of work must not end it for as long as this broker leads."""
    while True:
        try:
            await work()
        except Exception as mistake:
            log.error("the leader's work failed, and begins again", exc_info=mistake)
            await asyncio.sleep(_AGAIN_S)


def _seat(number: int | None = None) -> str:
    return f"seat:{'' if number is None else number}"
