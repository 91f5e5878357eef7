"""Half messages: ended by their producer, or asked about by the broker."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import Code
from sparrow.wire.headers.codec import Flag, Header, Int, Long


class EndTransaction(Header, frozen=True):
    group: str = msgspec.field(name="producerGroup")
    half_queue_offset: Long = msgspec.field(name="tranStateTableOffset")
    half_physical_offset: Long = msgspec.field(name="commitLogOffset")
    verdict: Int = msgspec.field(name="commitOrRollback")
    """8 commit, 12 rollback, 0 not known yet: the transaction bits of a record's sys flag."""
    message_id: str = msgspec.field(name="msgId")
    from_check: Flag = msgspec.field(default=False, name="fromTransactionCheck")
    transaction_id: str | None = None
    topic: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class CheckTransaction(Header, frozen=True):
    """To a producer: what became of this half message?"""

    half_queue_offset: Long = msgspec.field(name="tranStateTableOffset")
    half_physical_offset: Long = msgspec.field(name="commitLogOffset")
    message_id: str | None = msgspec.field(default=None, name="msgId")
    transaction_id: str | None = None
    offset_message_id: str | None = msgspec.field(default=None, name="offsetMsgId")
    topic: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class ResumeCheck(Header, frozen=True):
    message_id: str | None = msgspec.field(default=None, name="msgId")
    topic: str | None = None


REQUESTS: dict[Code, type[Header]] = {
    Code.END_TRANSACTION: EndTransaction,
    Code.CHECK_TRANSACTION_STATE: CheckTransaction,
    Code.RESUME_CHECK_HALF_MESSAGE: ResumeCheck,
}
RESPONSES: dict[Code, type[Header]] = {}
