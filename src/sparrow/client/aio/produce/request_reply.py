"""Asking and answering by messages: a request waits for its reply, which the broker pushes to whoever asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from uuid import uuid4

from sparrow.client.aio.connection.session import ClientHandler, Session
from sparrow.client.request_reply import CORRELATION, pushed, request_of
from sparrow.client.topic_route import Route
from sparrow.model.errors import RequestTimeout
from sparrow.model.message import Message, StoredMessage
from sparrow.net.address import Address
from sparrow.net.dispatcher import Call
from sparrow.wire.bodies import BrokerQueue
from sparrow.wire.codes import Code
from sparrow.wire.headers import PushReply

log = logging.getLogger(__name__)


async def request(
    session: Session, message: Message, send: Callable[[Message], Awaitable[object]], *, timeout_ms: int
) -> StoredMessage:
    """The reply to a message, or `RequestTimeout`."""
    correlation = uuid4().hex
    asked = request_of(message, correlation=correlation, client_id=session.client_id, timeout_ms=timeout_ms)
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


def queue_towards(route: Route, asked: StoredMessage) -> BrokerQueue:
    """Of the reply topic: one on the broker that had the request, since the one who asked is connected to that."""
    host = asked.store_host
    address = str(Address(str(ip_address(host.ip)), host.port))
    near = [queue for queue in route.write_queues if route.masters.get(queue.broker_name) == address]
    return (near or list(route.write_queues))[0]


async def reply_came(request: PushReply, session: Session, call: Call) -> None:
    reply = pushed(request, call.command.body)
    waiting = session.replies.get(reply.properties.get(CORRELATION, ""))
    if waiting is not None and not waiting.done():
        waiting.set_result(reply)
    else:
        log.info("a reply came too late", extra={"topic": reply.topic})


HANDLERS: dict[int, ClientHandler] = {Code.PUSH_REPLY_MESSAGE_TO_CLIENT: reply_came}
