"""Headers of transactions: end of a transaction, and check-back."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt, JavaLong


class EndTransaction(Header, frozen=True):
    group: str = msgspec.field(name="producerGroup")
    half_queue_offset: JavaLong = msgspec.field(name="tranStateTableOffset")
    half_physical_offset: JavaLong = msgspec.field(name="commitLogOffset")
    verdict: JavaInt = msgspec.field(name="commitOrRollback")
    """8 commit, 12 rollback, 0 unknown: the transaction bits of a record's sys flag."""
    message_id: str = msgspec.field(name="msgId")
    from_check: JavaBool = msgspec.field(default=False, name="fromTransactionCheck")
    transaction_id: str | None = None
    topic: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class EndTransactionResponse(Header, frozen=True):
    """RocketMQ's response has no fields; its clients ignore this one."""

    outcome: str | None = None
    """committed, rolled_back, not_found or undecided; absent in responses of RocketMQ's brokers."""


class CheckTransaction(Header, frozen=True):
    """Sent to a producer to ask for the state of a half message."""

    half_queue_offset: JavaLong = msgspec.field(name="tranStateTableOffset")
    half_physical_offset: JavaLong = msgspec.field(name="commitLogOffset")
    message_id: str | None = msgspec.field(default=None, name="msgId")
    transaction_id: str | None = None
    offset_message_id: str | None = msgspec.field(default=None, name="offsetMsgId")
    topic: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class ResumeTransactionCheck(Header, frozen=True):
    message_id: str | None = msgspec.field(default=None, name="msgId")
    topic: str | None = None


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.END_TRANSACTION: EndTransaction,
    RequestCode.CHECK_TRANSACTION_STATE: CheckTransaction,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: ResumeTransactionCheck,
}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {RequestCode.END_TRANSACTION: EndTransactionResponse}
