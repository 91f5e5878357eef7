"""What things are called in the database: tables of a topic, and the lanes that number its messages.

1. A topic's name is part of its tables' names. Databases differ in how they compare names, so only lower case is
   taken, and nothing is folded.
2. Part 0 has the bare names; part k appends `$k`, which no topic may hold.
3. The platform's own topics (`%RETRY%...`, `RMQ_SYS_...`) may be called anything: their tables carry a digest behind a
   `$`, and what they are called stands in their row of `hermes_topic`.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Literal, NamedTuple

from sparrow.model.errors import IllegalName
from sparrow.model.priority import Priority
from sparrow.model.protocol import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from sparrow.model.queue import PhysicalOffset
from sparrow.model.topic import is_system_topic

TOPIC_NAME_CHARS_MAX = 40
"""With the longest prefix, a part and a partition it stays below the 63 bytes of PostgreSQL."""
_LEGAL = re.compile(r"[a-z0-9][a-z0-9._|-]*")
"""With `|`, which stands for the dots in names of events: RocketMQ's topics may not have dots."""
_OF_GROUPS = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)
_ID_BITS = 40
"""Of a physical offset: the id; above it the lane. A trillion messages for each of eight million lanes."""

LaneKind = Literal["m", "r"]
"""Messages, or ranges to be sent again."""


class Lane(NamedTuple):
    """One dense sequence of ids."""

    number: int
    topic: str
    """As its tables spell it."""
    part: int
    kind: LaneKind
    priority: Priority

    @property
    def table(self) -> str:
        return table_name("msg" if self.kind == "m" else "resend", self.topic, self.part, self.priority)

    def physical_offset(self, message_id: int) -> PhysicalOffset:
        """What stands for a physical offset here: the lane and the id in one number."""
        return physical_offset_of(self.number, message_id)


def physical_offset_of(lane: int, message_id: int) -> PhysicalOffset:
    return PhysicalOffset(lane << _ID_BITS | message_id)


def split_physical_offset(place: int) -> tuple[int, int]:
    return place >> _ID_BITS, place & ((1 << _ID_BITS) - 1)


def is_internal_topic(topic: str) -> bool:
    """Whether the topic is one of the platform's own."""
    return is_system_topic(topic) or topic.startswith(_OF_GROUPS)


def table_suffix(topic: str) -> str:
    """How a topic's tables spell its name; `IllegalName` if it cannot have tables."""
    if is_internal_topic(topic):
        return "$" + sha256(topic.encode()).hexdigest()[:16]
    if len(topic) > TOPIC_NAME_CHARS_MAX:
        raise IllegalName(
            "topic", topic, f"it has {len(topic)} characters, {TOPIC_NAME_CHARS_MAX} are allowed on a SQL store"
        )
    if not _LEGAL.fullmatch(topic):
        rule = "on a SQL store use lower-case letters, digits, '.', '_', '-' or '|', and start with a letter or digit"
        raise IllegalName("topic", topic, rule)
    return topic


def table_name(prefix: str, topic: str, part: int = 0, priority: Priority | None = None) -> str:
    """The name of one of a topic's tables: `msg_high_orders`, `offset_orders$1`."""
    level = f"_{priority.word}" if priority is not None else ""
    return f"{prefix}{level}_{topic}" + (f"${part}" if part else "")
