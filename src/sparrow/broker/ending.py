"""What a producer says later about a message it sent: commit, roll back, or take it back."""

from __future__ import annotations

import base64
import binascii

from sparrow.broker.context import Broker
from sparrow.broker.transactions import NotEnded
from sparrow.net.serving import Answer, Call, Handler
from sparrow.wire.codes import Code, Response
from sparrow.wire.headers import Done, EndTransaction, Recall, Recalled


async def end_transaction(request: EndTransaction, broker: Broker, _call: Call) -> Done | Answer:
    try:
        appended = await broker.transactions.end(request)
    except NotEnded as refusal:
        return Answer(code=Response.SYSTEM_ERROR, remark=str(refusal))
    if appended is not None:
        broker.counters.sent(appended.queue.topic, 1, 0)
    return Done()


async def recall(request: Recall, broker: Broker, _call: Call) -> Recalled | Answer:
    """Take back a timed message that is not due yet."""
    try:
        version, topic, _, due, unique_key = base64.urlsafe_b64decode(request.handle).decode().split(" ", 4)
        due_ms = int(due)
    except (binascii.Error, ValueError):
        return Answer(code=Response.ILLEGAL_OPERATION, remark=f"{request.handle[:80]!r} is no recall handle")
    if version != "v1" or topic != request.topic:
        return Answer(code=Response.ILLEGAL_OPERATION, remark=f"the handle is not of topic {request.topic!r}")
    if not broker.delay.cancel(topic, unique_key, due_ms):
        return Answer(code=Response.ILLEGAL_OPERATION, remark="it is too late: the message has been delivered")
    return Recalled(unique_key)


HANDLERS: dict[int, Handler[Broker]] = {Code.END_TRANSACTION: end_transaction, Code.RECALL_MESSAGE: recall}
