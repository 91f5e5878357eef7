"""Headers of message queries: by key, by id, by position in a queue."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt, JavaLong


class QueryMessage(Header, frozen=True):
    topic: str
    key: str
    messages_max: JavaInt = msgspec.field(name="maxNum")
    begin_ms: JavaLong = msgspec.field(name="beginTimestamp")
    end_ms: JavaLong = msgspec.field(name="endTimestamp")
    by_unique_key: JavaBool = msgspec.field(default=False, name="_UNIQUE_KEY_QUERY")


class QueryMessageResponse(Header, frozen=True):
    index_updated_ms: JavaLong = msgspec.field(name="indexLastUpdateTimestamp")
    index_physical_offset: JavaLong = msgspec.field(name="indexLastUpdatePhyoffset")


class ViewMessage(Header, frozen=True):
    physical_offset: JavaLong = msgspec.field(name="offset")
    topic: str | None = None


class QueryConsumeQueue(Header, frozen=True):
    topic: str
    queue_id: JavaInt
    index: JavaLong
    count: JavaInt
    group: str | None = msgspec.field(default=None, name="consumerGroup")


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.QUERY_MESSAGE: QueryMessage,
    RequestCode.VIEW_MESSAGE_BY_ID: ViewMessage,
    RequestCode.QUERY_CONSUME_QUEUE: QueryConsumeQueue,
}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {RequestCode.QUERY_MESSAGE: QueryMessageResponse}
