"""Which queue a producer sends a message to.

A selector gets the queues of a route, in the route's order and never none, and the message.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count

from sparrow.model.message import AnyMessage
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.model.queue import QueueRef
from sparrow.wire.hashes import java_hash

QueueSelector = Callable[[Sequence[QueueRef], AnyMessage], QueueRef]


REMEMBERED_TOPICS_MAX = 4096
"""Topics whose turn is remembered; beyond that all start anew, which costs nothing but a turn."""


def round_robin(*, start: int | None = None) -> QueueSelector:
    """Every queue in turn. Starts at random, or all producers of a restarted fleet would begin with the same queue."""
    # A turn for each topic: with one for all, a sender that alternates between two topics would
    # use only every second queue of each.
    turns: dict[str, count[int]] = {}

    def select(queues: Sequence[QueueRef], message: AnyMessage) -> QueueRef:
        turn = turns.get(message.topic)
        if turn is None:
            if len(turns) >= REMEMBERED_TOPICS_MAX:
                turns.clear()
            turn = turns.setdefault(message.topic, count(random.getrandbits(31) if start is None else start))
        return queues[next(turn) % len(queues)]

    return select


def random_choice() -> QueueSelector:
    """Any queue."""

    def select(queues: Sequence[QueueRef], message: AnyMessage) -> QueueRef:
        return random.choice(queues)

    return select


def by_hash(key: str) -> QueueSelector:
    """The same queue for the same key while the queues stay. Java's SelectMessageQueueByHash picks the same."""

    def select(queues: Sequence[QueueRef], message: AnyMessage) -> QueueRef:
        return _queue_of(key, queues)

    return select


def by_sharding_key() -> QueueSelector:
    """The queue of the message's sharding key; messages without one ask for no order and take turns."""
    otherwise = round_robin()

    def select(queues: Sequence[QueueRef], message: AnyMessage) -> QueueRef:
        key = message.properties.get(PROPERTY_SHARDING_KEY)
        return _queue_of(key, queues) if key is not None else otherwise(queues, message)

    return select


def _queue_of(key: str, queues: Sequence[QueueRef]) -> QueueRef:
    # Java takes the absolute value after its remainder, which has the sign of the hash: the same number as here,
    # for -2^31 too.
    return queues[abs(java_hash(key)) % len(queues)]
