"""What a producer says later about a message it sent: commit, roll back, or take it back."""

from __future__ import annotations

import base64
import binascii

from sparrow.broker.context import Broker
from sparrow.broker.transactions.log import TransactionNotEnded
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.codes import Code, Response
from sparrow.wire.frame import IS_ONE_WAY
from sparrow.wire.headers import Done, EndTransaction, Recall, Recalled


async def end_transaction(request: EndTransaction, broker: Broker, call: RequestContext) -> Done | HandlerResponse:
    """Most say it and listen to no answer; who does, hears it once the message is as safe as any that is sent."""
    try:
        appended = await broker.transactions.end(request)
    except TransactionNotEnded as refusal:
        return HandlerResponse(code=Response.SYSTEM_ERROR, remark=str(refusal))
    if appended is not None:
        broker.counters.sent(appended.queue.topic, 1, 0)
    if not call.command.flag & IS_ONE_WAY and (durable := broker.store.durable(broker.store.written)) is not None:
        await durable
    return Done()


async def recall_message(request: Recall, broker: Broker, _call: RequestContext) -> Recalled | HandlerResponse:
    """Take back a timed message that is not due yet."""
    try:
        version, topic, name, due, unique_key = base64.urlsafe_b64decode(request.handle).decode().split(" ", 4)
        due_ms = int(due)
    except (binascii.Error, ValueError):
        return HandlerResponse(code=Response.ILLEGAL_OPERATION, remark=f"{request.handle[:80]!r} is no recall handle")
    if version != "v1" or topic != request.topic:
        return HandlerResponse(code=Response.ILLEGAL_OPERATION, remark=f"the handle is not of topic {request.topic!r}")
    if name != broker.name:
        return HandlerResponse(
            code=Response.ILLEGAL_OPERATION, remark=f"the handle is of broker {name[:80]!r}: ask that one"
        )
    appended = await broker.delay.cancel(topic, unique_key, due_ms)
    if appended is None:
        return HandlerResponse(code=Response.ILLEGAL_OPERATION, remark="it is too late: the message has been delivered")
    if (durable := broker.store.durable(appended.end)) is not None:
        await durable
    return Recalled(unique_key)


HANDLERS: dict[int, RequestHandler[Broker]] = {
    Code.END_TRANSACTION: end_transaction,
    Code.RECALL_MESSAGE: recall_message,
}
