"""Where a topic lives, as producers and consumers use it.

1. `write_queues` are in the order in which Java lists them, so that a hash of a key finds the same queue from either
   client: by broker and number, or as the order of the topic (`orderTopicConf`) says.
2. A producer needs a master; a consumer reads on without one.
3. Two routes are equal when nothing changed for a client.
4. In a topic with lanes, senders know only its parts; readers know three queues of each, and which of them is which.
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
"""Queues of one topic on one broker; a route that claims more is not believed."""


class TopicRoute(msgspec.Struct, frozen=True):
    topic: str
    write_queues: tuple[QueueRef, ...]
    read_queues: tuple[QueueRef, ...]
    addresses: dict[str, dict[int, str]]
    """Broker name to member number to `host:port`. Member 0 is the master."""
    masters: dict[str, str]
    """Broker name to the address that takes writes; a broker without a master is missing."""
    lane_brokers: frozenset[str] = frozenset()
    """Names of the brokers on which the topic has lanes."""

    @classmethod
    def of(cls, topic: str, data: RouteData) -> TopicRoute:
        """The route of a topic that exists."""
        addresses: dict[str, dict[int, str]] = {}
        for broker in data.broker_datas:
            addresses.setdefault(broker.broker_name, {}).update(broker.broker_addrs)
        masters = {
            name: members[MASTER_BROKER_ID] for name, members in addresses.items() if MASTER_BROKER_ID in members
        }
        if data.order_topic_conf:
            # Exactly these, in this order and whether or not a master is there: an ordered topic would rather
            # fail than send a key to another queue. Consumers take no notice of it.
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
        """The route of a topic that the first message will create, after the template's (TBW102).

        The broker makes the topic with the same number of queues, so whatever is sent now finds its queue.
        """
        fewer = [_narrowed(some, queues) for some in template.queue_datas]
        return cls.of(topic, msgspec.structs.replace(template, queue_datas=fewer, order_topic_conf=None))

    def address_of(self, broker_name: str, broker_id: int = MASTER_BROKER_ID) -> str | None:
        """Where to read: that member, or the one with the lowest number if it is gone. None: no such broker."""
        members = self.addresses.get(broker_name)
        if not members:
            return None
        return members.get(broker_id) or members[min(members)]

    def lane_of(self, queue: QueueRef) -> Priority | None:
        """The priority of what lies in a queue for readers. None: no lanes there."""
        return priority_of_queue(queue.queue_id) if queue.broker_name in self.lane_brokers else None


def _queues(topic: str, broker_name: str, count: int) -> Iterator[QueueRef]:
    if count > QUEUES_PER_BROKER_MAX:
        raise ProtocolError(
            f"a route gives {topic!r} {count} queues on {broker_name!r}; {QUEUES_PER_BROKER_MAX} are believed"
        )
    return (QueueRef(topic, broker_name, number) for number in range(count))


def _ordered(topic: str, conf: str) -> Iterator[QueueRef]:
    """`broker-a:4;broker-b:4`"""
    for part in filter(None, conf.split(";")):
        broker_name, colon, count = part.partition(":")
        if not colon or not count.isascii() or not count.isdigit():
            raise ProtocolError(f"the order of topic {topic!r} makes no sense: {conf!r}")
        yield from _queues(topic, broker_name, int(count))


def _narrowed(some: QueueData, queues: int) -> QueueData:
    count = min(queues, some.read_queue_nums)
    return msgspec.structs.replace(some, read_queue_nums=count, write_queue_nums=count)
