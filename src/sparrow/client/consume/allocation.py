"""Allocation of a topic's queues to the members of a group.

Every member computes it alone, from the same sorted queues and the same sorted client ids. The result must equal that
of RocketMQ's Java client: members of both kinds share groups, and where they disagree, a queue is read twice or not at
all. A client that is not among the ids gets no queue, because the other members do not count it yet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import md5
from types import MappingProxyType

from sparrow.client.consume.machine_rooms import room_of_broker, room_of_client
from sparrow.model.queue import QueueRef

AllocationStrategy = Callable[[str, str, Sequence[QueueRef], Sequence[str]], list[QueueRef]]
"""Maps (group, own client id, sorted queues, sorted client ids) to own queues."""


def averagely(group: str, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
    """Allocate neighbouring queues to each client; the first clients get one more if the numbers do not divide."""
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    each, left = divmod(len(queues), len(client_ids))
    start = index * each + min(index, left)
    return list(queues[start : start + each + (index < left)])


def averagely_by_circle(
    group: str, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]
) -> list[QueueRef]:
    """Allocate queues one by one in turn."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def consistent_hash(virtual_nodes: int = 10) -> AllocationStrategy:
    """Return a strategy that puts each client on several points of a hash ring; a queue goes to the next point.

    When a client leaves, only its own queues move. All members must have the same `virtual_nodes`.
    """
    assert virtual_nodes > 0

    def allocate(group: str, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
        if client_id not in client_ids:
            return []
        # If two clients hash to the same point, the later one wins, as in Java's map.
        owners = {_ring_point(f"{owner}-{node}"): owner for owner in client_ids for node in range(virtual_nodes)}
        points = sorted(owners)
        return [
            queue
            for queue in queues
            if owners[points[bisect_left(points, _ring_point(_text_of(queue))) % len(points)]] == client_id
        ]

    return allocate


def by_config(mine: Collection[QueueRef]) -> AllocationStrategy:
    """Return a strategy that allocates configured queues, if they exist.

    The operator must make sure that every queue is read by one member.
    """
    chosen = frozenset(mine)

    def allocate(group: str, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
        return [queue for queue in queues if queue in chosen] if client_id in client_ids else []

    return allocate


def by_machine_room(rooms: Collection[str]) -> AllocationStrategy:
    """Return a strategy for brokers named `room@name`: the members share only the queues in these rooms.

    If the numbers do not divide, each of the first members gets one of the remaining queues at the end.
    """
    near = frozenset([rooms] if isinstance(rooms, str) else rooms)

    def allocate(group: str, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
        if client_id not in client_ids:
            return []
        in_rooms = [queue for queue in queues if room_of_broker(queue.broker_name) in near]
        index = client_ids.index(client_id)
        each, left = divmod(len(in_rooms), len(client_ids))
        run = in_rooms[index * each : (index + 1) * each]
        return [*run, in_rooms[each * len(client_ids) + index]] if index < left else run

    return allocate


def machine_room_nearby(
    within: AllocationStrategy = averagely, *, room_of_member: Callable[[str], str | None] = room_of_client
) -> AllocationStrategy:
    """Return a strategy for brokers named `room@name`: members share the queues of their own room by `within`.

    Queues of rooms without a member, and of brokers without a room, are shared by all members. A member is in the room
    that `room_of_member` returns for its client id, by default that of its `instance_name`, `room@name`. A member
    without a room gets only such shared queues.
    """

    def allocate(group: str, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
        if client_id not in client_ids:
            return []
        members: dict[str | None, list[str]] = {}
        for member in client_ids:
            members.setdefault(room_of_member(member), []).append(member)
        in_rooms: dict[str | None, list[QueueRef]] = {}
        for queue in queues:
            in_rooms.setdefault(room_of_broker(queue.broker_name), []).append(queue)
        own_room = room_of_member(client_id)
        mine: list[QueueRef] = []
        for room, some in in_rooms.items():
            if room is not None and room == own_room:
                mine += within(group, client_id, some, members[room])
            elif room is None or room not in members:
                mine += within(group, client_id, some, client_ids)
        return mine

    return allocate


STRATEGIES_BY_NAME: Mapping[str, AllocationStrategy] = MappingProxyType(
    {"AVG": averagely, "AVG_BY_CIRCLE": averagely_by_circle, "CONSISTENT_HASH": consistent_hash()}
)
"""Strategies without arguments, by RocketMQ's names."""


def _ring_point(key: str) -> int:
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def _text_of(queue: QueueRef) -> str:
    """Return the text of Java's `MessageQueue.toString`, which is what the consistent hash is computed from."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
