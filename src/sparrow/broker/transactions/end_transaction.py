"""The handler with which a producer commits or rolls back a transactional message."""

from __future__ import annotations

from sparrow.broker.context import Broker
from sparrow.broker.transactions.spi import TransactionNotEnded
from sparrow.model.errors import NotEnoughReplicas
from sparrow.model.permissions import TokenAction
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.store.spi import wait_durable
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import ONE_WAY_FLAG
from sparrow.wire.headers import EndTransaction, EndTransactionResponse


async def end_transaction(
    request: EndTransaction, broker: Broker, call: RequestContext
) -> EndTransactionResponse | HandlerResponse:
    """Commit or roll back. Most producers send this one-way; others get the answer when the message is durable."""
    try:
        ended = await broker.transactions.end(
            request, may_publish=lambda topic: broker.may(call, TokenAction.PUBLISH, topic)
        )
    except TransactionNotEnded as refusal:
        return HandlerResponse(code=ResponseCode.SYSTEM_ERROR, remark=str(refusal))
    except NotEnoughReplicas as error:
        # Not 1, as for sends: here it would mean that there is no such half message.
        return HandlerResponse(code=ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
    if ended.appended is not None:
        broker.counters.count_send(ended.appended.queue.topic, 1, 0)
    if not call.command.flag & ONE_WAY_FLAG:
        await wait_durable(broker.store, broker.store.written)
    return EndTransactionResponse(ended.outcome)


HANDLERS: dict[int, RequestHandler[Broker]] = {RequestCode.END_TRANSACTION: end_transaction}
