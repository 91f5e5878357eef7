"""The journey of a message as a timeline: produced, stored, delivered, retried, acknowledged, dead.

It is put together from what is known: the message itself, the records of clients that trace (RMQ_SYS_TRACE_TOPIC),
the copies in retry and dead-letter topics, and the committed offsets of the groups that read its topic. Offsets tell
that a group has read the message, not when; such an event has no time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from sparrow.client import trace_records
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.clusters import gather_all
from sparrow.client.aio.admin.group_state import fetch_committed, fetch_groups_of_topic
from sparrow.client.aio.admin.message_query import query_by_key
from sparrow.client.topic_route import TopicRoute
from sparrow.client.trace_records import (
    ConsumeStartTrace,
    PublishTrace,
    TraceRecord,
    TransactionEndTrace,
)
from sparrow.model.errors import SparrowError, UnknownTopic
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import (
    DLQ_TOPIC_PREFIX,
    PROPERTY_DLQ_ERROR_TYPE,
    PROPERTY_DLQ_REASON,
    RETRY_TOPIC_PREFIX,
    TRACE_TOPIC,
)
from sparrow.model.queue import QueueRef
from sparrow.operations.messages import MessageView, find_message

GROUPS_MAX = 100
"""Groups whose progress is looked up for one message."""
COPIES_MAX = 64
"""Retries of one group, and trace messages, that are read for one message."""


class JourneyStep(StrEnum):
    """What happened to a message."""

    PRODUCED = "produced"
    STORED = "stored"
    TRANSACTION_ENDED = "transaction_ended"
    DELIVERED = "delivered"
    HANDLED = "handled"
    FAILED = "failed"
    RETRIED = "retried"
    ACKNOWLEDGED = "acknowledged"
    WAITING = "waiting"
    DEAD = "dead"


class JourneyEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a journey."""

    step: JourneyStep
    time_ms: int | None
    """None: it is known to have happened, but not when."""
    source: str
    """Where it is known from: message, trace, retry, dead_letter or offsets."""
    group: str | None = None
    detail: str = ""
    """A sentence, or the words of an error."""
    values: dict[str, str | int] = {}
    """The values in `detail`, for those who write the sentence in another language; empty if it is an error."""
    cost_ms: int | None = None
    attempt: int | None = None


class Journey(msgspec.Struct, frozen=True, kw_only=True):
    """A message and what happened to it, the earliest first; events without a time are last."""

    message: MessageView
    events: tuple[JourneyEvent, ...]
    is_traced: bool
    """Whether a client recorded traces; without them, deliveries are known only by offsets and retries."""
    omitted_groups: int
    """Groups beyond the limit that were not looked up."""


async def trace_journey(admin: Admin, message_id: str, *, topic: str | None = None) -> Journey:
    """Return the journey of a message; raise `NotFound` if there is none with this id."""
    message = await find_message(admin, message_id, topic=topic)
    route = await admin.session.route(message.topic)
    groups = await fetch_groups_of_topic(admin.session, route)
    traces, parts = await asyncio.gather(
        _trace_events(admin, message),
        gather_all(_group_events(admin, route, message, group) for group in groups[:GROUPS_MAX]),
    )
    events = [*_message_events(message), *traces, *(event for part in parts for event in part)]
    produced_by_trace = any(event.step is JourneyStep.PRODUCED and event.source == "trace" for event in events)
    if produced_by_trace:
        events = [event for event in events if event.step is not JourneyStep.PRODUCED or event.source == "trace"]
    events.sort(key=lambda event: (event.time_ms is None, event.time_ms or 0))
    return Journey(
        message=message,
        events=tuple(events),
        is_traced=bool(traces),
        omitted_groups=max(0, len(groups) - GROUPS_MAX),
    )


def _message_events(message: MessageView) -> Iterable[JourneyEvent]:
    yield JourneyEvent(
        step=JourneyStep.PRODUCED,
        time_ms=message.born_ms,
        source="message",
        detail=f"by {message.born_host}",
        values={"host": message.born_host},
    )
    yield JourneyEvent(
        step=JourneyStep.STORED,
        time_ms=message.store_ms,
        source="message",
        detail=f"by {message.store_host}, queue {message.queue_id}, offset {message.queue_offset}",
        values={"host": message.store_host, "queue": message.queue_id, "offset": message.queue_offset},
    )


