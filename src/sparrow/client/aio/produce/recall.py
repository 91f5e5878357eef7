"""Recalls of delayed messages."""

from __future__ import annotations

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.delayed_delivery import RecallHandle
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import Unavailable
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import RecallMessage, RecallMessageResponse


async def recall_message(session: ClientSession, route: TopicRoute, handle: str, *, group: str) -> str:
    """Cancel the delayed message that a recall handle names, and return the message id."""
    found = RecallHandle.parse(handle)
    address = route.masters.get(found.broker_name)
    if address is None:
        raise Unavailable(f"broker {found.broker_name!r} of topic {found.topic!r} has no master now")
    request = RecallMessage(found.topic, handle, group)
    answer = await session.invoke(address, RequestCode.RECALL_MESSAGE, request)
    return headers.read(RecallMessageResponse, answer.ext).message_id
