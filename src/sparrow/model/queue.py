"""Where a message lies: its queue, and its two offsets."""

from __future__ import annotations

from typing import NamedTuple, NewType

import msgspec

PhysicalOffset = NewType("PhysicalOffset", int)
"""Bytes from the start of the commit log to the first byte of a record."""

QueueOffset = NewType("QueueOffset", int)
"""Place in a queue, counted from 0 without holes."""


class Queue(NamedTuple):
    """One queue of a topic in one store. (Which broker holds it is a matter of routes.)"""

    topic: str
    id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.id}"


class QueueBounds(NamedTuple):
    """What a queue holds: `first` is the oldest offset still there, `end` the next one to be given out."""

    first: QueueOffset
    end: QueueOffset


class QueueRef(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """One queue of a topic on one broker (RocketMQ's `MessageQueue`).

    It sorts by topic, then broker name, then queue id: the order in which every client allocates queues.
    """

    topic: str
    broker_name: str
    queue_id: int
