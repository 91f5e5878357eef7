"""Replies of request-reply messaging: pushed to the requesting client, and stored in the reply topic.

1. A reply is validated like any message. The requester is found by its client id among the online producers.
2. The reply is stored whether or not it was pushed; the answer to its sender reports the push.
"""

from __future__ import annotations

import logging

from sparrow.broker.catalog.topics import BROKER_ONLY_TOPICS
from sparrow.broker.consume.references import strip_references
from sparrow.broker.context import Broker
from sparrow.broker.produce.queue_choice import broker_only_topic, choose_queue
from sparrow.model.errors import SparrowError
from sparrow.model.message import Draft
from sparrow.model.protocol import PROPERTY_CLUSTER, PROPERTY_REPLY_TO_CLIENT, PROPERTY_UNIQUE_KEY
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import PushReply, SendMessage, SendMessageResponse
from sparrow.wire.message_ids import format_offset_id
from sparrow.wire.properties import property_value, set_properties

log = logging.getLogger(__name__)

PUSH_TIMEOUT_MS = 10_000


async def handle_reply(request: SendMessage, broker: Broker, call: RequestContext) -> HandlerResponse:
    """Store a reply and push it to its requester."""
    if request.topic in BROKER_ONLY_TOPICS:
        raise broker_only_topic(request.topic)
    queue = choose_queue(request, broker.topics[request.topic])
    properties = request.properties.encode()
    failure = await _push(request, properties, broker, call)
    draft = Draft(
        body=bytes(call.command.body),
        properties=set_properties(strip_references(properties), {PROPERTY_CLUSTER: broker.settings.cluster}),
        flag=request.flag,
        sys_flag=request.sys_flag,
        born_ms=request.born_ms,
        born_host=call.channel.packed_host,
        reconsume_times=request.reconsume_times,
        token=broker.token_of(call.command),
    )
    appended = await broker.store.append(queue, (draft,))
    broker.counters.count_send(request.topic, 1, len(call.command.body))
    offset_id = format_offset_id(broker.address.as_host(), appended.physical_offsets[0])
    header = SendMessageResponse(
        offset_id, queue.id, appended.offset, property_value(draft.properties, PROPERTY_UNIQUE_KEY)
    )
    if failure is not None:
        return HandlerResponse(header, code=ResponseCode.SYSTEM_ERROR, remark=failure)
    return HandlerResponse(header)


async def _push(request: SendMessage, properties: bytes, broker: Broker, call: RequestContext) -> str | None:
    """Push a reply. Return why it failed; None if the requester has it."""
    client_id = property_value(properties, PROPERTY_REPLY_TO_CLIENT)
    if client_id is None:
        return "the reply has no requester (property REPLY_TO_CLIENT)"
    member = broker.clients.find_producer(client_id)
    if member is None:
        return f"the requesting client {client_id!r} is not online here"
    now_ms = broker.now_ms()
    header = PushReply(
        group=request.group,
        topic=request.topic,
        template_topic=request.template_topic,
        default_topic_queues=request.default_topic_queues,
        queue_id=request.queue_id,
        sys_flag=request.sys_flag,
        born_ms=request.born_ms,
        flag=request.flag,
        born_host=call.channel.address,
        store_host=str(broker.address),
        store_ms=now_ms,
        properties=set_properties(properties, {"PUSH_REPLY_TIME": str(now_ms)}).decode(),
        reconsume_times=request.reconsume_times,
        unit_mode=request.unit_mode,
    )
    channel: Channel = member.channel
    try:
        answer = await channel.request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, call.command.body, timeout_ms=PUSH_TIMEOUT_MS
        )
    except SparrowError as error:
        log.info("a reply was not pushed to client %(client)s: %(error)s", {"client": client_id, "error": error})
        return f"the requesting client {client_id!r} did not accept the reply: {error}"
    if answer.code != ResponseCode.SUCCESS:
        return f"the requesting client {client_id!r} did not accept the reply: {answer.remark or answer.code}"
    return None


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.SEND_REPLY_MESSAGE: handle_reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: handle_reply,
}
