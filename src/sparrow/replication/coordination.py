"""A replica's dealings with its coordinator: calls, the watch, and the lease of a leader.

1. Calls run as tasks; what they bring is an event of the state machine.
2. The lease is renewed by the same loop that serves: a broker that hangs loses it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from sparrow.model.errors import SparrowError
from sparrow.replication.coordinator import Coordinator
from sparrow.replication.core.output import Change, CoordinatorCall, Elect, HandOver, Read, Resign
from sparrow.replication.core.replica import Replica
from sparrow.replication.step_queue import StepEvent

_PAUSE_S = 0.2
"""After a call that failed, and between two watches."""

FailureReporter = Callable[[str, str], None]
"""Takes the kind of a failure, and a sentence about it."""


class Coordination:
    """Makes calls of the coordinator for one replica."""

    def __init__(
        self,
        coordinator: Coordinator,
        replica: Replica,
        submit: Callable[[StepEvent], None],
        report: FailureReporter,
    ) -> None:
        """`submit` takes events of the state machine."""
        self._coordinator, self._replica, self._submit, self._report = coordinator, replica, submit, report
        self._lease_s = 0.0
        """When the lease was last acquired or renewed, counted from before the call."""

    @property
    def has_lease(self) -> bool:
        """Whether nobody else can have been elected, as far as clocks run alike."""
        return time.monotonic() - self._lease_s <= self._coordinator.ttl_s * 3 / 4

    async def keep_lease(self) -> None:
        """Renew the lease while this replica leads, until this is cancelled."""
        interval_s = self._coordinator.ttl_s / 3
        while True:
            if self._replica.leader is not None:
                try:
                    begun_s = time.monotonic()
                    if await self._coordinator.renew():
                        self._lease_s = begun_s
                    else:
                        await self.call(Read())  # it tells what became of the key
                except SparrowError as error:
                    self._report("lease", f"the lease was not renewed: {error}")
            await asyncio.sleep(interval_s)

    async def watch(self) -> None:
        """Report what the coordinator holds after each change, until this is cancelled."""
        while True:
            try:
                async for snapshot in self._coordinator.watch():
                    self._submit(lambda now_ms, seen=snapshot: self._replica.observed(seen, now_ms))  # type: ignore[misc]
            except SparrowError as error:
                self._report("watch", f"the coordinator cannot be watched: {error}")
            await asyncio.sleep(_PAUSE_S)

    async def call(self, call: CoordinatorCall) -> None:
        """Make a call, and report what is held afterwards, or that it must be read."""
        snapshot = None
        try:
            if isinstance(call, Elect):
                self._lease_s = time.monotonic()
                await self._coordinator.elect(call)
            elif isinstance(call, Change):
                await self._coordinator.change(call)
            elif isinstance(call, HandOver):
                await self._coordinator.hand_over(call)
            elif isinstance(call, Resign):
                await self._coordinator.resign(call.leader_revision)
            else:
                snapshot = await self._coordinator.read()
        except SparrowError as error:
            self._report("coordinator", f"the coordinator cannot be reached: {error}")
            await asyncio.sleep(_PAUSE_S)
        if snapshot is not None:
            self._submit(lambda now_ms: self._replica.observed(snapshot, now_ms))
        elif not isinstance(call, Read):
            self._submit(self._replica.call_ended)

    async def resign(self, leader_revision: int) -> None:
        """Remove the leader key, if it is still the one that was created at this revision."""
        try:
            await self._coordinator.resign(leader_revision)
        except SparrowError as error:
            self._report("resign", f"the leader key was not removed and expires later: {error}")
