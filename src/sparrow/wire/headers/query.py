"""Finding messages by key, by id, by place."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import Code
from sparrow.wire.headers.codec import Flag, Header, Int, Long


class QueryMessage(Header, frozen=True):
    topic: str
    key: str
    messages_max: Int = msgspec.field(name="maxNum")
    begin_ms: Long = msgspec.field(name="beginTimestamp")
    end_ms: Long = msgspec.field(name="endTimestamp")
    by_unique_key: Flag = msgspec.field(default=False, name="_UNIQUE_KEY_QUERY")


class MessagesFound(Header, frozen=True):
    index_updated_ms: Long = msgspec.field(name="indexLastUpdateTimestamp")
    index_physical_offset: Long = msgspec.field(name="indexLastUpdatePhyoffset")


class ViewMessage(Header, frozen=True):
    physical_offset: Long = msgspec.field(name="offset")
    topic: str | None = None


class QueryConsumeQueue(Header, frozen=True):
    topic: str
    queue_id: Int
    index: Long
    count: Int
    group: str | None = msgspec.field(default=None, name="consumerGroup")


REQUESTS: dict[Code, type[Header]] = {
    Code.QUERY_MESSAGE: QueryMessage,
    Code.VIEW_MESSAGE_BY_ID: ViewMessage,
    Code.QUERY_CONSUME_QUEUE: QueryConsumeQueue,
}
RESPONSES: dict[Code, type[Header]] = {Code.QUERY_MESSAGE: MessagesFound}
