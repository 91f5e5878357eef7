"""Bodies of topic and group configurations, and their conversion to the model."""

# ruff: noqa: RUF012  (msgspec gives every struct an empty list or dict of its own)
from __future__ import annotations

from typing import Any

import msgspec

from sparrow.model.protocol import PERM_READ, PERM_WRITE
from sparrow.model.topic import Group, Topic
from sparrow.wire.bodies.codec import Body, DataVersion


class TopicConfig(Body, frozen=True):
    topic_name: str
    read_queue_nums: int = 8
    write_queue_nums: int = 8
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}

    @classmethod
    def of(cls, topic: Topic) -> TopicConfig:
        return cls(
            topic_name=topic.name,
            read_queue_nums=topic.read_queues,
            write_queue_nums=topic.write_queues,
            perm=topic.permission,
            topic_sys_flag=topic.sys_flag,
            order=topic.is_ordered,
            attributes=topic.attributes,
        )

    def topic(self) -> Topic:
        return Topic(
            name=self.topic_name,
            read_queues=self.read_queue_nums,
            write_queues=self.write_queue_nums,
            permission=self.perm,
            is_ordered=self.order,
            sys_flag=self.topic_sys_flag,
            attributes=self.attributes,
        )


class GroupConfig(Body, frozen=True):
    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] = {}

    @classmethod
    def of(cls, group: Group) -> GroupConfig:
        return cls(
            group_name=group.name,
            consume_enable=group.may_consume,
            consume_broadcast_enable=group.may_broadcast,
            consume_message_orderly=group.is_ordered,
            retry_queue_nums=group.retry_queues,
            retry_max_times=group.retries_max,
            attributes=group.attributes,
        )

    def group(self) -> Group:
        return Group(
            name=self.group_name,
            may_consume=self.consume_enable,
            may_broadcast=self.consume_broadcast_enable,
            is_ordered=self.consume_message_orderly,
            retry_queues=self.retry_queue_nums,
            retries_max=self.retry_max_times,
            attributes=self.attributes,
        )


class TopicTable(Body, frozen=True):
    """All topics of a broker: the response to 21, and the main part of a registration."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = DataVersion()
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_info_map: dict[str, Any] | None = None
    topic_queue_mapping_detail_map: dict[str, Any] | None = None


class GroupTable(Body, frozen=True):
    subscription_group_table: dict[str, GroupConfig] = {}
    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, int]] = {}
    """Empty, not absent or null: 5.3 clients access it."""


class TopicConfigList(Body, frozen=True):
    topic_config_list: list[TopicConfig] = []


class GroupConfigList(Body, frozen=True):
    group_config_list: list[GroupConfig] = []


class TopicList(Body, frozen=True):
    topic_list: list[str] = []
    broker_addr: str | None = None


class GroupList(Body, frozen=True):
    group_list: list[str] = []


class GroupForbidden(Body, frozen=True):
    group: str
    topic: str
    readable: bool
