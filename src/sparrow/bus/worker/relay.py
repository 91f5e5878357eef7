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
from sparrow.bus.failures import WORKER_LOST_ERROR, error_text, failed_event, next_try, wait_for_claim
from sparrow.bus.retry import NextAttempt, NoRetry
from sparrow.bus.sql.claims import Claim, ClaimedEvent, claim_due, load_claimed
from sparrow.bus.sql.completion import (
    mark_all_succeeded,
    mark_failed,
    mark_succeeded,
    release_claims,
    reschedule,
)
from sparrow.bus.sql.connections.database import is_database_away
from sparrow.bus.sql.outbox import PUBLISHED_SIDE, outgoing_group
from sparrow.bus.states import EventStatus
from sparrow.bus.transports.spi import Envelope
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import Unavailable

log = logging.getLogger(__name__)

BATCHES_IN_FLIGHT_MAX = 3
"""While one batch waits for the broker, others use the database."""
_SEND_S_MIN = 0.2
"""With less time than this left of their leases, events are released and claimed again, instead of sent."""
_PROBE_PAUSE_S = 1.0
"""With `circuit_breaker`: pause until the next attempt to reach the broker."""
_QUIET_S = 30.0
"""After a failed send the broker counts as usable when a send succeeds, or when none has failed for this long."""


class SendFailure(NamedTuple):
    """An event that was not sent, and why."""

    work: ClaimedEvent
    error: Exception


class MarkedFailure(NamedTuple):
    """A failed send as it was written to the table."""

    failure: SendFailure
    attempt: NextAttempt | None
    """None: the event is Failed."""
    counts: bool
    is_parked: bool


class EventRelay:
    """Sends the published events of one version."""

    def __init__(self, context: BusContext) -> None:
        self._context = context
        self._is_stopping = False
        self._sending: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        """Held while a batch is sent and marked: claims overlap, sends do not."""
        self._claiming = asyncio.Lock()
        self.has_broker = asyncio.Event()
        """Set while the broker can be used, as far as `watch_broker` knows."""
        self._broker_error: Exception | None = None
        """Why the last send did not reach the broker."""
        self._broker_changed = asyncio.Event()
        self._away = LogIntervals()

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

    async def watch_broker(self) -> None:
        """Connect to the broker, and wait until a send fails to reach it; raise the error of either.

        A supervised task runs this, so that a broker that cannot be used is a problem of the bus even when the process
        has no subscriber, or nothing to send.
        """
        settings = self._context.settings
        try:
            async with asyncio.timeout(settings.send_timeout_s):
                await self._context.transport.open()
        except TimeoutError:
            raise Unavailable(f"the broker did not answer within {settings.send_timeout_s:g} s") from None
        while self._broker_error is not None:
            self._broker_changed.clear()
            try:
                async with asyncio.timeout(_QUIET_S):
                    await self._broker_changed.wait()
            except TimeoutError:
                self._broker_error = None
        self.has_broker.set()
        try:
            while self._broker_error is None:
                self._broker_changed.clear()
                await self._broker_changed.wait()
        finally:
            self.has_broker.clear()
        raise self._broker_error

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
            left_s = claimed_at + settings.lease_s / 2 - time.monotonic()
            if left_s <= min(_SEND_S_MIN, settings.lease_s / 10):  # too short: it would count as a failed attempt
                await context.database.run(
                    lambda db: release_claims(db, context.sql, PUBLISHED_SIDE, [w.claim for w in works])
                )
                return
            if envelopes:
                began = time.perf_counter()
                outcomes = await self._send(envelopes, min(left_s, settings.send_timeout_s))
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
        outcomes: Sequence[Exception | None]
        try:
            async with asyncio.timeout(timeout_s):
                await self._context.transport.open()
                with self._context.spans.sending(envelopes):
                    outcomes = await self._context.transport.send(envelopes)
        except TimeoutError:
            settings = self._context.settings
            is_whole = timeout_s == settings.send_timeout_s
            limit = "send_timeout_s" if is_whole else f"what was left of half a lease of {settings.lease_s:g} s"
            reason = f"the broker did not acknowledge within {timeout_s:.1f} s ({limit})"
            outcomes = [Unavailable(reason)] * len(envelopes)
        except Exception as error:  # nothing could be tried
            self._note_broker(error)
            return [error] * len(envelopes)
        lost = [error for error in outcomes if isinstance(error, (Unavailable, OSError))]
        if None in outcomes:
            self._note_broker(None)
        elif lost:
            self._note_broker(lost[0])
        return outcomes

    def _note_broker(self, error: Exception | None) -> None:
        if error is not None or self._broker_error is not None:
            self._broker_error = error
            self._broker_changed.set()

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
        for marked in await context.database.run(lambda db: self._mark_failed_each(db, failures)):
            work, error = marked.failure
            self._log_failure(marked)
            if marked.counts:
                context.probe.count("bus_retries_total", place="send")
            if marked.attempt is None:
                context.probe.changed("published", work.claim.message_id, EventStatus.FAILED)
                context.probe.failed(failed_event(work, None, error))

    def _log_failure(self, marked: MarkedFailure) -> None:
        """Log a failed attempt. While the broker cannot be used, the finding of `watch_broker` is the warning."""
        work, error = marked.failure
        is_broker = self._broker_error is not None and isinstance(error, (type(self._broker_error), Unavailable))
        log.log(
            logging.INFO if is_broker else logging.WARNING,
            "event %(event)s, message %(id)d: attempt %(attempt)d to send it to %(broker)s failed: %(error)s;"
            " %(next_try)s",
            {
                "event": work.name,
                "id": work.claim.message_id,
                "attempt": work.retries + 1,
                "broker": self._context.broker,
                "error": error_text(error),
                "next_try": next_try(marked.attempt, work, self._context.now(), is_parked=marked.is_parked),
            },
            exc_info=None if is_broker else error,
        )

    def _mark_failed_each(self, db: Connection, failures: list[SendFailure]) -> list[MarkedFailure]:
        """Mark failed sends, and return those that were still claimed."""
        context, settings = self._context, self._context.settings
        marked: list[MarkedFailure] = []
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
                    marked.append(MarkedFailure(failure, None, not parks, parks))
                else:
                    reschedule(db, context.sql, PUBLISHED_SIDE, work.claim, outcome, text, counts=counts)
                    # Reported before the commit: right after it, a relay may report the next state.
                    context.probe.changed("published", work.claim.message_id, EventStatus.SCHEDULED)
                    marked.append(MarkedFailure(failure, outcome, counts, False))
            except LeaseLost:
                context.probe.count("bus_lease_lost_total")
        return marked

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The leases expire and the events are sent again.
            is_away = is_database_away(error)
            if is_away and not self._away.is_due("database"):
                return
            log.warning(
                "the result of a batch was not stored: %(error)s; its events are sent again when their leases end",
                {"error": error},
                exc_info=None if is_away else error,
            )


def _envelope(work: ClaimedEvent) -> Envelope:
    headers, body = decode_content(work.content)
    return Envelope(
        name=work.name, headers=headers, body=body, added=work.added, key=headers.get(h.KEY), retries=work.retries
    )
