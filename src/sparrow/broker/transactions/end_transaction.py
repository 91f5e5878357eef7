"""The handler with which a producer commits or rolls back a transactional message."""

from __future__ import annotations

from sparrow.broker.context import Broker
from sparrow.broker.transactions.spi import EndedTransaction, PendingEnd, TransactionNotEnded
from sparrow.model.access.permissions import TokenAction
from sparrow.model.errors import NotEnoughReplicas
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import HandlerResponse, InlineHandler, InlineResult, RequestContext, encode_response
from sparrow.store.spi import wait_durable
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand
from sparrow.wire.headers import EndTransaction, EndTransactionResponse


class EndTransactionHandler:
    """Handles the end of transactions (37). Most producers send it one-way, and need no task then."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._transactions = broker, broker.transactions

    def handlers(self) -> dict[int, InlineHandler]:
        return {RequestCode.END_TRANSACTION: self.end}

    def end(self, command: RemotingCommand, channel: Channel) -> InlineResult:
        request, call = headers.read(EndTransaction, command.ext), RequestContext(command, channel)
        try:
            pending = self._transactions.end(
                request, may_publish=lambda topic: self._broker.may(call, TokenAction.PUBLISH, topic)
            )
        except (TransactionNotEnded, NotEnoughReplicas) as error:
            return encode_response(command, _refusal(error))
        if isinstance(pending, EndedTransaction) and command.flag & ONE_WAY_FLAG:
            self._count(pending)
            return None
        return self._answer(command, pending)

    async def _answer(self, command: RemotingCommand, pending: PendingEnd) -> bytes | None:
        """Answer when the message is durable."""
        try:
            ended = pending if isinstance(pending, EndedTransaction) else await pending
        except (TransactionNotEnded, NotEnoughReplicas) as error:
            return encode_response(command, _refusal(error))
        self._count(ended)
        if not command.flag & ONE_WAY_FLAG:
            await wait_durable(self._broker.store, self._broker.store.written)
        return encode_response(command, HandlerResponse(EndTransactionResponse(ended.outcome)))

    def _count(self, ended: EndedTransaction) -> None:
        if ended.appended is not None:
            self._broker.counters.count_send(ended.appended.queue.topic, 1, 0)


def _refusal(error: TransactionNotEnded | NotEnoughReplicas) -> HandlerResponse:
    # Too few replicas are not answered with 1, as for sends: here it would mean that there is no such half message.
    is_refused = isinstance(error, TransactionNotEnded)
    code = ResponseCode.SYSTEM_ERROR if is_refused else ResponseCode.SERVICE_NOT_AVAILABLE
    return HandlerResponse(code=code, remark=str(error))
