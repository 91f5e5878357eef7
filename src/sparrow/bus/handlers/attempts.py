"""Attempts: call the handler of a message or a batch, and complete the message in the handler's transaction.

1. An attempt takes effect only by the commit that also completes the message. Without the lease it has no effect.
2. A handler that was cancelled or timed out has not succeeded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import msgspec
from sqlalchemy import Connection

from sparrow.bus.codec import headers as h
from sparrow.bus.codec.content_column import encode_content
from sparrow.bus.codec.headers import Headers
from sparrow.bus.context import BusContext
from sparrow.bus.errors import LeaseLost, NoSubscriber, Reject, Undecodable
from sparrow.bus.failures import WORKER_LOST_ERROR, error_text, failed_event, next_try
from sparrow.bus.handlers.attempt_log import AttemptLog
from sparrow.bus.handlers.call_plan import CancelToken, Event
from sparrow.bus.handlers.filters import FilterContext, chain_filters
from sparrow.bus.handlers.subscription import EventSubscription
from sparrow.bus.handlers.transactions import (
    AsyncSessionTransaction,
    HandlerTransaction,
    NoTransaction,
    NoTransactionInProcess,
    SessionTransaction,
    SpareSession,
    close_sessions,
)
from sparrow.bus.publish.bound_transaction import bind_transaction
from sparrow.bus.publish.outgoing_event import OutgoingEvent, write_event
from sparrow.bus.publish.transaction_handle import TransactionHandle
from sparrow.bus.retry import NoRetry
from sparrow.bus.sql.claims import ClaimedEvent
from sparrow.bus.sql.completion import mark_failed, mark_succeeded, release_claims, reschedule
from sparrow.bus.sql.connections.database import is_transient
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.outbox import RECEIVED_SIDE
from sparrow.bus.states import EventStatus

log = logging.getLogger(__name__)

CONFLICT_TRIES = 4
"""A handler's transaction that conflicted with another one is repeated at once; this does not count as an attempt."""
_THREADS_MAX = 64


@dataclass(eq=False)
class InFlightEvent:
    """A claimed message that waits for its handler, or is being handled."""

    work: ClaimedEvent
    subscription: EventSubscription | None
    headers: Headers = field(default_factory=Headers)
    body: bytes = b""
    content_error: Undecodable | None = None
    """The stored content cannot be read: there is nothing to call a handler with."""
    cancel: CancelToken = field(default_factory=CancelToken)
    task: asyncio.Task[Any] | None = None
    is_committing: bool = False
    """The commit is in progress: the lease is no longer renewed or checked."""
    is_lost: bool = False
    renews_lease: bool = True

    @property
    def handler_name(self) -> str:
        return "no handler" if self.subscription is None else self.subscription.name


