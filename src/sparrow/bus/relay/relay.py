"""Sends what is published: claims rows, hands them to the broker, and marks those that it acknowledged.

1. Nothing is sent that was not committed, and nothing is Successed that the broker did not acknowledge.
2. After half a lease nothing of a batch is sent any more: another relay may have it soon.
3. What was sent and not marked, because we died, is sent again with the same id: of one relay, one batch at most.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from sparrow.bus import headers as h
from sparrow.bus.codec.content_column import decode_content
from sparrow.bus.context import BusContext
from sparrow.bus.errors import LeaseLost, Undecodable
from sparrow.bus.retry import NextAttempt, NoRetry
from sparrow.bus.sql.claims import Claim, ClaimedEvent, claim_due, load_claimed
from sparrow.bus.sql.completion import (
    ERROR_CHARS_MAX,
    mark_all_succeeded,
    mark_failed,
    mark_succeeded,
    release_claims,
    reschedule,
)
from sparrow.bus.sql.outbox import PUBLISHED_SIDE, outgoing_group
from sparrow.bus.states import EventStatus
from sparrow.bus.telemetry.probe import FailedEvent
from sparrow.bus.transports.spi import Envelope
from sparrow.model.errors import Unavailable

log = logging.getLogger(__name__)

BATCHES_IN_FLIGHT_MAX = 3
"""On their way at once: while one waits for the broker, the database is busy with the others."""
_PROBE_PAUSE_S = 1.0
"""With the breaker open: how long until the next look at the broker."""
WORKER_LOST_ERROR = "worker lost: {crashes} workers died or hung while they had this message"


class SendFailure(NamedTuple):
    """An attempt that failed."""

    work: ClaimedEvent
    error: Exception


class EventRelay:
    def __init__(self, context: BusContext) -> None:
        self._context = context
        self._is_stopping = False
        self._sending: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        """Whose batch is being sent or marked: claims run ahead, sends do not."""
        self._claiming = asyncio.Lock()

    async def run(self) -> None:
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
        """Claim one batch and set out to send it; how many it has."""
        async with self._claiming:
            claimed_at = time.monotonic()
            works = await self._claim()
            if works:
                task = asyncio.create_task(self._forward(works, claimed_at))
                self._sending.add(task)
                task.add_done_callback(self._sent)
        return len(works)

    async def drain(self) -> None:
        """Wait for what is on its way."""
        while self._sending:
            await asyncio.wait(self._sending)

    async def stop(self, timeout_s: float) -> None:
        """Claims nothing more, and waits for what is on its way."""
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

    async def _forward(self, works: list[ClaimedEvent], claimed_at: float) -> None:
        context, settings = self._context, self._context.settings
        envelopes: list[Envelope] = []
        chosen: list[ClaimedEvent] = []
        faults: list[SendFailure] = []
        for work in works:
            if work.claim.crashes >= settings.crashes_max:
                faults.append(SendFailure(work, Undecodable(WORKER_LOST_ERROR.format(crashes=work.claim.crashes))))
                continue
            try:
                envelopes.append(_envelope(work))
                chosen.append(work)
            except Exception as error:
                faults.append(SendFailure(work, Undecodable(f"the stored content cannot be read: {error}")))
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
                faults += [
                    SendFailure(w, error) for w, error in zip(chosen, outcomes, strict=True) if error is not None
                ]
                await self._mark_sent(done)
        if faults:
            await self._mark_failed(faults)
        if any(work.claim.key is not None for work in works):
            context.wake_relay()  # the next one of the same key has become the first

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

    async def _mark_failed(self, faults: list[SendFailure]) -> None:
        context = self._context
        # Counted after the commit: until then it may all be done again.
        for fault, status, counts in await context.database.run(lambda db: self._fail_each(db, faults)):
            work, error = fault
            if counts:
                context.probe.count("bus_retries_total", place="send")
            if status is EventStatus.FAILED:
                context.probe.changed("published", work.claim.message_id, EventStatus.FAILED)
                context.probe.failed(failed_event(work, None, error))

    def _fail_each(self, db: Connection, faults: list[SendFailure]) -> list[tuple[SendFailure, EventStatus, bool]]:
        """Those that were ours to mark, what they are now, and whether the attempt counts."""
        context, settings, marked = self._context, self._context.settings, []
        for fault in faults:
            work, error = fault
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
                    marked.append((fault, EventStatus.FAILED, not parks))
                else:
                    reschedule(db, context.sql, PUBLISHED_SIDE, work.claim, outcome, text, counts=counts)
                    # Told before the commit: a moment after it, a relay may tell what comes next.
                    context.probe.changed("published", work.claim.message_id, EventStatus.SCHEDULED)
                    marked.append((fault, EventStatus.SCHEDULED, counts))
            except LeaseLost:
                context.probe.count("bus_lease_lost_total")
        return marked

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Its leases run out, and it is sent again: nothing is lost.
            log.warning("a batch was not marked", extra={"error": str(error)}, exc_info=error)


def _envelope(work: ClaimedEvent) -> Envelope:
    headers, body = decode_content(work.content)
    return Envelope(
        name=work.name, headers=headers, body=body, added=work.added, key=headers.get(h.KEY), retries=work.retries
    )


async def wait_for_claim(claiming: asyncio.Lock, timeout_s: float) -> None:
    """Until a claim that was begun has come home: what it brings is sent, or handed back."""
    try:
        async with asyncio.timeout(timeout_s), claiming:
            pass
    except TimeoutError:
        pass


def error_text(error: BaseException) -> str:
    """As CAP notes it: the kind of error, and what it says."""
    try:
        said = str(error)
    except Exception:
        said = "(it has no words)"
    # Neither NUL nor half a character goes into every database, and an attempt that cannot be noted never ends.
    text = f"{type(error).__name__}-->{said}"[:ERROR_CHARS_MAX].replace("\0", "\\0")
    return text.encode(errors="backslashreplace").decode()


def failed_event(work: ClaimedEvent, group: str | None, error: BaseException) -> FailedEvent:
    try:
        headers = decode_content(work.content)[0]
    except Exception:
        headers = {}
    return FailedEvent(
        "published" if group is None else "received",
        work.claim.message_id,
        work.name,
        group,
        headers,
        work.content,
        error_text(error),
        work.retries + 1,
        work.rounds,
    )
