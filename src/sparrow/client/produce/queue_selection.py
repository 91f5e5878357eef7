"""Queue selectors: functions that choose the queue of a message.

A selector gets the queues of a route, in the order of the route and never empty, and the message.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from itertools import count

from sparrow.client.consume.machine_rooms import room_of_broker
from sparrow.model.message import AnyMessage
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.model.queue import QueueRef
from sparrow.wire.hashes import java_hash

QueueSelector = Callable[[Sequence[QueueRef], AnyMessage], QueueRef]
"""Chooses one of the queues for a message."""


REMEMBERED_TOPICS_MAX = 4096
"""Limit of topics whose position is remembered; beyond it all start anew, which is harmless."""


def round_robin(*, start: int | None = None) -> QueueSelector:
    """Return a selector that uses every queue in turn.

    It starts at random, or all restarted producers would begin with the same queue.
    """
    # One counter for each topic: with a common one, a sender that alternates between two topics would use only
    # every second queue of each.
    counters: dict[str, count[int]] = {}

    def select(queues: Sequence[QueueRef], message: AnyMessage) -> QueueRef:
        counter = counters.get(message.topic)
        if counter is None:
            if len(counters) >= REMEMBERED_TOPICS_MAX:
                counters.clear()
            counter = counters.setdefault(message.topic, count(random.getrandbits(31) if start is None else start))
        return queues[next(counter) % len(queues)]

    return select


def random_choice() -> QueueSelector:
    """Return a selector that picks any queue."""

    def select(queues: Sequence[QueueRef], message: AnyMessage) -> QueueRef:
        return random.choice(queues)

    return select


def by_hash(key: str) -> QueueSelector:
    """Return a selector that picks the same queue for the same key, as Java's `SelectMessageQueueByHash` does."""

    def select(queues: Sequence[QueueRef], message: AnyMessage) -> QueueRef:
        return _queue_of(key, queues)

    return select


def by_sharding_key() -> QueueSelector:
    """Return a selector that picks the queue by the sharding key of the message.

    Messages without one use all queues in turn.
    """
    without_key = round_robin()

    def select(queues: Sequence[QueueRef], message: AnyMessage) -> QueueRef:
        key = message.properties.get(PROPERTY_SHARDING_KEY)
        return _queue_of(key, queues) if key is not None else without_key(queues, message)

    return select


def in_machine_room(rooms: Collection[str], within: QueueSelector | None = None) -> QueueSelector:
    """Return a selector that sends to brokers named `room@name` in these rooms, and to any others if there are none.

    `within` selects among the queues of the rooms, by default the queue of the sharding key.
    """
    near, within = frozenset([rooms] if isinstance(rooms, str) else rooms), within or by_sharding_key()
    known: dict[str, tuple[Sequence[QueueRef], list[QueueRef]]] = {}
    """The queues of each topic's route, and those of the rooms among them."""

    def select(queues: Sequence[QueueRef], message: AnyMessage) -> QueueRef:
        of_route, in_rooms = known.get(message.topic, ((), []))
        if of_route is not queues:  # a new route
            if len(known) >= REMEMBERED_TOPICS_MAX:
                known.clear()
            in_rooms = [queue for queue in queues if room_of_broker(queue.broker_name) in near]
            known[message.topic] = queues, in_rooms
        return within(in_rooms or queues, message)

    return select


def _queue_of(key: str, queues: Sequence[QueueRef]) -> QueueRef:
    # Java takes the absolute value of the remainder, which has the sign of the hash. The result is the same, also
    # for -2^31.
    return queues[abs(java_hash(key)) % len(queues)]
