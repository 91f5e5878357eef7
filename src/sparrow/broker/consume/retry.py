"""Retries of messages that a consumer could not handle: redelivery with a growing delay, and dead letters at the end.

A group has one retry topic and one dead-letter topic for all its topics. The dead-letter topic is created with the
first dead letter. A retry and a dead letter keep why the message failed (`wire/consume_failure`).
"""

from __future__ import annotations

from random import randrange

from sparrow.broker.consume.references import HIDDEN_TOPICS, resolve_record
from sparrow.broker.context import Broker
from sparrow.model.access.permissions import TokenAction
from sparrow.model.errors import NotPermitted
from sparrow.model.message import Draft
from sparrow.model.protocol import (
    DLQ_TOPIC_PREFIX,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_DLQ_ATTEMPT,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_WAIT_STORED,
    RETRY_TOPIC_PREFIX,
)
from sparrow.model.queue import Queue
from sparrow.model.topic import Group
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.store.spi import AppendResult, await_append, wait_durable
from sparrow.wire import record
from sparrow.wire.codes import RETRY_LIMIT_SINCE_VERSION, RequestCode, ResponseCode
from sparrow.wire.consume_failure import ConsumeFailure, set_failure
from sparrow.wire.headers import EmptyHeader, SendMessage, SendMessageBack
from sparrow.wire.message_ids import format_offset_id
from sparrow.wire.properties import PROPERTIES_BYTES_MAX, has_property, property_value, set_properties

FIRST_RETRY_LEVEL = 3
"""The first retry is after 10 s, the next after 30 s, and so on through the delay levels."""


async def send_back(request: SendMessageBack, broker: Broker, call: RequestContext) -> EmptyHeader | HandlerResponse:
    """Accept a message that a consumer sends back: schedule a retry, or append it to the dead letters."""
    group = broker.groups[request.group]
    if group.retry_queues <= 0:
        return EmptyHeader()  # a group without retry queues has no retries
    raw: bytes | memoryview | None = await broker.store.record_at(request.physical_offset)
    if raw is not None:
        raw = await resolve_record(
            broker.store, raw
        )  # a resent message: from here on it is stored as a message of its own
    message = record.decode(raw, verify_crc=False, expand=False) if raw is not None else None
    if (
        raw is None
        or message is None
        or message.topic in HIDDEN_TOPICS
        # A consumer must not read a message through its retry topic that it may not read in its topic.
        or not broker.may(call, TokenAction.SUBSCRIBE, message.topic, request.group)
    ):
        return HandlerResponse(
            code=ResponseCode.SYSTEM_ERROR,
            remark=f"there is no message at physical offset {request.physical_offset}, or not any more",
        )
    draft = record.draft_from_record(raw)
    draft.token = (await broker.store.tokens.senders([request.physical_offset])).get(request.physical_offset, 0)
    values = {PROPERTY_WAIT_STORED: "false"}
    if property_value(draft.properties, PROPERTY_RETRY_TOPIC) is None:
        values[PROPERTY_RETRY_TOPIC] = message.topic
    if property_value(draft.properties, PROPERTY_ORIGIN_MESSAGE_ID) is None:
        values[PROPERTY_ORIGIN_MESSAGE_ID] = format_offset_id(message.store_host, message.physical_offset)
    retries_max = group.retries_max
    requested_max = request.reconsume_times_max
    if requested_max is not None and requested_max >= 0 and call.command.version >= RETRY_LIMIT_SINCE_VERSION:
        retries_max = requested_max
    is_dead = request.delay_level < 0 or draft.reconsume_times >= retries_max
    level = request.delay_level or FIRST_RETRY_LEVEL + draft.reconsume_times
    draft.reconsume_times += 1
    failure = ConsumeFailure(request.dlq_reason or "", request.dlq_error_type or "", request.dlq_traceback or "")
    consumer = broker.clients.client_id_of(request.group, call.channel) or ""
    draft.properties = set_failure(
        set_properties(draft.properties, values),
        # A retry goes without the traceback: it may be stored 16 times.
        failure.properties(consumer=consumer, attempt=draft.reconsume_times, with_traceback=is_dead),
    )
    broker.counters.count_send_back(request.group, message.topic)
    if is_dead:
        appended = await append_dead_letter(broker, group, draft)
    else:
        topic = await broker.topics.create_for_group(RETRY_TOPIC_PREFIX, group.name, group.retry_queues)
        # The group may be configured for more retry queues than its topic has. No consumer would read the others.
        queue = Queue(topic.name, randrange(max(1, min(group.retry_queues, topic.read_queues))))
        draft.properties = set_properties(draft.properties, {PROPERTY_DELAY_LEVEL: str(level)})
        appended = await await_append(broker.delay.schedule_level(queue, draft, level))
    # The consumer commits the original next; then this copy is the only one.
    await wait_durable(broker.store, appended.end)
    return EmptyHeader()


async def append_dead_letter(broker: Broker, group: Group, draft: Draft) -> AppendResult:
    """Append a message to the dead-letter topic of the group."""
    topic = await broker.topics.create_for_group(DLQ_TOPIC_PREFIX, group.name)
    values = {PROPERTY_DELAY_LEVEL: ""}
    if not has_property(draft.properties, PROPERTY_DLQ_ATTEMPT) and len(draft.properties) < PROPERTIES_BYTES_MAX - 64:
        values[PROPERTY_DLQ_ATTEMPT] = str(draft.reconsume_times)  # an ordered consumer of another client sent it
    draft.properties = set_properties(draft.properties, values)
    appended = await await_append(broker.store.append_nowait(Queue(topic.name, 0), (draft,)))
    broker.events.count_dead_letter(group.name, property_value(draft.properties, PROPERTY_RETRY_TOPIC) or "")
    return appended


def has_exhausted_retries(request: SendMessage, group: Group) -> bool:
    """Return whether a consumer's retry message has used up its retries.

    This is RocketMQ 5's rule. 4.9's (at least the limit) would reject messages of Go clients, which always send 0 of 0.
    """
    retries_max = request.reconsume_times_max if request.reconsume_times_max is not None else group.retries_max
    return request.reconsume_times > retries_max


def group_of_retry_topic(topic: str) -> str:
    """Return the group of a retry topic."""
    if not topic.startswith(RETRY_TOPIC_PREFIX):
        raise NotPermitted(f"topic {topic!r}", "it is not a retry topic")
    return topic.removeprefix(RETRY_TOPIC_PREFIX)


HANDLERS: dict[int, RequestHandler[Broker]] = {RequestCode.CONSUMER_SEND_MSG_BACK: send_back}
