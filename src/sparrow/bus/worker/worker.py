"""The worker: relay, receivers, executors and maintenance of a running bus, each as a supervised task."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from sparrow.bus.context import BusContext
from sparrow.bus.handlers.executor import HandlerExecutor
from sparrow.bus.worker.maintenance import BusMaintenance
from sparrow.bus.worker.receiver import EventReceiver
from sparrow.bus.worker.relay import EventRelay
from sparrow.bus.worker.supervision import SupervisedTask

log = logging.getLogger(__name__)


class BusWorker:
    """The background tasks of one bus."""

    def __init__(self, context: BusContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self.relay = EventRelay(context)
        self.executors: dict[str, HandlerExecutor] = {}
        self.receivers: dict[str, list[EventReceiver]] = {}
        self.maintenance = BusMaintenance(context, self.executors, clock)
        self._tasks: dict[str, SupervisedTask] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arranging: asyncio.Lock = asyncio.Lock()

    async def start(self) -> None:
        """Lease a worker number, and start all tasks."""
        context, settings = self._context, self._context.settings
        self._loop = asyncio.get_running_loop()
        await self.maintenance.lease_worker_number()
        if settings.runs_relay:
            self._supervise("bus relay", self.relay.run)
        if settings.runs_handlers:
            await self._arrange()
            context.registry.on_change.append(self._changed)
        self._supervise("bus heartbeat", self.maintenance.run_heartbeats)
        self._supervise("bus number", self.maintenance.run_worker_number_renewal)
        self._supervise("bus rounds", self.maintenance.run_retry_rounds)
        self._supervise("bus cleaning", self.maintenance.run_cleanup)

    async def stop(self) -> None:
        """Stop receiving and claiming, wait for running handlers, and release the rest."""
        context, timeout_s = self._context, self._context.settings.stop_timeout_s
        if self._changed in context.registry.on_change:
            context.registry.on_change.remove(self._changed)
        receivers = [task for name, task in self._tasks.items() if name.startswith("bus receiver")]
        await asyncio.gather(*(task.stop() for task in receivers))
        # Heartbeats continue meanwhile: running handlers must keep their leases.
        await asyncio.gather(
            self.relay.stop(timeout_s), *(executor.stop(timeout_s) for executor in self.executors.values())
        )
        await asyncio.gather(*(task.stop() for task in self._tasks.values()))
        self._tasks.clear()
        try:
            await self.maintenance.release_worker_number()
        except Exception as error:  # the database may be shutting down
            log.warning("the worker number was not released", extra={"error": str(error)})

    async def listening(self, group: str) -> None:
        """Wait until a group that was just added has joined on the broker."""
        await self._arrange()
        await asyncio.gather(*(receiver.has_joined.wait() for receiver in self.receivers[group]))

    @property
    def is_joining(self) -> bool:
        """Whether a group has not joined on the broker yet, without a known error."""
        return any(
            not receiver.has_joined.is_set() and self._tasks[f"bus receiver {group} {number}"].problem is None
            for group, receivers in self.receivers.items()
            for number, receiver in enumerate(receivers)
        )

    def problems(self) -> dict[str, str]:
        """Return the failing tasks with their errors, for a readiness check."""
        return {name: str(task.problem) for name, task in self._tasks.items() if task.problem is not None}

    def _supervise(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks[name] = SupervisedTask(name, work)

    # -- groups come and go -------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Rearrange the tasks after a change of the registry, from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._arrange()))

    async def _arrange(self) -> None:
        """Start and stop executors and receivers so that they match the registry."""
        context, settings = self._context, self._context.settings
        async with self._arranging:
            plans = context.registry.groups()
            for group in [group for group in self.executors if group not in plans]:
                await self._stop_receivers(group)
                await self.executors.pop(group).stop(settings.stop_timeout_s)
                await self._tasks.pop(f"bus executor {group}").stop()
            for group, plan in plans.items():
                if group not in self.executors:
                    executor = self.executors[group] = HandlerExecutor(
                        context, group, plan.concurrency or settings.concurrency
                    )
                    self._supervise(f"bus executor {group}", executor.run)
                receivers = self.receivers.get(group, [])
                if not receivers or receivers[0].names != plan.topics:
                    await self._stop_receivers(group)
                    self.receivers[group] = [
                        EventReceiver(context, group, plan.topics) for _ in range(settings.consumers)
                    ]
                    for number, receiver in enumerate(self.receivers[group]):
                        self._supervise(f"bus receiver {group} {number}", receiver.run)

    async def _stop_receivers(self, group: str) -> None:
        for number, _ in enumerate(self.receivers.pop(group, [])):
            await self._tasks.pop(f"bus receiver {group} {number}").stop()
