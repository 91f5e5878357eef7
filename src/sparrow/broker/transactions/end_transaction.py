"""The handler with which a producer commits or rolls back a transactional message."""

from __future__ import annotations

from sparrow.broker.context import Broker
from sparrow.broker.transactions.spi import TransactionNotEnded
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import ONE_WAY_FLAG
from sparrow.wire.headers import EmptyHeader, EndTransaction


async def end_transaction(
    request: EndTransaction, broker: Broker, call: RequestContext
) -> EmptyHeader | HandlerResponse:
    """Commit or roll back. Most producers send this one-way; others get the answer when the message is durable."""
    try:
        appended = await broker.transactions.end(request)
    except TransactionNotEnded as refusal:
        return HandlerResponse(code=ResponseCode.SYSTEM_ERROR, remark=str(refusal))
    if appended is not None:
        broker.counters.count_send(appended.queue.topic, 1, 0)
    if (
        not call.command.flag & ONE_WAY_FLAG
        and (durable := broker.store.when_durable(broker.store.written)) is not None
    ):
        await durable
    return EmptyHeader()


HANDLERS: dict[int, RequestHandler[Broker]] = {RequestCode.END_TRANSACTION: end_transaction}
