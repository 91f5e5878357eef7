"""The relay: claims published events, sends them to the broker, and marks those that it acknowledged.

1. Only committed events are sent, and only acknowledged events become Successed.
2. After half a lease no event of a batch is sent any more: another relay may claim it soon.
3. After a crash, events that were sent but not marked are sent again with the same id: at most one batch per relay.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from sparrow.bus.codec import headers as h
from sparrow.bus.codec.content_column import decode_content
from sparrow.bus.context import BusContext
from sparrow.bus.errors import LeaseLost, Undecodable
from sparrow.bus.failures import WORKER_LOST_ERROR, error_text, failed_event, wait_for_claim
from sparrow.bus.retry import NextAttempt, NoRetry
from sparrow.bus.sql.claims import Claim, ClaimedEvent, claim_due, load_claimed
from sparrow.bus.sql.completion import (
    mark_all_succeeded,
    mark_failed,
    mark_succeeded,
    release_claims,
    reschedule,
)
from sparrow.bus.sql.outbox import PUBLISHED_SIDE, outgoing_group
from sparrow.bus.states import EventStatus
from sparrow.bus.transports.spi import Envelope
from sparrow.model.errors import Unavailable

log = logging.getLogger(__name__)

BATCHES_IN_FLIGHT_MAX = 3
"""While one batch waits for the broker, others use the database."""
_PROBE_PAUSE_S = 1.0
"""With `circuit_breaker`: pause until the next attempt to reach the broker."""


class SendFailure(NamedTuple):
    """An event that was not sent, and why."""

    work: ClaimedEvent
    error: Exception


class EventRelay:
    """Sends the published events of one version."""

    def __init__(self, context: BusContext) -> None:
        self._context = context
        self._is_stopping = False
        self._sending: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        """Held while a batch is sent and marked: claims overlap, sends do not."""
        self._claiming = asyncio.Lock()

    async def run(self) -> None:
        """Claim and send batches until stopped."""
        settings = self._context.settings
        waker = self._context.wake_relay.listener()
        pause_s = settings.poll_min_s
        try:
            while not self._is_stopping:
                count = await self.step()
                if count:
                    pause_s = settings.poll_min_s
                    if len(self._sending) >= BATCHES_IN_FLIGHT_MAX:
                        await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
                elif await waker.wait(pause_s):
                    pause_s = settings.poll_min_s
                else:
                    pause_s = min(pause_s * 2, settings.poll_max_s)
        finally:
            waker.close()

    async def step(self) -> int:
        """Claim one batch and start to send it; return its size."""
        async with self._claiming:
            claimed_at = time.monotonic()
            works = await self._claim()
            if works:
                task = asyncio.create_task(self._send_batch(works, claimed_at))
                self._sending.add(task)
                task.add_done_callback(self._sent)
        return len(works)

    async def drain(self) -> None:
        """Wait for the batches in flight."""
        while self._sending:
            await asyncio.wait(self._sending)

    async def stop(self, timeout_s: float) -> None:
        """Stop claiming, and wait for the batches in flight."""
        self._is_stopping = True
        self._context.wake_relay()
        await wait_for_claim(self._claiming, timeout_s)
        if self._sending:
            _, late = await asyncio.wait(self._sending, timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # -- one batch ----------------------------------------------------------------------------------------------------

    async def _claim(self) -> list[ClaimedEvent]:
        context, settings = self._context, self._context.settings
        owner = context.owner()

        def work(db: Connection) -> list[ClaimedEvent]:
            lane = outgoing_group(settings.version)
            claims = claim_due(
                db, context.sql, PUBLISHED_SIDE, lane, settings.relay_batch, owner=owner, lease_s=settings.lease_s
            )
            return load_claimed(db, context.sql, PUBLISHED_SIDE, claims)

        works = await context.database.run(work)
        for one in works:
            context.probe.changed("published", one.claim.message_id, EventStatus.ENQUEUED, EventStatus.PROCESSING)
        return works

    async def _send_batch(self, works: list[ClaimedEvent], claimed_at: float) -> None:
        context, settings = self._context, self._context.settings
        envelopes: list[Envelope] = []
        chosen: list[ClaimedEvent] = []
        failures: list[SendFailure] = []
        for work in works:
            if work.claim.crashes >= settings.crashes_max:
                failures.append(SendFailure(work, Undecodable(WORKER_LOST_ERROR.format(crashes=work.claim.crashes))))
                continue
            try:
                envelopes.append(_envelope(work))
                chosen.append(work)
            except Exception as error:
                failures.append(SendFailure(work, Undecodable(f"the stored content cannot be read: {error}")))
        async with self._turn:
            left_s = min(claimed_at + settings.lease_s / 2 - time.monotonic(), settings.send_timeout_s)
            if left_s <= 0:
                await context.database.run(
                    lambda db: release_claims(db, context.sql, PUBLISHED_SIDE, [w.claim for w in works])
                )
                return
            if envelopes:
                began = time.perf_counter()
                outcomes = await self._send(envelopes, left_s)
                context.probe.send_seconds.add(time.perf_counter() - began)
                done = [work.claim for work, error in zip(chosen, outcomes, strict=True) if error is None]
                failures += [
                    SendFailure(w, error) for w, error in zip(chosen, outcomes, strict=True) if error is not None
                ]
                await self._mark_sent(done)
        if failures:
            await self._mark_failed(failures)
        if any(work.claim.key is not None for work in works):
            context.wake_relay()  # the next event of the key can be claimed now

    async def _send(self, envelopes: list[Envelope], timeout_s: float) -> Sequence[Exception | None]:
        try:
            async with asyncio.timeout(timeout_s):
                await self._context.transport.open()
                with self._context.tracing.sending(envelopes):
                    return await self._context.transport.send(envelopes)
        except TimeoutError:
            return [Unavailable(f"the broker did not acknowledge within {timeout_s:.1f} s")] * len(envelopes)
        except Exception as error:
            return [error] * len(envelopes)

    async def _mark_sent(self, claims: list[Claim]) -> None:
        context, kept_s = self._context, self._context.settings.succeeded_retention_s
        try:
            await context.database.run(lambda db: mark_all_succeeded(db, context.sql, PUBLISHED_SIDE, claims, kept_s))
        except LeaseLost:
            claims = await context.database.run(lambda db: self._succeed_each(db, claims))
        context.probe.count("bus_sent_total", len(claims))
        for one in claims:
            context.probe.changed("published", one.message_id, EventStatus.SUCCESSED)

    def _succeed_each(self, db: Connection, claims: list[Claim]) -> list[Claim]:
        context, ours = self._context, []
        for one in claims:
            try:
                mark_succeeded(db, context.sql, PUBLISHED_SIDE, one, context.settings.succeeded_retention_s)
                ours.append(one)
            except LeaseLost:
                context.probe.count("bus_lease_lost_total")
        return ours

    async def _mark_failed(self, failures: list[SendFailure]) -> None:
        context = self._context
        # Counted after the commit: before it, the transaction may be repeated.
        for failure, status, counts in await context.database.run(lambda db: self._mark_failed_each(db, failures)):
            work, error = failure
            if counts:
                context.probe.count("bus_retries_total", place="send")
            if status is EventStatus.FAILED:
                context.probe.changed("published", work.claim.message_id, EventStatus.FAILED)
                context.probe.failed(failed_event(work, None, error))

    def _mark_failed_each(
        self, db: Connection, failures: list[SendFailure]
    ) -> list[tuple[SendFailure, EventStatus, bool]]:
        """Mark failed sends, and return those that were still claimed.

        Each comes with its new state and whether the attempt counts.
        """
        context, settings, marked = self._context, self._context.settings, []
        for failure in failures:
            work, error = failure
            outcome = settings.retry.after(error, work.retries + 1, context.rng.random(), rounds=work.rounds)
            counts, parks = True, isinstance(error, Undecodable)
            if settings.circuit_breaker and isinstance(error, Unavailable):
                outcome, counts = NextAttempt("now", _PROBE_PAUSE_S), False
            text, kept_s = error_text(error), settings.failed_retention_s
            try:
                if isinstance(outcome, NoRetry):
                    mark_failed(
                        db, context.sql, PUBLISHED_SIDE, work.claim, text, kept_s, counts=not parks, parks=parks
                    )
                    marked.append((failure, EventStatus.FAILED, not parks))
                else:
                    reschedule(db, context.sql, PUBLISHED_SIDE, work.claim, outcome, text, counts=counts)
                    # Reported before the commit: right after it, a relay may report the next state.
                    context.probe.changed("published", work.claim.message_id, EventStatus.SCHEDULED)
                    marked.append((failure, EventStatus.SCHEDULED, counts))
            except LeaseLost:
                context.probe.count("bus_lease_lost_total")
        return marked

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The leases expire and the events are sent again.
            log.warning(
                "the result of a batch was not stored; it is sent again", extra={"error": str(error)}, exc_info=error
            )


def _envelope(work: ClaimedEvent) -> Envelope:
    headers, body = decode_content(work.content)
    return Envelope(
        name=work.name, headers=headers, body=body, added=work.added, key=headers.get(h.KEY), retries=work.retries
    )
