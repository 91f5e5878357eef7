"""Priorities: the lanes of a topic, and which queue is which lane.

A topic with lanes has three queues for readers (high, middle, low) for each queue that senders know, its *part*:

    queue id for readers = part * 3 + priority

so that a topic may be given more parts without moving what it holds.
"""

from __future__ import annotations

from enum import IntEnum

from sparrow.model.errors import IllegalMessage

LANES_SYS_FLAG = 16
"""The bit of a topic's `sys_flag` that says it has lanes; RocketMQ uses 1 and 2."""


class Priority(IntEnum):
    """In the order in which they are taken."""

    HIGH = 0
    MIDDLE = 1
    LOW = 2

    @property
    def label(self) -> str:
        return self.name.lower()


LANE_COUNT = len(Priority)
_BY_LABEL = {priority.label: priority for priority in Priority}


def parse_priority(word: str | None) -> Priority:
    """What a message's property says; a message that says nothing is in the middle."""
    if word is None:
        return Priority.MIDDLE
    found = _BY_LABEL.get(word)
    if found is None:
        raise IllegalMessage(f"its priority is {word!r}: say high, middle or low")
    return found


def priority_of_queue(queue_id: int) -> Priority:
    return Priority(queue_id % LANE_COUNT)


def write_queue_id(queue_id: int) -> int:
    return queue_id // LANE_COUNT


def read_queue_id(part: int, priority: Priority) -> int:
    return part * LANE_COUNT + priority
