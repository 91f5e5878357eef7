"""Headers of statistics and configuration, which tools request."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool


class GetConsumeStats(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str | None = None
    topic_list: str | None = None
    """Since 5.3: names, each followed by a semicolon."""

    @property
    def topics(self) -> list[str]:
        """The requested topics; none means all topics of the group."""
        named = [name for name in (self.topic_list or "").split(";") if name]
        return named or ([self.topic] if self.topic else [])


class GetBrokerConsumeStats(Header, frozen=True):
    in_order: JavaBool = msgspec.field(name="isOrder")


class GetConsumerConnections(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")


class GetProducerConnections(Header, frozen=True):
    group: str = msgspec.field(name="producerGroup")


class GetGroupTopics(Header, frozen=True):
    group: str


class GetGroupSubscription(Header, frozen=True):
    group: str
    topic: str | None = None


class GetConsumeTimeSpans(Header, frozen=True):
    topic: str
    group: str


class GetCorrectedOffsets(Header, frozen=True):
    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneGroupOffsets(Header, frozen=True):
    from_group: str = msgspec.field(name="srcGroup")
    to_group: str = msgspec.field(name="destGroup")
    topic: str | None = None
    is_offline: JavaBool = msgspec.field(default=False, name="offline")


class GetBrokerStats(Header, frozen=True):
    name: str = msgspec.field(name="statsName")
    key: str = msgspec.field(name="statsKey")


class GetBrokerConfigResponse(Header, frozen=True):
    """The version of the configuration, as JSON; the body is the configuration."""

    version: str


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.GET_CONSUME_STATS: GetConsumeStats,
    RequestCode.GET_BROKER_CONSUME_STATS: GetBrokerConsumeStats,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: GetConsumerConnections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: GetProducerConnections,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: GetGroupTopics,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: GetGroupSubscription,
    RequestCode.QUERY_CONSUME_TIME_SPAN: GetConsumeTimeSpans,
    RequestCode.QUERY_CORRECTION_OFFSET: GetCorrectedOffsets,
    RequestCode.CLONE_GROUP_OFFSET: CloneGroupOffsets,
    RequestCode.VIEW_BROKER_STATS_DATA: GetBrokerStats,
}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {RequestCode.GET_BROKER_CONFIG: GetBrokerConfigResponse}
