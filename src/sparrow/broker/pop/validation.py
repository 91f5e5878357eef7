"""Validation of pop requests."""

from __future__ import annotations

from sparrow.broker.context import Broker
from sparrow.model.errors import NotPermitted, Refused

POP_MESSAGES_MAX = 32
INVISIBLE_MS_MAX = 12 * 3_600_000
"""The limit of RocketMQ's proxies. Retention must not delete messages in flight."""


def check_may_pop(broker: Broker, group_name: str, topic_name: str, queue_id: int) -> None:
    """Refuse a group that may not consume, a topic that may not be read, or an unknown queue; -1 means all queues."""
    group = broker.groups[group_name]
    if not group.may_consume:
        raise NotPermitted(f"consuming in group {group.name!r}", "the group's configuration forbids it")
    topic = broker.topics[topic_name]
    if not topic.is_readable:
        raise NotPermitted(f"reading topic {topic.name!r}", "the topic has no read permission")
    if not -1 <= queue_id < topic.read_queues:
        raise Refused(f"topic {topic.name!r} has no queue {queue_id}: its queues are 0 to {topic.read_queues - 1}")


def check_message_count(messages_max: int) -> None:
    if not 1 <= messages_max <= POP_MESSAGES_MAX:
        raise Refused(f"cannot pop {messages_max} messages: ask for 1 to {POP_MESSAGES_MAX}")


def check_invisible_time(invisible_ms: int, *, least: int) -> None:
    if not least <= invisible_ms <= INVISIBLE_MS_MAX:
        raise Refused(f"an invisible time of {invisible_ms} ms is not possible: use {least} to {INVISIBLE_MS_MAX}")
