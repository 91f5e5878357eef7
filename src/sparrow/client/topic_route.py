"""The route of a topic: its queues and the addresses of its brokers.

1. `write_queues` are in the order in which Java's client lists them, by broker and queue id or as the order of the
   topic (`orderTopicConf`) says, so that a hash of a key selects the same queue in both clients.
2. A producer needs a master; a consumer also reads from slaves.
3. Two routes are equal if a client sees no difference between them.
4. In a topic with priority lanes, each write queue has three read queues, one for each priority.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from sparrow.model.errors import ProtocolError
from sparrow.model.priority import LANES_SYS_FLAG, Priority, priority_of_queue
from sparrow.model.protocol import MASTER_BROKER_ID, PERM_READ, PERM_WRITE
from sparrow.model.queue import QueueRef
from sparrow.wire.bodies import QueueData, RouteData

QUEUES_PER_BROKER_MAX = 65_536
"""Limit of queues of one topic on one broker; a route with more is refused as invalid."""


class TopicRoute(msgspec.Struct, frozen=True):
    """Where the queues of a topic are."""

    topic: str
    write_queues: tuple[QueueRef, ...]
    read_queues: tuple[QueueRef, ...]
    addresses: dict[str, dict[int, str]]
    """Broker name to broker id to `host:port`. Id 0 is the master."""
    masters: dict[str, str]
    """Broker name to the address of the master; a broker without a master is missing."""
    lane_brokers: frozenset[str] = frozenset()
    """Names of the brokers on which the topic has priority lanes."""

    @classmethod
    def of(cls, topic: str, data: RouteData) -> TopicRoute:
        """Return the route of an existing topic from a name server's response."""
        addresses: dict[str, dict[int, str]] = {}
        for broker in data.broker_datas:
            addresses.setdefault(broker.broker_name, {}).update(broker.broker_addrs)
        masters = {
            name: members[MASTER_BROKER_ID] for name, members in addresses.items() if MASTER_BROKER_ID in members
        }
        if data.order_topic_conf:
            # Exactly these queues in this order, even without a master: a send to an ordered topic must fail rather
            # than use another queue. Consumers ignore the order.
            writes = list(_ordered(topic, data.order_topic_conf))
        else:
            writes = sorted(
                queue
                for some in data.queue_datas
                if some.perm & PERM_WRITE and some.broker_name in masters
                for queue in _queues(topic, some.broker_name, some.write_queue_nums)
            )
        reads = sorted(
            queue
            for some in data.queue_datas
            if some.perm & PERM_READ
            for queue in _queues(topic, some.broker_name, some.read_queue_nums)
        )
        lane_brokers = frozenset(some.broker_name for some in data.queue_datas if some.topic_sys_flag & LANES_SYS_FLAG)
        return cls(topic, tuple(dict.fromkeys(writes)), tuple(dict.fromkeys(reads)), addresses, masters, lane_brokers)

    @classmethod
    def inherited(cls, topic: str, template: RouteData, queues: int) -> TopicRoute:
        """Return the route of a topic that the first message will create, from that of the template topic (TBW102).

        The broker creates the topic with the same number of queues, so messages sent now find their queues.
        """
        fewer = [_narrowed(some, queues) for some in template.queue_datas]
        return cls.of(topic, msgspec.structs.replace(template, queue_datas=fewer, order_topic_conf=None))

    def address_of(self, broker_name: str, broker_id: int = MASTER_BROKER_ID) -> str | None:
        """Return the address of that member, or of the one with the lowest id if it is gone.

        None: the broker is unknown.
        """
        members = self.addresses.get(broker_name)
        if not members:
            return None
        return members.get(broker_id) or members[min(members)]

    def lane_of(self, queue: QueueRef) -> Priority | None:
        """Return the priority of a read queue; None without lanes."""
        return priority_of_queue(queue.queue_id) if queue.broker_name in self.lane_brokers else None


def _queues(topic: str, broker_name: str, count: int) -> Iterator[QueueRef]:
    if count > QUEUES_PER_BROKER_MAX:
        raise ProtocolError(
            f"a route gives {topic!r} {count} queues on {broker_name!r}; the limit is {QUEUES_PER_BROKER_MAX}"
        )
    return (QueueRef(topic, broker_name, number) for number in range(count))


def _ordered(topic: str, conf: str) -> Iterator[QueueRef]:
    """Parse `broker-a:4;broker-b:4`."""
    for part in filter(None, conf.split(";")):
        broker_name, colon, count = part.partition(":")
        if not colon or not count.isascii() or not count.isdigit():
            raise ProtocolError(f"the order of topic {topic!r} is not valid: {conf!r}")
        yield from _queues(topic, broker_name, int(count))


def _narrowed(some: QueueData, queues: int) -> QueueData:
    count = min(queues, some.read_queue_nums)
    return msgspec.structs.replace(some, read_queue_nums=count, write_queue_nums=count)
