"""Pop: the broker hands messages out for a time, and takes acknowledgements."""

from __future__ import annotations

import msgspec

from sparrow.model.queue import Queue
from sparrow.wire.codes import Code
from sparrow.wire.headers.codec import Flag, Header, Int, Long


class PopMessage(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: Int
    """-1 stands for every queue."""
    messages_max: Int = msgspec.field(name="maxMsgNums")
    invisible_ms: Long = msgspec.field(name="invisibleTime")
    poll_ms: Long = msgspec.field(name="pollTime")
    born_ms: Long = msgspec.field(name="bornTime")
    init_mode: Int
    """Where a group without offset starts: 0 at the oldest message, 1 at the newest."""
    expression_type: str | None = msgspec.field(default=None, name="expType")
    expression: str | None = msgspec.field(default=None, name="exp")
    in_order: Flag = msgspec.field(default=False, name="order")
    attempt_id: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class Popped(Header, frozen=True):
    pop_ms: Long = msgspec.field(name="popTime")
    invisible_ms: Long = msgspec.field(name="invisibleTime")
    revive_queue: Int = msgspec.field(name="reviveQid")
    """999 for messages popped in order."""
    rest: Long = msgspec.field(name="restNum")
    start_offsets: str | None = msgspec.field(default=None, name="startOffsetInfo")
    message_offsets: str | None = msgspec.field(default=None, name="msgOffsetInfo")
    order_counts: str | None = msgspec.field(default=None, name="orderCountInfo")


class AckMessage(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: Int
    handle: str = msgspec.field(name="extraInfo")
    offset: Long
    broker_name: str | None = msgspec.field(default=None, name="bname")

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id)


class BatchAck(Header, frozen=True):
    """Says everything in its body."""


class ChangeInvisible(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: Int
    handle: str = msgspec.field(name="extraInfo")
    offset: Long
    invisible_ms: Long = msgspec.field(name="invisibleTime")
    broker_name: str | None = msgspec.field(default=None, name="bname")

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id)


class InvisibleChanged(Header, frozen=True):
    pop_ms: Long = msgspec.field(name="popTime")
    invisible_ms: Long = msgspec.field(name="invisibleTime")
    revive_queue: Int = msgspec.field(name="reviveQid")


class PeekMessage(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: Int
    messages_max: Int = msgspec.field(name="maxMsgNums")


class Notification(Header, frozen=True):
    """Tell me when there is something; do not send it."""

    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: Int
    poll_ms: Long = msgspec.field(name="pollTime")
    born_ms: Long = msgspec.field(name="bornTime")
    in_order: Flag = msgspec.field(default=False, name="order")
    attempt_id: str | None = None


class Notified(Header, frozen=True):
    has_message: Flag = msgspec.field(name="hasMsg")
    polling_full: Flag = False


class PollingAsked(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: Int


class PollingCounted(Header, frozen=True):
    count: Int = msgspec.field(name="pollingNum")


REQUESTS: dict[Code, type[Header]] = {
    Code.POP_MESSAGE: PopMessage,
    Code.ACK_MESSAGE: AckMessage,
    Code.BATCH_ACK_MESSAGE: BatchAck,
    Code.PEEK_MESSAGE: PeekMessage,
    Code.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisible,
    Code.NOTIFICATION: Notification,
    Code.POLLING_INFO: PollingAsked,
}
RESPONSES: dict[Code, type[Header]] = {
    Code.POP_MESSAGE: Popped,
    Code.PEEK_MESSAGE: Popped,
    Code.CHANGE_MESSAGE_INVISIBLETIME: InvisibleChanged,
    Code.NOTIFICATION: Notified,
    Code.POLLING_INFO: PollingCounted,
}
