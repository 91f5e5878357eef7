"""Queues, and the two kinds of offsets."""

from __future__ import annotations

from typing import NamedTuple, NewType

import msgspec

PhysicalOffset = NewType("PhysicalOffset", int)
"""Bytes from the start of the commit log to the first byte of a record."""

QueueOffset = NewType("QueueOffset", int)
"""The position of a message in its queue, counted from 0 without gaps."""


class Queue(NamedTuple):
    """A queue of a topic in one store. `QueueRef` also names the broker."""

    topic: str
    id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.id}"


class QueueBounds(NamedTuple):
    """The messages in a queue: `first` is the oldest offset that is stored, `end` the next one to be assigned."""

    first: QueueOffset
    end: QueueOffset


class QueueRef(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """One queue of a topic on one broker (RocketMQ's `MessageQueue`).

    It sorts by topic, then broker name, then queue id: the order in which every client allocates queues.
    """

    topic: str
    broker_name: str
    queue_id: int
