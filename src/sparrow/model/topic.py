"""Topics and consumer groups: their configuration, and which names are valid."""

from __future__ import annotations

import re

import msgspec

from sparrow.model.errors import IllegalName
from sparrow.model.protocol import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    CHECK_LIMIT_TOPIC,
    DLQ_TOPIC_PREFIX,
    HEARTBEAT_SYNC_TOPIC,
    OFFSET_MOVED_TOPIC,
    PERM_READ,
    PERM_WRITE,
    REPLY_TOPIC_SUFFIX,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPIC_PREFIX,
)

TOPIC_NAME_CHARS_MAX = 127
"""Records store the length of the topic in one signed byte."""
GROUP_NAME_CHARS_MAX = 120
ROCKETMQ_TOPICS = frozenset({BENCHMARK_TOPIC, HEARTBEAT_SYNC_TOPIC})
"""Topics that RocketMQ creates in every cluster. On Sparrow they are topics like any other."""

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
_SYSTEM_TOPICS = frozenset({SCHEDULE_TOPIC, CHECK_LIMIT_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC, AUTO_CREATE_TOPIC})
_SYSTEM_TOPIC_PATTERN = re.compile(rf"(?i:{SYSTEM_TOPIC_PREFIX}).+|.+{REPLY_TOPIC_SUFFIX}")


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a topic in one store."""

    name: str
    read_queues: int = 8
    write_queues: int = 8
    permission: int = PERM_READ | PERM_WRITE
    is_ordered: bool = False
    sys_flag: int = 0
    attributes: dict[str, str] = {}

    @property
    def is_readable(self) -> bool:
        """Whether consumers may read the topic."""
        return bool(self.permission & PERM_READ)

    @property
    def is_writable(self) -> bool:
        """Whether producers may write to the topic."""
        return bool(self.permission & PERM_WRITE)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a consumer group."""

    name: str
    may_consume: bool = True
    may_broadcast: bool = True
    is_ordered: bool = False
    retry_queues: int = 1
    retries_max: int = 16
    attributes: dict[str, str] = {}


def is_legal_name(name: object) -> bool:
    """Return whether the name is a text that has only characters that topics and groups may have."""
    return isinstance(name, str) and _LEGAL.fullmatch(name) is not None


def is_system_topic(name: str) -> bool:
    """Return whether brokers use the topic internally, RocketMQ's or Sparrow's.

    Retry and dead-letter topics do not count: see `is_group_topic`.
    """
    return name in _SYSTEM_TOPICS or _SYSTEM_TOPIC_PATTERN.fullmatch(name) is not None


def is_group_topic(name: str) -> bool:
    """Return whether it is the retry topic or the dead-letter topic of a group."""
    return name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))


def validate_topic_name(name: str) -> str:
    """Return the name if it is valid for a topic; raise `IllegalName` otherwise."""
    return _checked("topic", name, TOPIC_NAME_CHARS_MAX)


def validate_group_name(name: str) -> str:
    """Return the name if it is valid for a group; raise `IllegalName` otherwise."""
    return _checked("group", name, GROUP_NAME_CHARS_MAX)


def _checked(kind: str, name: str, length_max: int) -> str:
    if not isinstance(name, str):
        raise IllegalName(kind, name, f"use one text, the name of one {kind}")
    if not is_legal_name(name):
        raise IllegalName(kind, name, "use letters, digits, '_', '-', '%' or '|', and at least one of them")
    if len(name) > length_max:
        raise IllegalName(kind, name, f"it has {len(name)} characters, {length_max} are allowed")
    return name
