"""What a producer says later about a message it sent: commit, roll back, or take it back."""

from __future__ import annotations

import base64
import binascii

from sparrow.broker.context import Broker
from sparrow.broker.transactions.log import TransactionNotEnded
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import ONE_WAY_FLAG
from sparrow.wire.headers import EmptyHeader, EndTransaction, RecallMessage, RecallMessageResponse


async def end_transaction(
    request: EndTransaction, broker: Broker, call: RequestContext
) -> EmptyHeader | HandlerResponse:
    """Most say it and listen to no answer; who does, hears it once the message is as safe as any that is sent."""
    try:
        appended = await broker.transactions.end(request)
    except TransactionNotEnded as refusal:
        return HandlerResponse(code=ResponseCode.SYSTEM_ERROR, remark=str(refusal))
    if appended is not None:
        broker.counters.sent(appended.queue.topic, 1, 0)
    if (
        not call.command.flag & ONE_WAY_FLAG
        and (durable := broker.store.when_durable(broker.store.written)) is not None
    ):
        await durable
    return EmptyHeader()


async def recall_message(
    request: RecallMessage, broker: Broker, _call: RequestContext
) -> RecallMessageResponse | HandlerResponse:
    """Take back a timed message that is not due yet."""
    try:
        version, topic, name, due, unique_key = base64.urlsafe_b64decode(request.handle).decode().split(" ", 4)
        due_ms = int(due)
    except (binascii.Error, ValueError):
        return HandlerResponse(
            code=ResponseCode.ILLEGAL_OPERATION, remark=f"{request.handle[:80]!r} is no recall handle"
        )
    if version != "v1" or topic != request.topic:
        return HandlerResponse(
            code=ResponseCode.ILLEGAL_OPERATION, remark=f"the handle is not of topic {request.topic!r}"
        )
    if name != broker.name:
        return HandlerResponse(
            code=ResponseCode.ILLEGAL_OPERATION, remark=f"the handle is of broker {name[:80]!r}: ask that one"
        )
    appended = await broker.delay.cancel(topic, unique_key, due_ms)
    if appended is None:
        return HandlerResponse(
            code=ResponseCode.ILLEGAL_OPERATION, remark="it is too late: the message has been delivered"
        )
    if (durable := broker.store.when_durable(appended.end)) is not None:
        await durable
    return RecallMessageResponse(unique_key)


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.END_TRANSACTION: end_transaction,
    RequestCode.RECALL_MESSAGE: recall_message,
}