async def _copies(admin: Admin, topic: str, message_id: str) -> list[StoredMessage]:
    try:
        route = await admin.session.route(topic)
        return await query_by_key(admin.session, route, message_id, limit=COPIES_MAX, begin_ms=0, end_ms=(1 << 63) - 1)
    except UnknownTopic:
        return []


async def _trace_events(admin: Admin, message: MessageView) -> list[JourneyEvent]:
    found = await _copies(admin, TRACE_TOPIC, message.id)
    records = [each for copy in found for each in trace_records.decode(copy.body) if each.message_id == message.id]
    started = {each.request_id: each for each in records if isinstance(each, ConsumeStartTrace)}
    return [_trace_event(each, started) for each in records]


def _trace_event(trace: TraceRecord, started: dict[str, ConsumeStartTrace]) -> JourneyEvent:
    if isinstance(trace, PublishTrace):
        return JourneyEvent(
            step=JourneyStep.PRODUCED if trace.is_success else JourneyStep.FAILED,
            time_ms=trace.time_ms,
            source="trace",
            group=trace.group,
            detail=f"by {trace.client_host}" if trace.client_host else "",
            values={"host": trace.client_host} if trace.client_host else {},
            cost_ms=trace.cost_ms,
        )
    if isinstance(trace, TransactionEndTrace):
        return JourneyEvent(
            step=JourneyStep.TRANSACTION_ENDED,
            time_ms=trace.time_ms,
            source="trace",
            group=trace.group,
            detail=trace.state,
            values={"state": trace.state},
        )
    if isinstance(trace, ConsumeStartTrace):
        return JourneyEvent(
            step=JourneyStep.DELIVERED,
            time_ms=trace.time_ms,
            source="trace",
            group=trace.group,
            attempt=trace.retries + 1,
        )
    begun = started.get(trace.request_id)
    time_ms = trace.time_ms or (begun.time_ms + trace.cost_ms if begun is not None else 0)
    return JourneyEvent(
        step=JourneyStep.HANDLED if trace.is_success else JourneyStep.FAILED,
        time_ms=time_ms or None,
        source="trace",
        group=trace.group or (begun.group if begun is not None else None),
        detail="" if trace.is_success else trace.code.name.lower(),
        cost_ms=trace.cost_ms,
        attempt=begun.retries + 1 if begun is not None else None,
    )


async def _group_events(admin: Admin, route: TopicRoute, message: MessageView, group: str) -> list[JourneyEvent]:
    try:
        retries, dead, committed = await asyncio.gather(
            _copies(admin, RETRY_TOPIC_PREFIX + group, message.id),
            _copies(admin, DLQ_TOPIC_PREFIX + group, message.id),
            fetch_committed(admin.session, group, route),
        )
    except SparrowError as error:
        return [JourneyEvent(step=JourneyStep.WAITING, time_ms=None, source="offsets", group=group, detail=str(error))]
    events = [
        JourneyEvent(
            step=JourneyStep.RETRIED, time_ms=copy.store_ms, source="retry", group=group, attempt=copy.reconsume_times
        )
        for copy in retries
    ]
    events += [
        JourneyEvent(
            step=JourneyStep.DEAD,
            time_ms=letter.store_ms,
            source="dead_letter",
            group=group,
            detail=": ".join(
                part for name in (PROPERTY_DLQ_ERROR_TYPE, PROPERTY_DLQ_REASON) if (part := letter.properties.get(name))
            ),
            attempt=letter.reconsume_times,
        )
        for letter in dead
    ]
    offset = _offset_of(committed, message)
    if offset is not None and not dead:
        is_read = offset > message.queue_offset
        events.append(
            JourneyEvent(
                step=JourneyStep.ACKNOWLEDGED if is_read else JourneyStep.WAITING,
                time_ms=None,
                source="offsets",
                group=group,
                detail="" if is_read else f"{message.queue_offset - offset} messages before it",
                values={} if is_read else {"count": message.queue_offset - offset},
            )
        )
    return events


def _offset_of(committed: dict[QueueRef, int], message: MessageView) -> int | None:
    """Return the committed offset of the message's queue. Without its broker, the queue id must be unique."""
    found = [
        offset
        for queue, offset in committed.items()
        if queue.queue_id == message.queue_id and message.broker in (None, queue.broker_name)
    ]
    return found[0] if len(found) == 1 else None
