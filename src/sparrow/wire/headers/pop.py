"""Headers of pop consumption: pop, ack, change of the invisible time, peek, notification."""

from __future__ import annotations

import msgspec

from sparrow.model.queue import Queue
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt, JavaLong


class PopMessage(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: JavaInt
    """-1 means all queues."""
    messages_max: JavaInt = msgspec.field(name="maxMsgNums")
    invisible_ms: JavaLong = msgspec.field(name="invisibleTime")
    poll_ms: JavaLong = msgspec.field(name="pollTime")
    born_ms: JavaLong = msgspec.field(default=0, name="bornTime")
    """When the client sent it; 0, or nothing, means now."""
    init_mode: JavaInt = 0
    """Where a group without an offset starts: 0 oldest message, 1 newest message."""
    expression_type: str | None = msgspec.field(default=None, name="expType")
    expression: str | None = msgspec.field(default=None, name="exp")
    in_order: JavaBool = msgspec.field(default=False, name="order")
    attempt_id: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class PopMessageResponse(Header, frozen=True):
    pop_ms: JavaLong = msgspec.field(name="popTime")
    invisible_ms: JavaLong = msgspec.field(name="invisibleTime")
    revive_queue: JavaInt = msgspec.field(name="reviveQid")
    """999 for messages popped in order."""
    rest: JavaLong = msgspec.field(name="restNum")
    start_offsets: str | None = msgspec.field(default=None, name="startOffsetInfo")
    message_offsets: str | None = msgspec.field(default=None, name="msgOffsetInfo")
    order_counts: str | None = msgspec.field(default=None, name="orderCountInfo")


class AckMessage(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: JavaInt
    handle: str = msgspec.field(name="extraInfo")
    offset: JavaLong
    broker_name: str | None = msgspec.field(default=None, name="bname")

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id)


class BatchAckMessage(Header, frozen=True):
    """Has no fields: the body contains the acknowledgements."""


class ChangeInvisibleTime(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: JavaInt
    handle: str = msgspec.field(name="extraInfo")
    offset: JavaLong
    invisible_ms: JavaLong = msgspec.field(name="invisibleTime")
    broker_name: str | None = msgspec.field(default=None, name="bname")

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id)


class ChangeInvisibleTimeResponse(Header, frozen=True):
    pop_ms: JavaLong = msgspec.field(name="popTime")
    invisible_ms: JavaLong = msgspec.field(name="invisibleTime")
    revive_queue: JavaInt = msgspec.field(name="reviveQid")


class PeekMessage(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: JavaInt
    messages_max: JavaInt = msgspec.field(name="maxMsgNums")


class NotificationRequest(Header, frozen=True):
    """Long-polls for messages without receiving them."""

    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: JavaInt
    poll_ms: JavaLong = msgspec.field(name="pollTime")
    born_ms: JavaLong = msgspec.field(default=0, name="bornTime")
    """When the client sent it; 0, or nothing, means now."""
    in_order: JavaBool = msgspec.field(default=False, name="order")
    attempt_id: str | None = None


class NotificationResponse(Header, frozen=True):
    has_message: JavaBool = msgspec.field(name="hasMsg")
    polling_full: JavaBool = False


class GetPollingCount(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: JavaInt


class GetPollingCountResponse(Header, frozen=True):
    count: JavaInt = msgspec.field(name="pollingNum")


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.POP_MESSAGE: PopMessage,
    RequestCode.ACK_MESSAGE: AckMessage,
    RequestCode.BATCH_ACK_MESSAGE: BatchAckMessage,
    RequestCode.PEEK_MESSAGE: PeekMessage,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisibleTime,
    RequestCode.NOTIFICATION: NotificationRequest,
    RequestCode.POLLING_INFO: GetPollingCount,
}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.POP_MESSAGE: PopMessageResponse,
    RequestCode.PEEK_MESSAGE: PopMessageResponse,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisibleTimeResponse,
    RequestCode.NOTIFICATION: NotificationResponse,
    RequestCode.POLLING_INFO: GetPollingCountResponse,
}
