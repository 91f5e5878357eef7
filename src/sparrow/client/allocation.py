"""Which queues of a topic each member of a group reads.

Every member works this out alone, from the same sorted queues and the same sorted client ids. So the result must be
that of RocketMQ's Java client to the queue: members of both kinds share groups, and where they disagree, a queue is
read twice or by nobody. A client that is not among the ids gets nothing: the group does not count on it yet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import md5
from types import MappingProxyType

from sparrow.model.queue import QueueRef

AllocationStrategy = Callable[[str, str, Sequence[QueueRef], Sequence[str]], list[QueueRef]]
"""(group, own client id, sorted queues, sorted client ids) to own queues."""


def averagely(group: str, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
    """A run of neighbouring queues each; the first clients get one more when it does not come out even."""
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    each, left = divmod(len(queues), len(client_ids))
    start = index * each + min(index, left)
    return list(queues[start : start + each + (index < left)])


def averagely_by_circle(
    group: str, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]
) -> list[QueueRef]:
    """Dealt out one by one, like cards."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def consistent_hash(virtual_nodes: int = 10) -> AllocationStrategy:
    """Each client has places on a ring, and a queue goes to the next one: who leaves moves no queues but its own.

    All members must have the same `virtual_nodes`.
    """
    assert virtual_nodes > 0

    def allocate(group: str, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
        if client_id not in client_ids:
            return []
        # On a place that two clients hash to, the later one stays, as in Java's map.
        owners = {_place(f"{owner}-{node}"): owner for owner in client_ids for node in range(virtual_nodes)}
        places = sorted(owners)
        return [
            queue
            for queue in queues
            if owners[places[bisect_left(places, _place(_text_of(queue))) % len(places)]] == client_id
        ]

    return allocate


def by_config(mine: Collection[QueueRef]) -> AllocationStrategy:
    """The queues written in the configuration, as far as they exist. The operator sees to it that all are read once."""
    chosen = frozenset(mine)

    def allocate(group: str, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
        return [queue for queue in queues if queue in chosen] if client_id in client_ids else []

    return allocate


def by_machine_room(rooms: Collection[str]) -> AllocationStrategy:
    """Only queues of brokers named `room@name` in one of these rooms. What is left over goes round once more."""
    near = frozenset(rooms)

    def allocate(group: str, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
        if client_id not in client_ids:
            return []
        in_rooms = [queue for queue in queues if _room_of(queue.broker_name) in near]
        index = client_ids.index(client_id)
        each, left = divmod(len(in_rooms), len(client_ids))
        run = in_rooms[index * each : (index + 1) * each]
        return [*run, in_rooms[each * len(client_ids) + index]] if index < left else run

    return allocate


STRATEGIES_BY_NAME: Mapping[str, AllocationStrategy] = MappingProxyType(
    {"AVG": averagely, "AVG_BY_CIRCLE": averagely_by_circle, "CONSISTENT_HASH": consistent_hash()}
)
"""Strategies by RocketMQ's names: those that need nothing but a name."""


def _place(key: str) -> int:
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def _text_of(queue: QueueRef) -> str:
    """What Java's `MessageQueue.toString` says: the consistent hash is one of this text."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _room_of(broker_name: str) -> str | None:
    # Java's split drops empty parts at the end.
    parts = broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None
