"""Messages that a consumer could not handle: they come again after a growing delay, and are buried in the end.

The retry topic and the dead-letter topic belong to the group, over all its topics. The dead-letter topic is made with
the first dead letter.
"""

from __future__ import annotations

from random import randrange

from sparrow.broker.consume.references import HIDDEN_TOPICS, resolve_record
from sparrow.broker.context import Broker
from sparrow.model.errors import NotPermitted
from sparrow.model.message import Draft
from sparrow.model.protocol import (
    DLQ_TOPIC_PREFIX,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_WAIT_STORED,
    RETRY_TOPIC_PREFIX,
)
from sparrow.model.queue import Queue
from sparrow.model.topic import Group
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.store.spi import AppendResult, await_append
from sparrow.wire import record
from sparrow.wire.codes import RETRY_LIMIT_SINCE_VERSION, RequestCode, ResponseCode
from sparrow.wire.headers import EmptyHeader, SendMessage, SendMessageBack
from sparrow.wire.message_ids import format_offset_id
from sparrow.wire.properties import property_value, set_properties

FIRST_RETRY_LEVEL = 3
"""The first retry comes after 10 s, the next after 30 s, and so on through the delay levels."""


async def send_back(request: SendMessageBack, broker: Broker, call: RequestContext) -> EmptyHeader | HandlerResponse:
    """A consumer gives a message back: try it later, or bury it."""
    group = broker.groups[request.group]
    if group.retry_queues <= 0:
        return EmptyHeader()  # a group without retry queues wants no retries
    raw: bytes | memoryview | None = await broker.store.record_at(request.physical_offset)
    if raw is not None:
        raw = await resolve_record(
            broker.store, raw
        )  # of a message that was resent: what is stored now is a message by itself
    message = record.decode(raw, verify_crc=False, expand=False) if raw is not None else None
    if raw is None or message is None or message.topic in HIDDEN_TOPICS:
        return HandlerResponse(
            code=ResponseCode.SYSTEM_ERROR, remark=f"there is no message at {request.physical_offset}, or no longer"
        )
    draft = record.draft_from_record(raw)
    words = {PROPERTY_WAIT_STORED: "false"}
    if property_value(draft.properties, PROPERTY_RETRY_TOPIC) is None:
        words[PROPERTY_RETRY_TOPIC] = message.topic
    if property_value(draft.properties, PROPERTY_ORIGIN_MESSAGE_ID) is None:
        words[PROPERTY_ORIGIN_MESSAGE_ID] = format_offset_id(message.store_host, message.physical_offset)
    times_max = group.retries_max
    said_max = request.reconsume_times_max
    if said_max is not None and said_max >= 0 and call.command.version >= RETRY_LIMIT_SINCE_VERSION:
        times_max = said_max
    is_dead = request.delay_level < 0 or draft.reconsume_times >= times_max
    level = request.delay_level or FIRST_RETRY_LEVEL + draft.reconsume_times
    draft.reconsume_times += 1
    draft.properties = set_properties(draft.properties, words)
    broker.counters.count_send_back(request.group, message.topic)
    if is_dead:
        appended = await append_dead_letter(broker, group, draft)
    else:
        topic = await broker.topics.create_for_group(RETRY_TOPIC_PREFIX, group.name, group.retry_queues)
        # The group may have more queues by now than its topic has: nobody would read those.
        queue = Queue(topic.name, randrange(max(1, min(group.retry_queues, topic.read_queues))))
        draft.properties = set_properties(draft.properties, {PROPERTY_DELAY_LEVEL: str(level)})
        appended = await await_append(broker.delay.schedule_level(queue, draft, level))
    # The consumer will commit past it: from then on this copy is all there is.
    if (durable := broker.store.when_durable(appended.end)) is not None:
        await durable
    return EmptyHeader()


async def append_dead_letter(broker: Broker, group: Group, draft: Draft) -> AppendResult:
    """Put a message to the group's dead letters."""
    topic = await broker.topics.create_for_group(DLQ_TOPIC_PREFIX, group.name)
    draft.properties = set_properties(draft.properties, {PROPERTY_DELAY_LEVEL: ""})
    return await await_append(broker.store.append_nowait(Queue(topic.name, 0), (draft,)))


def has_exhausted_retries(request: SendMessage, group: Group) -> bool:
    """Of a message sent to a retry topic by its consumer: whether it was tried often enough.

    RocketMQ 5's rule. 4.9's (not less than the limit) would bury what Go sends, which always says 0 of 0.
    """
    times_max = request.reconsume_times_max if request.reconsume_times_max is not None else group.retries_max
    return request.reconsume_times > times_max


def group_of_retry_topic(topic: str) -> str:
    """The group whose retry topic this is."""
    if not topic.startswith(RETRY_TOPIC_PREFIX):
        raise NotPermitted(f"topic {topic!r}", "it is no retry topic")
    return topic.removeprefix(RETRY_TOPIC_PREFIX)


HANDLERS: dict[int, RequestHandler[Broker]] = {RequestCode.CONSUMER_SEND_MSG_BACK: send_back}
