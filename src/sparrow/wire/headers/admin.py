"""Statistics and configuration, as operators' tools ask for them."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import Code
from sparrow.wire.headers.codec import Flag, Header


class ConsumeStats(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    topic: str | None = None
    topic_list: str | None = None
    """5.3: names, each followed by a semicolon."""

    @property
    def topics(self) -> list[str]:
        """Whichever way the topics were given; none means all of the group's."""
        named = [name for name in (self.topic_list or "").split(";") if name]
        return named or ([self.topic] if self.topic else [])


class BrokerConsumeStats(Header, frozen=True):
    in_order: Flag = msgspec.field(name="isOrder")


class ConsumerConnections(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")


class ProducerConnections(Header, frozen=True):
    group: str = msgspec.field(name="producerGroup")


class TopicsOfGroup(Header, frozen=True):
    group: str


class SubscriptionOfGroup(Header, frozen=True):
    group: str
    topic: str | None = None


class ConsumeTimeSpan(Header, frozen=True):
    topic: str
    group: str


class CorrectOffsets(Header, frozen=True):
    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneOffsets(Header, frozen=True):
    from_group: str = msgspec.field(name="srcGroup")
    to_group: str = msgspec.field(name="destGroup")
    topic: str | None = None
    is_offline: Flag = msgspec.field(default=False, name="offline")


class BrokerStats(Header, frozen=True):
    name: str = msgspec.field(name="statsName")
    key: str = msgspec.field(name="statsKey")


class BrokerConfig(Header, frozen=True):
    """Of the answer: the body is the configuration, this its version as JSON."""

    version: str


REQUESTS: dict[Code, type[Header]] = {
    Code.GET_CONSUME_STATS: ConsumeStats,
    Code.GET_BROKER_CONSUME_STATS: BrokerConsumeStats,
    Code.GET_CONSUMER_CONNECTION_LIST: ConsumerConnections,
    Code.GET_PRODUCER_CONNECTION_LIST: ProducerConnections,
    Code.QUERY_TOPICS_BY_CONSUMER: TopicsOfGroup,
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: SubscriptionOfGroup,
    Code.QUERY_CONSUME_TIME_SPAN: ConsumeTimeSpan,
    Code.QUERY_CORRECTION_OFFSET: CorrectOffsets,
    Code.CLONE_GROUP_OFFSET: CloneOffsets,
    Code.VIEW_BROKER_STATS_DATA: BrokerStats,
}
RESPONSES: dict[Code, type[Header]] = {Code.GET_BROKER_CONFIG: BrokerConfig}