class HandlerAttempts:
    """Runs the attempts of one group, with the threads and processes of its handlers."""

    def __init__(self, context: BusContext, group: str, concurrency: int) -> None:
        self._context, self._group, self._concurrency = context, group, concurrency
        self.log = AttemptLog(group)
        self._spare: list[SpareSession] = []
        self._threads: ThreadPoolExecutor | None = None
        self._processes: ProcessPoolExecutor | None = None

    async def close(self) -> None:
        """Shut the pools down without waiting: a handler that still runs cannot commit any more."""
        await close_sessions(self._spare)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            self._processes.shutdown(wait=False, cancel_futures=True)

    async def one(self, held: InFlightEvent) -> None:
        """Handle one message."""
        context, subscription = self._context, held.subscription
        began = time.perf_counter()
        try:
            if held.work.claim.crashes >= context.settings.crashes_max:
                raise Undecodable(WORKER_LOST_ERROR.format(crashes=held.work.claim.crashes))
            if held.content_error is not None:
                raise held.content_error
            if subscription is None:
                raise NoSubscriber(held.work.name, self._group)
            payload = subscription.plan.decode(held.body)
            event = self._event(held, payload)
            with context.spans.handling(held.headers, subscription.name):
                await self._invoke(subscription, [held], payload, held.headers, event)
        except LeaseLost as error:
            held.is_lost = True
            context.probe.count("bus_lease_lost_total")
            log.warning("event %(event)s was not handled: %(error)s", {"event": held.work.name, "error": error})
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            await self._failed(held, HandlerInterrupted(error))  # something inside the handler was cancelled
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            await self._failed(held, error)
        else:
            self._succeeded([held], began)

    async def batch(self, subscription: EventSubscription, held: list[InFlightEvent]) -> None:
        """Handle a batch of messages in one call."""
        context = self._context
        began = time.perf_counter()
        whole: list[InFlightEvent] = []
        payloads: list[Any] = []
        for one in held:
            try:
                payloads.append(subscription.plan.decode(one.body))
                whole.append(one)
            except Exception as error:
                await self._failed(one, error)
        if not whole:
            return
        events = [self._event(one, payload) for one, payload in zip(whole, payloads, strict=True)]
        try:
            await self._invoke(subscription, whole, payloads, [one.headers for one in whole], events)
        except LeaseLost as error:
            # Another worker holds one of them now. The others were not handled either: release them.
            context.probe.count("bus_lease_lost_total")
            log.warning("a batch of %(count)d events was not handled: %(error)s", {"count": len(whole), "error": error})
            claims = [one.work.claim for one in whole if one.work.claim.message_id != error.message_id]
            await context.database.run(lambda db: release_claims(db, context.sql, RECEIVED_SIDE, claims))
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            await self._batch_failed(whole, HandlerInterrupted(error))
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            await self._batch_failed(whole, error)
        else:
            self._succeeded(whole, began)

    async def _invoke(
        self, subscription: EventSubscription, held: list[InFlightEvent], payload: Any, headers: Any, event: Any
    ) -> None:
        for attempt in range(1, CONFLICT_TRIES + 1):
            try:
                await self._call(subscription, held, payload, headers, event)
                return
            except Exception as error:
                if attempt == CONFLICT_TRIES or not is_transient(error):
                    raise

    async def _call(
        self, subscription: EventSubscription, held: list[InFlightEvent], payload: Any, headers: Any, event: Any
    ) -> None:
        effect = self._effect(subscription)
        cancel = held[0].cancel

        async def innermost(ctx: FilterContext) -> Any:
            args, kwargs = subscription.plan.arguments(ctx.payload, headers, event, effect.handle, cancel)
            return await effect.call(ctx.handler or subscription.handler, args, kwargs)

        try:
            await effect.begin()
            ctx = FilterContext(event, headers, payload, subscription, subscription.handler)
            filters = self._context.filters + subscription.filters
            call = chain_filters(filters, innermost) if filters else innermost
            with bind_transaction(effect.handle):
                if subscription.timeout_s is None:
                    result = await call(ctx)
                else:
                    async with asyncio.timeout(subscription.timeout_s):
                        result = await call(ctx)
            cancel.raise_if_cancelled()
            for one in held:
                one.is_committing = True
            await effect.commit(lambda db: self._finish(db, held, result))
            if any(one.headers.reply_to for one in held):
                self._context.wake_relay()
        except BaseException as error:
            for one in held:
                one.is_committing = False
            if isinstance(error, TimeoutError):
                cancel.cancel()
            elif isinstance(error, BrokenProcessPool):
                self._processes = None  # a pool that lost a process accepts no more work
            await _finish_before_cancel(effect.abandon())
            raise

    def _effect(self, subscription: EventSubscription) -> HandlerTransaction:
        database, plan = self._context.database, subscription.plan
        if subscription.executor == "process":
            if self._processes is None:
                self._processes = ProcessPoolExecutor(self._concurrency, mp_context=get_context("spawn"))
            return NoTransactionInProcess(database, plan, self._processes)
        if plan.session_kind == "async":
            return AsyncSessionTransaction(database, plan, self._spare)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                min(self._concurrency * 2, _THREADS_MAX), thread_name_prefix=f"bus-{self._group}"
            )
        if plan.session_kind == "sync":
            return SessionTransaction(database, plan, self._threads)
        if self._context.blocking_transaction is not None and not plan.is_async:
            return self._context.blocking_transaction(self._threads)
        return NoTransaction(database, plan, self._threads)

    def _finish(self, db: Connection, held: list[InFlightEvent], result: Any) -> None:
        """Complete the messages and publish the reply, in the transaction of the handler."""
        context = self._context
        # The connection belongs to the handler: its driver may mark values in another way than ours.
        sql = context.sql_of(db)
        retention_s = context.settings.succeeded_retention_s
        for one in held:
            mark_succeeded(db, sql, RECEIVED_SIDE, one.work.claim, retention_s, may_defer=True)
        if len(held) == 1 and held[0].headers.reply_to:
            headers = held[0].headers
            answer = OutgoingEvent(
                headers.reply_to or "",
                result,
                headers={
                    **headers.response,
                    h.CORRELATION_ID: headers.id,
                    h.CORRELATION_SEQUENCE: str(headers.correlation_sequence + 1),
                },
            )
            write_event(context.event_encoder, _handle(db, sql), sql, answer, context.settings.version)

    # -- how it ended -------------------------------------------------------------------------------------------------

    def _succeeded(self, held: Sequence[InFlightEvent], began: float) -> None:
        probe = self._context.probe
        probe.handle_seconds.add(time.perf_counter() - began)
        now = self._context.now()
        for one in held:
            probe.count("bus_handled_total", result="ok")
            probe.end_to_end_seconds.add(max(0.0, (now - one.work.added).total_seconds()))
            probe.changed("received", one.work.claim.message_id, EventStatus.SUCCESSED)
            if one.subscription is not None:
                self._context.handler_failures.succeeded(self._group, one.subscription.name)
                self.log.succeeded(one.subscription.name)
            if one.work.claim.key is not None:
                self._context.wake_executors()  # the next message of the key can be claimed now

    async def _batch_failed(self, held: list[InFlightEvent], error: BaseException) -> None:
        for number, one in enumerate(held):
            await self._failed(one, error, logs_traceback=number == 0)

    async def _failed(self, held: InFlightEvent, error: BaseException, *, logs_traceback: bool = True) -> None:
        """Move the message to Failed, or back to Scheduled with a delay (see docs/event-bus.md, message states)."""
        context, work, subscription = self._context, held.work, held.subscription
        on_failure = "block" if subscription is None else subscription.on_failure
        retry = (subscription.retry if subscription is not None else None) or context.settings.retry
        outcome = retry.after(error, work.retries + 1, context.rng.random(), rounds=work.rounds)
        is_final = isinstance(error, (Undecodable, NoSubscriber))
        is_parked = is_final or isinstance(error, Reject) or (on_failure == "park" and work.claim.key is not None)
        again = None if isinstance(outcome, NoRetry) or is_parked else outcome
        text = error_text(error)

        def mark(db: Connection) -> None:
            if again is not None:
                reschedule(db, context.sql, RECEIVED_SIDE, work.claim, again, text, keeps_order=on_failure != "skip")
                # Reported before the commit: right after it, an executor may report the next state.
                context.probe.changed("received", work.claim.message_id, EventStatus.SCHEDULED)
                return
            content = encode_content({**held.headers, h.EXCEPTION: text}, held.body) if held.headers else None
            mark_failed(
                db,
                context.sql,
                RECEIVED_SIDE,
                work.claim,
                text,
                context.settings.failed_retention_s,
                counts=not is_final,
                parks=is_parked,
                content=content,
            )
            if subscription is not None and subscription.dead_letter:
                self._publish_dead_letter(db, subscription.dead_letter, held, text)

        context.probe.count("bus_handled_total", result="failed")
        try:
            await context.database.run(mark)
        except LeaseLost:
            held.is_lost = True
            context.probe.count("bus_lease_lost_total")
            return
        handler = held.handler_name
        following = next_try(again, work, context.now(), is_parked=is_parked)
        self.log.failed(work, handler, error, following, logs_traceback=logs_traceback)
        if subscription is not None and not is_final and not isinstance(error, Reject):
            context.handler_failures.failed(self._group, handler, work.name, text)
        if again is None:
            context.probe.changed("received", work.claim.message_id, EventStatus.FAILED)
            context.probe.failed(failed_event(work, self._group, error))
        if not is_final:
            context.probe.count("bus_retries_total", place="handle")
        if work.claim.key is not None:
            context.wake_executors()

    def _publish_dead_letter(self, db: Connection, topic: str, held: InFlightEvent, error: str) -> None:
        """Publish a copy to the dead-letter topic, in the transaction that marks the message as Failed."""
        context = self._context
        kept = {name: value for name, value in held.headers.items() if name not in (h.CALLBACK, h.DEDUP_KEY)}
        headers = {**kept, h.ERROR: error, h.CORRELATION_ID: held.headers.correlation_id}
        event = OutgoingEvent(topic, msgspec.Raw(held.body or b"null"), headers=headers)
        write_event(context.event_encoder, _handle(db, context.sql), context.sql, event, context.settings.version)

    def _event(self, held: InFlightEvent, payload: Any) -> Event:
        work = held.work
        return Event(
            id=held.headers.id,
            name=work.name,
            group=self._group,
            headers=held.headers,
            value=payload,
            retries=work.retries,
            added=work.added,
            key=work.claim.key,
        )


def _handle(db: Connection, sql: SqlDialect) -> TransactionHandle:
    def run(statement: str, values: Sequence[Any]) -> int:
        return db.exec_driver_sql(statement, tuple(values)).rowcount

    return TransactionHandle(sql.kind, sql.paramstyle, run)


class HandlerInterrupted(Exception):
    """The handler was cancelled by something inside it, which counts as a failed attempt."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(cause)
        self.cause = self.__cause__ = cause

    def __str__(self) -> str:
        return f"the handler was cancelled by its own code ({type(self.cause).__name__}: {self.cause})"


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _finish_before_cancel(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work before a cancellation takes effect."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error from None
        raise
