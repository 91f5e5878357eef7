"""Topics: made, changed, listed, dropped."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import Code
from sparrow.wire.headers.codec import Flag, Header, Int


class UpdateTopic(Header, frozen=True):
    topic: str
    template_topic: str = msgspec.field(name="defaultTopic")
    read_queues: Int = msgspec.field(name="readQueueNums")
    write_queues: Int = msgspec.field(name="writeQueueNums")
    permission: Int = msgspec.field(name="perm")
    filter_type: str = msgspec.field(name="topicFilterType")
    is_ordered: Flag = msgspec.field(name="order")
    sys_flag: Int | None = msgspec.field(default=None, name="topicSysFlag")
    attributes: str | None = None
    """Changes, not values: `+message.type=FIFO,-reserve.time`."""
    is_forced: Flag | None = msgspec.field(default=None, name="force")


class AskTopic(Header, frozen=True):
    topic: str
    lo: Flag | None = None
    """5.x static topics: answer for this broker's own queues only."""


class DeleteTopic(Header, frozen=True):
    topic: str
    cluster: str | None = msgspec.field(default=None, name="clusterName")


class ListTopics(Header, frozen=True):
    """5.3 pages through the topics; older clients say nothing."""

    from_index: Int | None = msgspec.field(default=None, name="topicSeq")
    data_version: str | None = None
    topics_max: Int | None = msgspec.field(default=None, name="maxTopicNum")


class TopicsListed(Header, frozen=True):
    """Without the total, clients take the body as complete."""

    total: Int | None = msgspec.field(default=None, name="totalTopicNum")


REQUESTS: dict[Code, type[Header]] = {
    Code.UPDATE_AND_CREATE_TOPIC: UpdateTopic,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: UpdateTopic,
    Code.GET_TOPIC_CONFIG: AskTopic,
    Code.GET_TOPIC_STATS_INFO: AskTopic,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: AskTopic,
    Code.DELETE_TOPIC_IN_BROKER: DeleteTopic,
    Code.DELETE_TOPIC_IN_NAMESRV: DeleteTopic,
    Code.REGISTER_TOPIC_IN_NAMESRV: AskTopic,
    Code.GET_ALL_TOPIC_CONFIG: ListTopics,
}
RESPONSES: dict[Code, type[Header]] = {Code.GET_ALL_TOPIC_CONFIG: TopicsListed}
