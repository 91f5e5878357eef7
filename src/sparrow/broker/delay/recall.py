"""Recall handles of delayed messages, and the handler that cancels a delivery by its handle (RocketMQ 5.3)."""

from __future__ import annotations

import base64
import binascii

from sparrow.broker.context import Broker
from sparrow.model.protocol import DEFAULT_REGION
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.store.spi import wait_durable
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import RecallMessage, RecallMessageResponse, RecallRefusal


def recall_handle(topic: str, broker_name: str, due_ms: int, unique_key: str) -> str:
    """Return the handle with which a sender can cancel a delayed message."""
    return base64.urlsafe_b64encode(f"v1 {topic} {broker_name} {due_ms} {unique_key}".encode()).decode()


async def recall_message(
    request: RecallMessage, broker: Broker, _call: RequestContext
) -> RecallMessageResponse | HandlerResponse:
    """Cancel the delivery of a delayed message that is not due yet."""
    try:
        version, topic, name, due, unique_key = base64.urlsafe_b64decode(request.handle).decode().split(" ", 4)
        due_ms = int(due)
    except (binascii.Error, ValueError):
        return _refusal(f"{request.handle[:80]!r} is not a recall handle")
    if version != "v1" or topic != request.topic:
        return _refusal(f"the handle is not of topic {request.topic!r}")
    if name != broker.name:
        return _refusal(f"the handle is of broker {name[:80]!r}: send the request there")
    appended = await broker.delay.cancel(topic, unique_key, due_ms)
    if appended is None:
        return _refusal("it is too late: the message has been delivered")
    await wait_durable(broker.store, appended.end)
    return RecallMessageResponse(unique_key, DEFAULT_REGION)


def _refusal(reason: str) -> HandlerResponse:
    return HandlerResponse(RecallRefusal(DEFAULT_REGION), code=ResponseCode.ILLEGAL_OPERATION, remark=reason)


HANDLERS: dict[int, RequestHandler[Broker]] = {RequestCode.RECALL_MESSAGE: recall_message}
