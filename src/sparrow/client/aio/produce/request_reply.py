"""Asking and answering by messages: a request waits for its reply, which the broker pushes to whoever asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from uuid import uuid4

from sparrow.client.aio.connection.session import ClientRequestHandler, ClientSession
from sparrow.client.request_reply import decode_pushed_reply, make_request
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import RequestTimeout
from sparrow.model.message import AnyMessage, StoredMessage
from sparrow.model.protocol import PROPERTY_CORRELATION_ID
from sparrow.model.queue import QueueRef
from sparrow.net.address import Address
from sparrow.net.dispatcher import RequestContext
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import PushReply

log = logging.getLogger(__name__)


async def send_request(
    session: ClientSession, message: AnyMessage, send: Callable[[AnyMessage], Awaitable[object]], *, timeout_ms: int
) -> StoredMessage:
    """The reply to a message, or `RequestTimeout`."""
    correlation = uuid4().hex
    asked = make_request(message, correlation=correlation, client_id=session.client_id, timeout_ms=timeout_ms)
    waiting: asyncio.Future[StoredMessage] = asyncio.get_running_loop().create_future()
    session.replies[correlation] = waiting
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await send(asked)
            return await waiting
    except TimeoutError as cause:
        raise RequestTimeout(f"a consumer of topic {message.topic!r}", "the request", timeout_ms) from cause
    finally:
        session.replies.pop(correlation, None)


def reply_queue(route: TopicRoute, asked: StoredMessage) -> QueueRef:
    """Of the reply topic: one on the broker that had the request, since the one who asked is connected to that."""
    host = asked.store_host
    address = str(Address(str(ip_address(host.ip)), host.port))
    near = [queue for queue in route.write_queues if route.masters.get(queue.broker_name) == address]
    return (near or list(route.write_queues))[0]


async def on_reply(request: PushReply, session: ClientSession, call: RequestContext) -> None:
    reply = decode_pushed_reply(request, call.command.body)
    waiting = session.replies.get(reply.properties.get(PROPERTY_CORRELATION_ID, ""))
    if waiting is not None and not waiting.done():
        waiting.set_result(reply)
    else:
        log.info("a reply came too late", extra={"topic": reply.topic})


HANDLERS: dict[int, ClientRequestHandler] = {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: on_reply}
