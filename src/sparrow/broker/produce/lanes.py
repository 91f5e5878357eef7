"""Topics with lanes: how they are laid out, which lane a message goes to, and in which order lanes are taken.

1. A sender names a part of the topic, and its message says its priority; readers know the queue that both make. Which
   queue is what never changes, so lanes are there from the start or not at all, and parts only become more.
2. High is taken before middle, and middle before low. A lane that starves is owed its tenths of every batch, and has
   places kept for it. What it does not get (batches of one have no tenths, large messages leave no room) stays owed;
   when that is a whole batch, the lane is the first for once.

All of it pure.
"""

from __future__ import annotations

import msgspec

from sparrow.model.errors import IllegalMessage, Refused
from sparrow.model.priority import (
    LANE_COUNT,
    LANES_SYS_FLAG,
    parse_priority,
    priority_of_queue,
    read_queue_id,
    write_queue_id,
)
from sparrow.model.protocol import PROPERTY_PRIORITY
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.wire import batch
from sparrow.wire.properties import property_value


def has_lanes(topic: Topic) -> bool:
    return bool(topic.sys_flag & LANES_SYS_FLAG)


def topic_with_lanes(wanted: Topic, known: Topic | None) -> Topic:
    """A topic as it is to be, with the queues its lanes need; or `Refused`. `known`: as it is so far."""
    name, parts = wanted.name, wanted.write_queues
    if known is not None and has_lanes(known) != has_lanes(wanted):
        has, flag = (
            ("lanes", f"with {LANES_SYS_FLAG}") if has_lanes(known) else ("no lanes", f"without {LANES_SYS_FLAG}")
        )
        raise Refused(
            f"topic {name!r} has {has}, and that stays so, for it says which queue is what: change it {flag} in its "
            f"flags, or make another topic"
        )
    if not has_lanes(wanted):
        return wanted
    if wanted.read_queues not in (parts, parts * LANE_COUNT):
        raise Refused(
            f"topic {name!r} has lanes, so {parts} queues to write make {parts * LANE_COUNT} to read, "
            f"not {wanted.read_queues}"
        )
    if known is not None and parts < known.write_queues:
        raise Refused(
            f"topic {name!r} has lanes and {known.write_queues} queues to write: with {parts}, nobody could read what "
            f"lies in the others"
        )
    # Tools say the same number for both unless told otherwise.
    return msgspec.structs.replace(wanted, read_queues=parts * LANE_COUNT)


def lane_queue(part: Queue, properties: str) -> Queue:
    """The queue of a message sent to a part of a topic with lanes."""
    word = property_value(properties.encode(), PROPERTY_PRIORITY) if PROPERTY_PRIORITY in properties else None
    return Queue(part.topic, read_queue_id(part.id, parse_priority(word)))


def lane_queue_for_batch(queue: Queue, body: bytes | memoryview) -> Queue:
    """The queue of a batch, of which all go to one. `queue`: where those go that say nothing."""
    otherwise = priority_of_queue(queue.id)
    words = {property_value(member.properties, PROPERTY_PRIORITY) for member in batch.decode(body)}
    priorities = {otherwise if word is None else parse_priority(word) for word in words}
    if len(priorities) > 1:
        found = ", ".join(priority.label for priority in sorted(priorities))
        raise IllegalMessage(f"its messages have priorities {found}: a batch goes to one lane, make one for each")
    priority = priorities.pop() if priorities else otherwise
    return Queue(queue.topic, read_queue_id(write_queue_id(queue.id), priority))
