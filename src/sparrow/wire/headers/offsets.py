"""How far groups have read, and where queues begin and end."""

from __future__ import annotations

import msgspec

from sparrow.model.queue import Queue
from sparrow.wire.codes import Code
from sparrow.wire.headers.codec import Flag, Header, Int, Long


class QueryOffset(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: Int
    zero_if_unknown: Flag = msgspec.field(default=True, name="setZeroIfNotFound")
    """4.9 clients do not say; their broker answers 0 while message 0 is warm, so true is what they expect."""
    broker_name: str | None = msgspec.field(default=None, name="bname")

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id)


class CommitOffset(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: Int
    offset: Long = msgspec.field(name="commitOffset")
    broker_name: str | None = msgspec.field(default=None, name="bname")

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id)


class AskQueue(Header, frozen=True):
    """A question about one queue: its newest offset, its oldest, the store time of its first message."""

    topic: str
    queue_id: Int
    broker_name: str | None = msgspec.field(default=None, name="bname")

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id)


class SearchOffset(Header, frozen=True):
    topic: str
    queue_id: Int
    time_ms: Long = msgspec.field(name="timestamp")
    boundary: str | None = msgspec.field(default=None, name="boundaryType")
    broker_name: str | None = msgspec.field(default=None, name="bname")

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id)

    @property
    def wants_upper(self) -> bool:
        """Java sends the enum's name, upper case; others the documented lower case."""
        return self.boundary is not None and self.boundary.lower() == "upper"


class OffsetFound(Header, frozen=True):
    offset: Long


class StoreTimeFound(Header, frozen=True):
    time_ms: Long = msgspec.field(name="timestamp")


REQUESTS: dict[Code, type[Header]] = {
    Code.QUERY_CONSUMER_OFFSET: QueryOffset,
    Code.UPDATE_CONSUMER_OFFSET: CommitOffset,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffset,
    Code.GET_MAX_OFFSET: AskQueue,
    Code.GET_MIN_OFFSET: AskQueue,
    Code.GET_EARLIEST_MSG_STORETIME: AskQueue,
}
RESPONSES: dict[Code, type[Header]] = {
    Code.QUERY_CONSUMER_OFFSET: OffsetFound,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: OffsetFound,
    Code.GET_MAX_OFFSET: OffsetFound,
    Code.GET_MIN_OFFSET: OffsetFound,
    Code.GET_EARLIEST_MSG_STORETIME: StoreTimeFound,
}
