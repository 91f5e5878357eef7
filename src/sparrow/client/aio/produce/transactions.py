"""The transactions of a producer: half messages, their end, and the answers to check-backs.

1. The end of a transaction is remembered for a while: a broker that did not receive it checks back and gets it then.
2. While the work is in progress, the answer is `UNKNOWN`, whatever a checker would return.
3. The checker is asked only about unknown transactions (begun by another producer of the group, or before a crash).
   Without a checker the broker gets no answer, and asks another member of the group.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any

from sparrow.client.aio.connection.leader_requests import invoke_leader
from sparrow.client.aio.connection.session import ClientRequestHandler, ClientSession
from sparrow.client.options import TransactionChecker
from sparrow.client.produce.delayed_delivery import with_properties
from sparrow.model.errors import Refused, SparrowError, Unavailable
from sparrow.model.message import AnyMessage, Message, StoredMessage
from sparrow.model.protocol import PROPERTY_PRODUCER_GROUP, PROPERTY_TRANSACTION_PREPARED, PROPERTY_UNIQUE_KEY
from sparrow.model.send_result import SendResult
from sparrow.model.transaction import TransactionState
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import RequestContext
from sparrow.wire import record
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import CheckTransaction, EndTransaction
from sparrow.wire.message_ids import parse_offset_id
from sparrow.wire.record import TRANSACTION_COMMITTED, TRANSACTION_ROLLED_BACK

log = logging.getLogger(__name__)

ENDED_TRANSACTIONS_MAX = 10_000
"""Limit of ended transactions that are remembered."""

TransactionEndCallback = Callable[[AnyMessage, str, TransactionState, bool], None]
"""Gets the message, its broker, its state, and whether the broker checked back."""

_TRANSACTION_FLAGS = {
    TransactionState.COMMIT: TRANSACTION_COMMITTED,
    TransactionState.ROLLBACK: TRANSACTION_ROLLED_BACK,
}
_FINAL = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION, ResponseCode.ILLEGAL_OPERATION})
"""Refusals. SYSTEM_ERROR, which is retried elsewhere, means here that the half message is not ours."""


class ProducerTransactions:
    """The transactions of one producer."""

    def __init__(self, session: ClientSession, group: str, checker: TransactionChecker | None) -> None:
        self._session, self._group, self._checker = session, group, checker
        self._working: dict[str, Message] = {}
        """Half messages whose work is in progress, by message id."""
        self.ended: TransactionEndCallback | None = None
        """Called at every end."""
        self._ended: dict[str, TransactionState] = {}

    def open(self) -> None:
        """Register for check-backs of the group."""
        self._session.handlers.update(HANDLERS)
        self._session.transactions[self._group] = self

    def close(self) -> None:
        """Answer no more check-backs."""
        if self._session.transactions.get(self._group) is self:
            del self._session.transactions[self._group]

    # -- own transactions ---------------------------------------------------------------------------------------------

    def begin(self, message: AnyMessage) -> Message:
        """Return the half message. From now on its work is in progress."""
        message_id = message.unique_key or self._session.unique_ids.make()
        half = with_properties(
            message,
            {
                PROPERTY_TRANSACTION_PREPARED: "true",
                PROPERTY_PRODUCER_GROUP: self._group,
                PROPERTY_UNIQUE_KEY: message_id,
            },
        )
        self._working[message_id] = half
        return half

    def give_up(self, half: Message) -> None:
        """Roll back a half message that could not be sent."""
        assert half.unique_key is not None
        self._end(half.unique_key, TransactionState.ROLLBACK)

    async def end(self, sent: SendResult, state: TransactionState) -> None:
        """Send the state to the broker. If it cannot be reached it checks back later; a refusal is raised."""
        half = self._end(sent.message_id, state)
        if half is not None and self.ended is not None:
            self.ended(half, sent.broker_name, state, False)
        if state is TransactionState.UNKNOWN:
            return
        header = EndTransaction(
            self._group,
            sent.queue_offset,
            parse_offset_id(sent.offset_id).physical_offset,
            _TRANSACTION_FLAGS[state],
            sent.message_id,
            transaction_id=sent.message_id,
            topic=sent.topic,
            broker_name=sent.broker_name,
        )
        try:
            answer = await invoke_leader(
                self._session,
                sent.topic,
                sent.broker_name,
                RequestCode.END_TRANSACTION,
                header,
                accepted={ResponseCode.SUCCESS, *_FINAL},
            )
            if answer.code in _FINAL:
                error = error_for_response(answer.code, answer.remark)
                raise Refused(f"the transaction {sent.message_id} was not ended: {error}") from error
        except Unavailable as error:
            log.warning(
                "end (%(state)s) of transaction %(message_id)s not delivered: %(error)s; the broker will check back",
                {"message_id": sent.message_id, "state": state.name, "error": str(error)},
            )

    async def run(self, sent: SendResult, work: Callable[[AnyMessage], Any], message: AnyMessage) -> None:
        """Call `work` with the message, and end the transaction with the state that it returns; None commits."""
        try:
            returned = work(message)
            returned = await returned if inspect.isawaitable(returned) else returned
            state = TransactionState.COMMIT if returned is None else validate_transaction_state(returned)
        except BaseException:
            await self.roll_back(sent)
            raise
        await self.end(sent, state)

    async def roll_back(self, sent: SendResult) -> None:
        """Roll back after an exception, which an error of the rollback must not replace."""
        try:
            await self.end(sent, TransactionState.ROLLBACK)
        except SparrowError as error:
            log.warning(
                "transaction %(message_id)s is not rolled back: %(error)s; the broker will check back",
                {"message_id": sent.message_id, "error": str(error)},
            )

    def _end(self, message_id: str, state: TransactionState) -> Message | None:
        """Remember the state, and return the half message if this is its first end."""
        if state is not TransactionState.UNKNOWN:
            self._ended[message_id] = state
            if len(self._ended) > ENDED_TRANSACTIONS_MAX:
                del self._ended[next(iter(self._ended))]
        return self._working.pop(message_id, None)

    # -- check-backs --------------------------------------------------------------------------------------------------

    async def answer(self, asked: CheckTransaction, message: StoredMessage, channel: Channel) -> None:
        """Answer a check-back."""
        message_id = message.unique_key or asked.message_id or ""
        state = await self._state_of(message_id, message)
        if self.ended is not None:
            self.ended(message, asked.broker_name or "", state, True)
        if state is TransactionState.UNKNOWN:
            return
        header = EndTransaction(
            self._group,
            asked.half_queue_offset,
            asked.half_physical_offset,
            _TRANSACTION_FLAGS[state],
            message_id,
            from_check=True,
            transaction_id=asked.transaction_id or message_id,
            topic=message.topic,
            broker_name=asked.broker_name,
        )
        try:
            answer = await channel.request(RequestCode.END_TRANSACTION, header, timeout_ms=self._session.timeout_ms)
        except SparrowError as error:  # the broker checks back again
            log.info(
                "answer about transaction %(message_id)s not delivered: %(error)s; the broker checks back again",
                {"message_id": message_id, "error": str(error)},
            )
            return
        if answer.code != ResponseCode.SUCCESS:
            log.warning(
                "answer about transaction %(message_id)s refused: %(error)s",
                {"message_id": message_id, "error": answer.remark},
            )

    async def _state_of(self, message_id: str, message: StoredMessage) -> TransactionState:
        if message_id in self._working:
            return TransactionState.UNKNOWN
        known = self._ended.get(message_id)
        if known is not None or self._checker is None:
            return known or TransactionState.UNKNOWN
        try:
            returned = self._checker(message)
            state = await returned if inspect.isawaitable(returned) else returned
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.warning(
                "transaction checker failed for %(message_id)s: %(error)r; the broker checks back again",
                {"message_id": message_id, "error": error},
                exc_info=error,
            )
            return TransactionState.UNKNOWN
        return validate_transaction_state(state)


def validate_transaction_state(value: object) -> TransactionState:
    """Return the value if it is a `TransactionState`; raise `TypeError` otherwise."""
    if not isinstance(value, TransactionState):
        raise TypeError(f"{value!r} is no TransactionState: return COMMIT, ROLLBACK or UNKNOWN")
    return value


async def on_check_back(request: CheckTransaction, session: ClientSession, call: RequestContext) -> None:
    """Handle a broker's check-back of a half message."""
    message = record.decode(call.command.body, verify_crc=False)
    asked = session.transactions.get(message.properties.get(PROPERTY_PRODUCER_GROUP, ""))
    if asked is not None:
        await asked.answer(request, message, call.channel)


HANDLERS: dict[int, ClientRequestHandler] = {RequestCode.CHECK_TRANSACTION_STATE: on_check_back}
