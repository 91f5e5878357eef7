"""Recalls of delayed messages."""

from __future__ import annotations

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.produce.sender import Sender
from sparrow.client.produce.delayed_delivery import RecallHandle
from sparrow.model.errors import Refused, Unavailable
from sparrow.model.send_result import SendResult
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import RecallMessage, RecallMessageResponse


async def recall_message(session: ClientSession, sender: Sender, sent: SendResult | str, *, group: str) -> str:
    """Cancel a delayed message, by the result of its send or its recall handle, and return the message id."""
    handle = sent.recall_handle if isinstance(sent, SendResult) else sent
    if handle is None:
        raise Refused("the message has no recall handle: only deliver_at and deliver_after_ms give one")
    found = RecallHandle.parse(handle)
    route = await sender.route(found.topic)
    address = route.masters.get(found.broker_name)
    if address is None:
        raise Unavailable(f"broker {found.broker_name!r} of topic {found.topic!r} has no master now")
    answer = await session.invoke(address, RequestCode.RECALL_MESSAGE, RecallMessage(found.topic, handle, group))
    return headers.read(RecallMessageResponse, answer.ext).message_id
