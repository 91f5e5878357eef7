"""Priority lanes of a topic: its read queues, and which lane a message goes to. Pure functions.

A sender chooses a write queue, and the message's priority chooses the lane; together they determine the read queue.
That mapping never changes, so a topic has lanes from its creation or never, and write queues are only ever added.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sparrow.model.errors import IllegalMessage, Refused
from sparrow.model.priority import (
    LANE_COUNT,
    LANES_SYS_FLAG,
    Priority,
    parse_priority,
    priority_of_queue,
    read_queue_id,
    write_queue_id,
)
from sparrow.model.protocol import PROPERTY_PRIORITY, PROPERTY_PRIORITY_NUMBER
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.wire.batch import BatchMessage
from sparrow.wire.properties import property_value


def has_lanes(topic: Topic) -> bool:
    return bool(topic.sys_flag & LANES_SYS_FLAG)


def topic_with_lanes(wanted: Topic, known: Topic | None) -> Topic:
    """Return a topic with the read queues that its lanes need, or raise `Refused`. `known` is the topic before."""
    name, parts = wanted.name, wanted.write_queues
    if known is not None and has_lanes(known) != has_lanes(wanted):
        has, flag = (
            ("lanes", f"with {LANES_SYS_FLAG}") if has_lanes(known) else ("no lanes", f"without {LANES_SYS_FLAG}")
        )
        raise Refused(
            f"topic {name!r} has {has}, and that cannot change, because it determines the meaning of its "
            f"queues: send the request {flag} in its flags, or create another topic"
        )
    if not has_lanes(wanted):
        return wanted
    if wanted.read_queues not in (parts, parts * LANE_COUNT):
        raise Refused(
            f"topic {name!r} has lanes: {parts} write queues need {parts * LANE_COUNT} read queues, not "
            f"{wanted.read_queues}"
        )
    if known is not None and parts < known.write_queues:
        raise Refused(
            f"topic {name!r} has lanes and {known.write_queues} write queues: with {parts}, messages in "
            "the others would be unreadable"
        )
    # Tools send the same number for both by default.
    return msgspec.structs.replace(wanted, read_queues=parts * LANE_COUNT)


def stated_priority(properties: bytes) -> Priority | None:
    """Return the priority in a property string; None if it has none."""
    label = property_value(properties, PROPERTY_PRIORITY)
    number = property_value(properties, PROPERTY_PRIORITY_NUMBER)
    return None if label is None and number is None else parse_priority(label, number)


def lane_queue(part: Queue, properties: str) -> Queue:
    """Return the read queue of a message that was sent to a write queue."""
    priority = stated_priority(properties.encode()) if PROPERTY_PRIORITY in properties else None
    return Queue(part.topic, read_queue_id(part.id, Priority.MIDDLE if priority is None else priority))


def lane_queue_for_batch(queue: Queue, members: Iterable[BatchMessage]) -> Queue:
    """Return the read queue of a batch. `queue` is the one for messages without a priority."""
    otherwise = priority_of_queue(queue.id)
    stated = {stated_priority(member.properties) for member in members}
    priorities = {otherwise if priority is None else priority for priority in stated}
    if len(priorities) > 1:
        found = ", ".join(priority.label for priority in sorted(priorities))
        raise IllegalMessage(
            f"its messages have priorities {found}: a batch goes to one lane, so send one batch for each priority"
        )
    priority = priorities.pop() if priorities else otherwise
    return Queue(queue.topic, read_queue_id(write_queue_id(queue.id), priority))
