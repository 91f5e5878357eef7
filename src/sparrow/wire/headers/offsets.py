"""Headers of committed offsets and queue bounds."""

from __future__ import annotations

import msgspec

from sparrow.model.queue import Queue
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt, JavaLong


class QueryOffset(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: JavaInt
    zero_if_unknown: JavaBool = msgspec.field(default=True, name="setZeroIfNotFound")
    """4.9 clients do not send it; they expect 0 while message 0 is in memory, so the default is true."""
    broker_name: str | None = msgspec.field(default=None, name="bname")

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id)


class CommitOffset(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: JavaInt
    offset: JavaLong = msgspec.field(name="commitOffset")
    broker_name: str | None = msgspec.field(default=None, name="bname")
    expected_offset: JavaLong | None = None
    """Sparrow's own: commit only if this offset is committed now (-1: none is), and respond when that is stored."""

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id)


class QueueRequest(Header, frozen=True):
    """A request about one queue: its newest offset, its oldest, or the store time of its first message."""

    topic: str
    queue_id: JavaInt
    broker_name: str | None = msgspec.field(default=None, name="bname")

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id)


class SearchOffset(Header, frozen=True):
    topic: str
    queue_id: JavaInt
    time_ms: JavaLong = msgspec.field(name="timestamp")
    boundary: str | None = msgspec.field(default=None, name="boundaryType")
    broker_name: str | None = msgspec.field(default=None, name="bname")

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id)

    @property
    def wants_upper(self) -> bool:
        """Whether the upper bound is requested. Java sends upper case; other clients the documented lower case."""
        return self.boundary is not None and self.boundary.lower() == "upper"


class OffsetResponse(Header, frozen=True):
    offset: JavaLong


class StoreTimeResponse(Header, frozen=True):
    time_ms: JavaLong = msgspec.field(name="timestamp")


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.QUERY_CONSUMER_OFFSET: QueryOffset,
    RequestCode.UPDATE_CONSUMER_OFFSET: CommitOffset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffset,
    RequestCode.GET_MAX_OFFSET: QueueRequest,
    RequestCode.GET_MIN_OFFSET: QueueRequest,
    RequestCode.GET_EARLIEST_MSG_STORETIME: QueueRequest,
}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.QUERY_CONSUMER_OFFSET: OffsetResponse,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: OffsetResponse,
    RequestCode.GET_MAX_OFFSET: OffsetResponse,
    RequestCode.GET_MIN_OFFSET: OffsetResponse,
    RequestCode.GET_EARLIEST_MSG_STORETIME: StoreTimeResponse,
}
