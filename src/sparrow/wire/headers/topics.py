"""Headers of topic administration."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt


class UpdateTopic(Header, frozen=True):
    topic: str
    template_topic: str = msgspec.field(name="defaultTopic")
    read_queues: JavaInt = msgspec.field(name="readQueueNums")
    write_queues: JavaInt = msgspec.field(name="writeQueueNums")
    permission: JavaInt = msgspec.field(name="perm")
    filter_type: str = msgspec.field(name="topicFilterType")
    is_ordered: JavaBool = msgspec.field(name="order")
    sys_flag: JavaInt | None = msgspec.field(default=None, name="topicSysFlag")
    attributes: str | None = None
    """Changes, not values: `+message.type=FIFO,-reserve.time`."""
    is_forced: JavaBool | None = msgspec.field(default=None, name="force")


class TopicRequest(Header, frozen=True):
    topic: str
    lo: JavaBool | None = None
    """5.x static topics: only the queues of this broker."""


class DeleteTopic(Header, frozen=True):
    topic: str
    cluster: str | None = msgspec.field(default=None, name="clusterName")


class ListTopics(Header, frozen=True):
    """5.3 requests topics in pages; older clients send no fields."""

    from_index: JavaInt | None = msgspec.field(default=None, name="topicSeq")
    data_version: str | None = None
    topics_max: JavaInt | None = msgspec.field(default=None, name="maxTopicNum")


class ListTopicsResponse(Header, frozen=True):
    """Without the total, clients treat the body as complete."""

    total: JavaInt | None = msgspec.field(default=None, name="totalTopicNum")


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: UpdateTopic,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: UpdateTopic,
    RequestCode.GET_TOPIC_CONFIG: TopicRequest,
    RequestCode.GET_TOPIC_STATS_INFO: TopicRequest,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: TopicRequest,
    RequestCode.DELETE_TOPIC_IN_BROKER: DeleteTopic,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: DeleteTopic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: TopicRequest,
    RequestCode.GET_ALL_TOPIC_CONFIG: ListTopics,
}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {RequestCode.GET_ALL_TOPIC_CONFIG: ListTopicsResponse}
