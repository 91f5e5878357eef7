"""Executor: claims the due messages of one group, runs their handlers, and renews the leases.

1. The lease of a claimed message is renewed until its handler ends, so no other worker starts it. A message whose
   handler has ended, or could not be started, is held no longer: otherwise it would be Processing for ever.
2. Every group has its own slots: a slow group does not delay others.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from sparrow.bus.codec.content_column import decode_content
from sparrow.bus.codec.headers import Headers
from sparrow.bus.context import BusContext
from sparrow.bus.errors import Undecodable
from sparrow.bus.failures import wait_for_claim
from sparrow.bus.handlers.attempts import HandlerAttempts, InFlightEvent
from sparrow.bus.handlers.subscription import EventSubscription
from sparrow.bus.sql.claims import ClaimedEvent, claim_due, load_claimed, renew_leases
from sparrow.bus.sql.completion import release_claims
from sparrow.bus.sql.outbox import RECEIVED_SIDE
from sparrow.bus.states import EventStatus

CLAIMS_PER_SLOT = 2
"""Messages held for each slot: one is handled, the others are ready for it. Other workers cannot handle them."""
QUICK_CLAIMS_PER_SLOT = 4
QUICK_S = 0.05
"""If one claim's messages are handled within this time, the next claim takes more: a claim is a transaction, too."""


