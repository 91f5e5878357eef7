"""Headers of a pull."""

from __future__ import annotations

import msgspec

from sparrow.model.queue import Queue
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt, JavaLong

COMMIT_OFFSET_FLAG, SUSPEND_FLAG, SUBSCRIPTION_FLAG, CLASS_FILTER_FLAG, LITE_PULL_FLAG = 0x1, 0x2, 0x4, 0x8, 0x10
"""Bits of the sys flag of a pull."""


class PullMessage(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: JavaInt
    offset: JavaLong = msgspec.field(name="queueOffset")
    messages_max: JavaInt = msgspec.field(name="maxMsgNums")
    sys_flag: JavaInt
    commit_offset: JavaLong
    long_poll_ms: JavaLong = msgspec.field(name="suspendTimeoutMillis")
    sub_version: JavaLong
    """Time of the subscription, in ms; Go sends 0."""
    subscription: str | None = None
    expression_type: str | None = None
    bytes_max: JavaInt | None = msgspec.field(default=None, name="maxMsgBytes")
    request_source: JavaInt | None = None
    # The misspelling is the wire's (PullMessageRequestHeader).
    proxied_client_id: str | None = msgspec.field(default=None, name="proxyFrowardClientId")
    broker_name: str | None = msgspec.field(default=None, name="bname")
    with_sizes: JavaBool | None = None
    """Sparrow's own: request the sizes of the records, too. Other brokers ignore it."""
    accepts_many: JavaBool | None = None
    """Sparrow's own: the client accepts more messages than brokers return by default. Other brokers ignore it."""

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id)

    @property
    def commits(self) -> bool:
        return bool(self.sys_flag & COMMIT_OFFSET_FLAG)

    @property
    def may_suspend(self) -> bool:
        return bool(self.sys_flag & SUSPEND_FLAG)

    @property
    def has_subscription(self) -> bool:
        return bool(self.sys_flag & SUBSCRIPTION_FLAG)


class PullMessageResponse(Header, frozen=True):
    """The first four fields are in every response, found or not: Java requires them."""

    suggested_broker_id: JavaLong = msgspec.field(name="suggestWhichBrokerId")
    next_offset: JavaLong = msgspec.field(name="nextBeginOffset")
    min_offset: JavaLong
    max_offset: JavaLong
    offset_delta: JavaLong | None = None
    topic_sys_flag: JavaInt | None = None
    group_sys_flag: JavaInt | None = None
    forbidden_type: JavaInt | None = None
    sizes: JavaInt | None = None
    """Number of record sizes after the records, 4 bytes each; only if requested (`withSizes`)."""


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.PULL_MESSAGE: PullMessage,
    RequestCode.LITE_PULL_MESSAGE: PullMessage,
}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.PULL_MESSAGE: PullMessageResponse,
    RequestCode.LITE_PULL_MESSAGE: PullMessageResponse,
}
