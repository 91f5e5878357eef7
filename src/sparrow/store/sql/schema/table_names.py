"""Names of the tables of a topic.

1. A lower-case topic's name is part of the table names. Databases differ in how they compare table names, so no other
   name is, and none is folded to lower case.
2. The tables of part 0 have the bare names; those of part k end in `$k`, a character that no topic may contain.
3. The tables of other topics carry a digest after a `$`, and their row in `hermes_topic` holds the name. Internal
   topics (`%RETRY%...`, `%DLQ%...`, system topics) always have such tables, topics of users if the settings allow it.
"""

from __future__ import annotations

import re
from hashlib import sha256

from sparrow.model.errors import IllegalName
from sparrow.model.priority import Priority
from sparrow.model.topic import is_group_topic, is_system_topic, validate_topic_name
from sparrow.settings import TopicNames

TOPIC_NAME_CHARS_MAX = 40
"""With the longest prefix, a part and a partition, a table name stays below PostgreSQL's 63 bytes."""
_LEGAL = re.compile(r"[a-z0-9][a-z0-9._|-]*")
"""`|` stands for the dots in names of events, because RocketMQ's topics may not contain dots."""


def is_internal_topic(topic: str) -> bool:
    """Return whether the platform created the topic: a system topic, or a group's retry or dead-letter topic."""
    return is_system_topic(topic) or is_group_topic(topic)


def validate_new_topic(topic: str, allowed: TopicNames) -> str:
    """Return the name if a topic may be created with it; raise `IllegalName` otherwise."""
    if is_internal_topic(topic) or _is_part_of_table_names(topic):
        return topic
    if allowed == "any":
        return validate_topic_name(topic)
    if len(topic) > TOPIC_NAME_CHARS_MAX:
        rule = f"it has {len(topic)} characters, {TOPIC_NAME_CHARS_MAX} are allowed on a SQL store"
    else:
        rule = "on a SQL store use lower-case letters, digits, '.', '_', '-' or '|', and start with a letter or digit"
    raise IllegalName("topic", topic, f"{rule}, or set sql.topic_names = 'any'")


def table_suffix(topic: str) -> str:
    """Return what the topic's table names end in."""
    if _is_part_of_table_names(topic) and not is_internal_topic(topic):
        return topic
    return "$" + sha256(topic.encode()).hexdigest()[:16]


def _is_part_of_table_names(topic: str) -> bool:
    return len(topic) <= TOPIC_NAME_CHARS_MAX and _LEGAL.fullmatch(topic) is not None


def table_name(prefix: str, topic: str, part: int = 0, priority: Priority | None = None) -> str:
    """Return the name of one of a topic's tables: `msg_high_orders`, `offset_orders$1`."""
    level = f"_{priority.label}" if priority is not None else ""
    return f"{prefix}{level}_{topic}" + (f"${part}" if part else "")
