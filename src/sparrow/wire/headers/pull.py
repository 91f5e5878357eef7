"""Pulling."""

from __future__ import annotations

import msgspec

from sparrow.model.queue import Queue
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt, JavaLong

COMMIT_OFFSET_FLAG, SUSPEND_FLAG, SUBSCRIPTION_FLAG, CLASS_FILTER_FLAG, LITE_PULL_FLAG = 0x1, 0x2, 0x4, 0x8, 0x10
"""Bits of a pull's sys flag."""


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
    """When the client subscribed, in ms; Go sends 0."""
    subscription: str | None = None
    expression_type: str | None = None
    bytes_max: JavaInt | None = msgspec.field(default=None, name="maxMsgBytes")
    request_source: JavaInt | None = None
    # The misspelling is the wire's (PullMessageRequestHeader).
    proxied_client_id: str | None = msgspec.field(default=None, name="proxyFrowardClientId")
    broker_name: str | None = msgspec.field(default=None, name="bname")
    with_sizes: JavaBool | None = None
    """Sparrow's own: the sizes of the records are wanted too. Other brokers take no notice."""

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
    """All four go out with every answer to a pull, found or not: Java reads them without looking."""

    suggested_broker_id: JavaLong = msgspec.field(name="suggestWhichBrokerId")
    next_offset: JavaLong = msgspec.field(name="nextBeginOffset")
    min_offset: JavaLong
    max_offset: JavaLong
    offset_delta: JavaLong | None = None
    topic_sys_flag: JavaInt | None = None
    group_sys_flag: JavaInt | None = None
    forbidden_type: JavaInt | None = None
    sizes: JavaInt | None = None
    """Behind the records there are so many sizes, 4 bytes each: only for those who asked (`withSizes`)."""


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.PULL_MESSAGE: PullMessage,
    RequestCode.LITE_PULL_MESSAGE: PullMessage,
}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.PULL_MESSAGE: PullMessageResponse,
    RequestCode.LITE_PULL_MESSAGE: PullMessageResponse,
}
