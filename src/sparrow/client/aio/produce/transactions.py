"""Transactional messages, on the producer's side: begun as half messages, then ended, by us or when the broker asks.

1. What was ended is remembered for a while: should the broker not have heard it, it asks, and is told the same.
2. While the work is going on, the answer is "not known yet", whatever a listener would find.
3. Only of a transaction that nobody here knows (a producer of the same group began it, perhaps before a crash) the
   listener is asked; without one the broker gets no answer, and asks the next member of the group.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from sparrow.client.aio.connection.session import ClientRequestHandler, ClientSession
from sparrow.client.delayed_delivery import with_properties
from sparrow.model.errors import Refused, SparrowError, Unavailable
from sparrow.model.message import AnyMessage, Message, StoredMessage
from sparrow.model.protocol import PROPERTY_PRODUCER_GROUP, PROPERTY_TRANSACTION_PREPARED, PROPERTY_UNIQUE_KEY
from sparrow.model.send_result import SendResult, TransactionState
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
"""Transactions whose end is remembered."""

TransactionChecker = Callable[[StoredMessage], TransactionState | Awaitable[TransactionState]]
"""Finds out what became of the work a half message was sent for."""

TransactionEndCallback = Callable[[AnyMessage, str, TransactionState, bool], None]
"""Takes the message, the broker it lies on, how it ended, and whether that was the broker's question."""

_VERDICTS = {TransactionState.COMMIT: TRANSACTION_COMMITTED, TransactionState.ROLLBACK: TRANSACTION_ROLLED_BACK}
_FINAL = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION, ResponseCode.ILLEGAL_OPERATION})
"""Refusals, though the first would be worth a try for other requests: here it says that this half is not ours."""


class ProducerTransactions:
    """Those of one producer."""

    def __init__(self, session: ClientSession, group: str, listener: TransactionChecker | None) -> None:
        self._session, self._group, self._listener = session, group, listener
        self._working: dict[str, Message] = {}
        """Half messages whose work is going on, by their ids."""
        self.ended: TransactionEndCallback | None = None
        """Told of every end."""
        self._ended: dict[str, TransactionState] = {}

    def open(self) -> None:
        self._session.handlers.update(HANDLERS)
        self._session.transactions[self._group] = self

    def close(self) -> None:
        if self._session.transactions.get(self._group) is self:
            del self._session.transactions[self._group]

    # -- our word -----------------------------------------------------------------------------------------------------

    def begin(self, message: AnyMessage) -> Message:
        """The half message. From now on the work counts as going on."""
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
        """It could not be sent, as far as we know: no work will be done for it."""
        assert half.unique_key is not None
        self._end(half.unique_key, TransactionState.ROLLBACK)

    async def end(self, sent: SendResult, outcome: TransactionState) -> None:
        """Tell the broker. If it cannot be reached it will ask, and be told then; what it refuses is raised."""
        half = self._end(sent.message_id, outcome)
        if half is not None and self.ended is not None:
            self.ended(half, sent.broker_name, outcome, False)
        if outcome is TransactionState.UNKNOWN:
            return
        header = EndTransaction(
            self._group,
            sent.queue_offset,
            parse_offset_id(sent.offset_id).physical_offset,
            _VERDICTS[outcome],
            sent.message_id,
            transaction_id=sent.message_id,
            topic=sent.topic,
            broker_name=sent.broker_name,
        )
        try:
            route = self._session.cached_route(sent.topic, for_sends=True) or await self._session.route(sent.topic)
            address = route.masters.get(sent.broker_name)
            if address is None:
                raise Unavailable(f"broker {sent.broker_name!r} has no master just now")
            answer = await self._session.invoke_unchecked(address, RequestCode.END_TRANSACTION, header)
            if answer.code == ResponseCode.SUCCESS:
                return
            error = error_for_response(answer.code, answer.remark)
            if answer.code in _FINAL:
                raise Refused(f"the transaction {sent.message_id} was not ended: {error}") from error
            raise error
        except Unavailable as error:
            log.warning(
                "a transaction ended unheard; the broker will ask",
                extra={"message_id": sent.message_id, "outcome": outcome.name, "why": str(error)},
            )

    async def roll_back(self, sent: SendResult) -> None:
        """Because something was raised: what goes wrong here must not take its place."""
        try:
            await self.end(sent, TransactionState.ROLLBACK)
        except SparrowError as error:
            log.warning("a transaction was not rolled back", extra={"message_id": sent.message_id, "why": str(error)})

    def _end(self, message_id: str, outcome: TransactionState) -> Message | None:
        """The half message, if this is the first word on it."""
        if outcome is not TransactionState.UNKNOWN:
            self._ended[message_id] = outcome
            if len(self._ended) > ENDED_TRANSACTIONS_MAX:
                del self._ended[next(iter(self._ended))]
        return self._working.pop(message_id, None)

    # -- when a broker asks -------------------------------------------------------------------------------------------

    async def answer(self, asked: CheckTransaction, message: StoredMessage, channel: Channel) -> None:
        message_id = message.unique_key or asked.message_id or ""
        outcome = await self._outcome_of(message_id, message)
        if self.ended is not None:
            self.ended(message, asked.broker_name or "", outcome, True)
        if outcome is TransactionState.UNKNOWN:
            return
        header = EndTransaction(
            self._group,
            asked.half_queue_offset,
            asked.half_physical_offset,
            _VERDICTS[outcome],
            message_id,
            from_check=True,
            transaction_id=asked.transaction_id or message_id,
            topic=message.topic,
            broker_name=asked.broker_name,
        )
        try:
            signed = self._session.signed(header)
            answer = await channel.request(RequestCode.END_TRANSACTION, signed, timeout_ms=self._session.timeout_ms)
        except SparrowError as error:  # it will ask again
            log.info("an answer was not heard", extra={"message_id": message_id, "why": str(error)})
            return
        if answer.code != ResponseCode.SUCCESS:
            log.warning("an answer was refused", extra={"message_id": message_id, "why": answer.remark})

    async def _outcome_of(self, message_id: str, message: StoredMessage) -> TransactionState:
        if message_id in self._working:
            return TransactionState.UNKNOWN
        known = self._ended.get(message_id)
        if known is not None or self._listener is None:
            return known or TransactionState.UNKNOWN
        try:
            said = self._listener(message)
            outcome = await said if inspect.isawaitable(said) else said
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.warning("a transaction listener failed", extra={"message_id": message_id}, exc_info=error)
            return TransactionState.UNKNOWN
        return validate_transaction_state(outcome)


def validate_transaction_state(said: object) -> TransactionState:
    if not isinstance(said, TransactionState):
        raise TypeError(f"{said!r} is no Outcome: say COMMIT, ROLLBACK or UNKNOWN")
    return said


async def on_check_back(request: CheckTransaction, session: ClientSession, call: RequestContext) -> None:
    """A broker asks what became of a half message."""
    message = record.decode(call.command.body, verify_crc=False)
    asked = session.transactions.get(message.properties.get(PROPERTY_PRODUCER_GROUP, ""))
    if asked is not None:
        await asked.answer(request, message, call.channel)


HANDLERS: dict[int, ClientRequestHandler] = {RequestCode.CHECK_TRANSACTION_STATE: on_check_back}
