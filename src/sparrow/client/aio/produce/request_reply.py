"""Request and reply by messages: a request waits for its reply, which a broker pushes to the requester."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from uuid import uuid4

from sparrow.client.aio.connection.session import ClientRequestHandler, ClientSession
from sparrow.client.aio.produce.batches.message_batch import send_results
from sparrow.client.aio.produce.direct_send import send_once
from sparrow.client.aio.produce.message_encoder import MessageEncoder
from sparrow.client.aio.produce.sender import Sender
from sparrow.client.request_reply import decode_pushed_reply, make_reply, make_request
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import RequestTimeout
from sparrow.model.message import AnyMessage, Message, StoredMessage
from sparrow.model.protocol import PROPERTY_CORRELATION_ID
from sparrow.model.queue import QueueRef
from sparrow.model.send_result import SendResult
from sparrow.net.address import Address
from sparrow.net.dispatcher import RequestContext
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import PushReply

log = logging.getLogger(__name__)


async def send_request(
    session: ClientSession, message: AnyMessage, send: Callable[[Message], Awaitable[object]], *, timeout_ms: int
) -> StoredMessage:
    """Send a request and return its reply; raise `RequestTimeout` without one."""
    correlation_id = uuid4().hex
    request = make_request(message, correlation_id=correlation_id, client_id=session.client_id, timeout_ms=timeout_ms)
    reply: asyncio.Future[StoredMessage] = asyncio.get_running_loop().create_future()
    session.pending_replies[correlation_id] = reply
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await send(request)
            return await reply
    except TimeoutError as cause:
        remedy = "start a consumer that replies, or allow more time with timeout_ms"
        raise RequestTimeout(f"a consumer of topic {message.topic!r}", "the request", timeout_ms, remedy) from cause
    finally:
        session.pending_replies.pop(correlation_id, None)


async def send_reply(
    session: ClientSession,
    sender: Sender,
    encoder: MessageEncoder,
    request: StoredMessage,
    body: bytes | str,
    *,
    group: str,
    timeout_ms: int,
) -> SendResult:
    """Send the reply to a request. The requester has it when this returns."""
    message = make_reply(request, body)
    encoded_body, properties, message_id = encoder.encode(message)
    payload = await encoder.single_payload(message, encoded_body, properties)
    queue = reply_queue(await sender.route(message.topic), request)
    outcome = await send_once(
        session, queue, payload, group=group, code=RequestCode.SEND_REPLY_MESSAGE_V2, timeout_ms=timeout_ms
    )
    if sender.send_log is not None and sender.send_log.is_enabled:
        sender.send_log.stored(payload, outcome)
    return send_results(outcome, [message_id])[0]


def reply_queue(route: TopicRoute, request: StoredMessage) -> QueueRef:
    """Return a queue of the reply topic on the broker that stored the request, to which the requester is connected."""
    host = request.store_host
    address = str(Address(str(ip_address(host.ip)), host.port))
    near = [queue for queue in route.write_queues if route.masters.get(queue.broker_name) == address]
    return (near or list(route.write_queues))[0]


async def on_reply(request: PushReply, session: ClientSession, context: RequestContext) -> None:
    """Pass a reply that a broker pushes to the request that waits for it."""
    reply = decode_pushed_reply(request, context.command.body)
    waiting = session.pending_replies.get(reply.properties.get(PROPERTY_CORRELATION_ID, ""))
    if waiting is not None and not waiting.done():
        waiting.set_result(reply)
    else:
        log.info("a reply arrived in topic %(topic)s after its request had ended", {"topic": reply.topic})


HANDLERS: dict[int, ClientRequestHandler] = {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: on_reply}
