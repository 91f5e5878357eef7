"""Messages that wait at brokers: delayed ones until they are due, half messages until their transaction is ended."""

from __future__ import annotations

from sparrow.client.aio.connection.session import ClientSession
from sparrow.model.transaction import TransactionState
from sparrow.wire import bodies, headers
from sparrow.wire.bodies import (
    DelayedMessages,
    HalfMessageEntry,
    HalfMessages,
    ListDelayed,
    ListHalfMessages,
)
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import EndTransaction, EndTransactionResponse
from sparrow.wire.record import TRANSACTION_COMMITTED, TRANSACTION_ROLLED_BACK

_VERDICTS = {
    TransactionState.COMMIT: TRANSACTION_COMMITTED,
    TransactionState.ROLLBACK: TRANSACTION_ROLLED_BACK,
}


async def fetch_delayed(session: ClientSession, address: str, request: ListDelayed) -> DelayedMessages:
    """Return delayed messages of a broker by delivery time."""
    answer = await session.invoke(address, RequestCode.LIST_DELAYED_MESSAGES, None, bodies.write(request))
    return bodies.read(DelayedMessages, answer.body)


async def fetch_half_messages(session: ClientSession, address: str, request: ListHalfMessages) -> HalfMessages:
    """Return half messages of a broker, the oldest first."""
    answer = await session.invoke(address, RequestCode.LIST_HALF_MESSAGES, None, bodies.write(request))
    return bodies.read(HalfMessages, answer.body)


async def end_half_message(
    session: ClientSession, address: str, half: HalfMessageEntry, state: TransactionState
) -> str | None:
    """Commit or roll back a transaction in the name of its producer group, and return the outcome.

    The outcome is `committed`, `rolled_back` or `not_found`; None if the broker does not tell it.
    """
    header = EndTransaction(
        group=half.producer_group or "",
        half_queue_offset=half.half_offset,
        half_physical_offset=half.physical_offset,
        verdict=_VERDICTS[state],
        message_id=half.unique_key or "",
        transaction_id=half.unique_key,
        topic=half.topic,
    )
    answer = await session.invoke(address, RequestCode.END_TRANSACTION, header)
    return headers.read(EndTransactionResponse, answer.ext).outcome