class HandlerExecutor:
    """Runs the handlers of one group."""

    def __init__(self, context: BusContext, group: str, concurrency: int) -> None:
        self.group, self.concurrency = group, concurrency
        self._context = context
        self._held: dict[int, InFlightEvent] = {}
        self._ready: deque[InFlightEvent] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._waiting_batches: dict[EventSubscription, _Batch] = {}
        self._moved = asyncio.Event()
        """Set when a slot becomes free."""
        self._is_stopping = False
        self._claiming = asyncio.Lock()
        self._attempts = HandlerAttempts(context, group, concurrency)
        self._claims_per_slot, self._claimed_at = CLAIMS_PER_SLOT, 0.0

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Claim and handle messages until stopped."""
        settings = self._context.settings
        waker = self._context.wake_executors.listener()
        pause_s = settings.poll_min_s
        try:
            while not self._is_stopping:
                wanted = self._wanted()
                if wanted <= 0:
                    self._moved.clear()
                    await self._moved.wait()
                    continue
                began = time.monotonic()
                claimed = await self.step(wanted)
                is_quick = claimed == wanted and began - self._claimed_at < QUICK_S
                self._claims_per_slot, self._claimed_at = QUICK_CLAIMS_PER_SLOT if is_quick else CLAIMS_PER_SLOT, began
                if claimed or await waker.wait(pause_s):
                    pause_s = settings.poll_min_s
                else:
                    pause_s = min(pause_s * 2, settings.poll_max_s)
        finally:
            waker.close()

    async def step(self, count_max: int | None = None) -> int:
        """Claim due messages and start their handlers; return how many."""
        context, settings = self._context, self._context.settings
        owner, wanted = context.owner(), count_max or self._wanted()

        def work(db: Connection) -> list[ClaimedEvent]:
            claims = claim_due(
                db, context.sql, RECEIVED_SIDE, self.group, wanted, owner=owner, lease_s=settings.lease_s
            )
            return load_claimed(db, context.sql, RECEIVED_SIDE, claims)

        async with self._claiming:
            works = await context.database.run(work)
            for one in works:
                context.probe.changed("received", one.claim.message_id, EventStatus.ENQUEUED, EventStatus.PROCESSING)
            try:
                for one in works:
                    await self._accept(one)
            except Exception:
                rest = [one.claim for one in works if one.claim.message_id not in self._held]
                await context.database.run(lambda db: release_claims(db, context.sql, RECEIVED_SIDE, rest))
                raise
            finally:
                self._start()
        return len(works)

    async def drain(self) -> None:
        """Wait until no message is in flight."""
        while self._running or self._ready or self._waiting_batches:
            for batch in list(self._waiting_batches.values()):
                batch.is_due.set()
            self._start()
            if self._running:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(0)

    async def stop(self, timeout_s: float) -> None:
        """Stop claiming, and wait for running handlers.

        Handlers that exceed the timeout are cancelled; messages that were not started are released.
        """
        self._is_stopping = True
        self._moved.set()
        self._context.wake_executors()
        await wait_for_claim(self._claiming, timeout_s)
        unbegun = list(self._ready)
        self._ready.clear()
        for batch in self._waiting_batches.values():
            unbegun += batch.held
            batch.held = []
            batch.is_due.set()
        await self._hand_back(unbegun)
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=timeout_s)
            committing = {held.task for held in self._held.values() if held.is_committing}
            for held in self._held.values():
                held.cancel.cancel()
            for task in late - committing:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._hand_back(list(self._held.values()))
        await self._attempts.close()

    async def heartbeat(self) -> None:
        """Renew all leases, and cancel the handlers whose message another worker has claimed."""
        context = self._context
        held = {number: one for number, one in self._held.items() if one.renews_lease and not one.is_committing}
        if not held:
            return
        claims = [one.work.claim for one in held.values()]
        kept = await context.database.run(
            lambda db: renew_leases(db, context.sql, RECEIVED_SIDE, claims, context.settings.lease_s)
        )
        for number, one in held.items():
            if number not in kept and self._held.get(number) is one and not one.is_committing:
                one.is_lost = True
                one.cancel.cancel()
                if one.task is not None:
                    one.task.cancel()
                else:
                    self._held.pop(number, None)
                    if one in self._ready:
                        self._ready.remove(one)
                context.probe.count("bus_lease_lost_total")

    # -- what is held -------------------------------------------------------------------------------------------------

    def _wanted(self) -> int:
        """Return how many messages to claim: those for twice the slots, or more for a batch or quick handlers."""
        batch = max((each.batch or 0 for each in self._subscriptions()), default=0)
        slots = self.concurrency * self._claims_per_slot
        wanted = max(slots, batch + self.concurrency) - len(self._held)
        # Not for a single free slot: a claim costs about as much as a handler's own transaction.
        return wanted if wanted * 4 >= slots else 0

    def _subscriptions(self) -> Sequence[EventSubscription]:
        plan = self._context.registry.groups().get(self.group)
        return plan.subscriptions if plan is not None else ()

    async def _accept(self, work: ClaimedEvent) -> None:
        context = self._context
        subscription = context.registry.find(self.group, work.name)
        held = InFlightEvent(work, subscription)
        if subscription is not None and subscription.max_runtime_s is not None:
            # A single lease: a handler at REPEATABLE READ must find its queue row unchanged.
            held.renews_lease = False
            runtime_s = subscription.max_runtime_s
            await context.database.run(lambda db: renew_leases(db, context.sql, RECEIVED_SIDE, [work.claim], runtime_s))
        try:
            headers, held.body = decode_content(work.content)
            held.headers = Headers(headers)
        except Exception as error:
            held.subscription = None
            held.content_error = Undecodable(f"the stored content cannot be read: {error}")
            held.content_error.__cause__ = error
        self._held[work.claim.message_id] = held
        is_poison = work.claim.crashes >= context.settings.crashes_max
        if held.subscription is not None and held.subscription.batch is not None and not is_poison:
            batch = self._waiting_batches.get(held.subscription)
            if batch is None or len(batch.held) >= batch.size:
                batch = self._waiting_batches[held.subscription] = _Batch(held.subscription.batch)
                self._launch(self._collect(held.subscription, batch))
            batch.held.append(held)
            if len(batch.held) >= batch.size:
                batch.is_due.set()
        else:
            self._ready.append(held)

    def _start(self) -> None:
        while self._ready and len(self._running) < self.concurrency and not self._is_stopping:
            self._launch(self._slot())

    def _launch(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._moved.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._attempts.log.not_stored("a handler", error)

    async def _slot(self) -> None:
        """Handle ready messages one after the other; one slot of the group."""
        while self._ready and not self._is_stopping:
            held = self._ready.popleft()
            task = held.task = asyncio.current_task()
            assert task is not None
            try:
                await self._attempts.one(held)
            except asyncio.CancelledError:
                if not held.is_lost:  # `stop` releases the message
                    raise
                task.uncancel()
            except Exception as error:
                self._attempts.log.not_stored(held.handler_name, error)
            self._held.pop(held.work.claim.message_id, None)
            self._moved.set()

    async def _collect(self, subscription: EventSubscription, batch: _Batch) -> None:
        """Wait until a batch is full or has waited long enough, then handle it."""
        try:
            async with asyncio.timeout(subscription.within_s):
                await batch.is_due.wait()
        except TimeoutError:
            pass
        if self._waiting_batches.get(subscription) is batch:
            del self._waiting_batches[subscription]
        held = [one for one in batch.held if not one.is_lost]
        if not held or self._is_stopping:
            return
        task = asyncio.current_task()
        assert task is not None
        for one in held:
            one.task = task
        try:
            await self._attempts.batch(subscription, held)
        except asyncio.CancelledError:
            if not any(one.is_lost for one in held):
                raise
            task.uncancel()
            await self._hand_back([one for one in held if not one.is_lost])
        except Exception as error:
            self._attempts.log.not_stored(subscription.name, error)
        for one in held:
            self._held.pop(one.work.claim.message_id, None)
        self._moved.set()

    async def _hand_back(self, held: Sequence[InFlightEvent]) -> None:
        context = self._context
        claims = [one.work.claim for one in held if not one.is_committing]
        for one in held:
            self._held.pop(one.work.claim.message_id, None)
        if claims:
            await context.database.run(lambda db: release_claims(db, context.sql, RECEIVED_SIDE, claims))


@dataclass(eq=False)
class _Batch:
    size: int
    held: list[InFlightEvent] = field(default_factory=list)
    is_due: asyncio.Event = field(default_factory=asyncio.Event)
