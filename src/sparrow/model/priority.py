"""Priorities of messages, and the priority lanes of a topic.

A topic with priority lanes has three read queues (high, middle, low) for each write queue:

    read queue id = write queue id * 3 + priority

so that write queues can be added without moving stored messages.
"""

from __future__ import annotations

from enum import IntEnum

from sparrow.model.errors import IllegalMessage

LANES_SYS_FLAG = 16
"""The bit of a topic's `sys_flag` that marks a topic with lanes; RocketMQ uses 1 and 2."""


class Priority(IntEnum):
    """The priority of a message, in the order of delivery."""

    HIGH = 0
    MIDDLE = 1
    LOW = 2

    @property
    def label(self) -> str:
        """The value of the message property: high, middle or low."""
        return self.name.lower()


LANE_COUNT = len(Priority)
_BY_LABEL = {priority.label: priority for priority in Priority}


def parse_priority(label: str | None, number: str | None = None) -> Priority:
    """Return the priority for the values of Sparrow's message property and of RocketMQ's; without both it is middle.

    RocketMQ's numbers have as many levels as the topic has queues, and a higher one is more urgent; here 0 is low, 1 is
    middle and the others are high. As in RocketMQ, any other text has no effect.
    """
    if label is None:
        if number is None or not number.isdecimal():
            return Priority.MIDDLE
        return Priority(max(Priority.HIGH, Priority.LOW - int(number[:9])))  # Java's numbers are no longer
    found = _BY_LABEL.get(label)
    if found is None:
        raise IllegalMessage(f"its priority is {label!r}: use high, middle or low")
    return found


def priority_of_queue(queue_id: int) -> Priority:
    """Return the priority of a read queue."""
    return Priority(queue_id % LANE_COUNT)


def write_queue_id(queue_id: int) -> int:
    """Return the write queue of a read queue."""
    return queue_id // LANE_COUNT


def read_queue_id(write_queue_id: int, priority: Priority) -> int:
    """Return the read queue of a write queue for a priority."""
    return write_queue_id * LANE_COUNT + priority
