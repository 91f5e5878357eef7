"""Which brokers hold a topic: soft state, made of what brokers say about themselves. Time is an argument.

1. Topics belong to a broker group. They stay as long as one member does, even if a registration leaves one out.
2. A member goes when it is unregistered, falls silent, or loses the connection it last spoke over. That a connection it
   has left behind closes later does not matter.
3. A route costs what its brokers cost, and nothing as long as nothing changed: the encoded answer is kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

import msgspec

from sparrow.model.errors import BadRequest
from sparrow.model.protocol import BROKER_SYNC_TOPIC_PREFIX, MASTER_BROKER_ID, PERM_READ, PERM_WRITE
from sparrow.nameserver.brokers import BrokerGroup, BrokerMember, BrokerTable
from sparrow.wire.bodies import ClusterTable, DataVersion, QueueData, RouteData, TopicConfig, TopicTable, write


class RegistrationResult(NamedTuple):
    """What a slave is told: where its master is. Nothing, for the master itself."""

    master_address: str | None = None
    ha_address: str | None = None


class RemovedBroker(NamedTuple):
    """A member that is no longer in any route."""

    broker_name: str
    broker_id: int
    address: str


class RouteTable:
    """Everything a name server knows of brokers and topics."""

    def __init__(self) -> None:
        self._brokers = BrokerTable()
        self._queues: dict[str, dict[str, QueueData]] = {}
        """Topic to broker name to its queues. A topic is here exactly if it is in its groups' `topics`."""
        self._encoded: dict[str, tuple[str | None, bytes]] = {}
        """Topic to the order it was asked with, and the answer."""

    # -- brokers come and go ------------------------------------------------------------------------------------------

    def register(
        self,
        *,
        broker_name: str,
        broker_id: int,
        address: str,
        ha_address: str,
        cluster: str,
        topics: TopicTable,
        acting_master: bool | None,
        heartbeat_timeout_ms: int,
        connection: Hashable,
        now_ms: int,
    ) -> RegistrationResult:
        """Take a member and its topics in. `acting_master` is None for brokers before 5.0, which do not know of it."""
        known = self._brokers.get(broker_name)
        shown = known.data() if known is not None else None
        previous = known.members.get(broker_id) if known is not None else None
        version, configs = topics.data_version, topics.topic_config_table.values()
        if previous is None and len(configs) == 1:
            # 5.x sends single topics as they change. Of a broker never heard of before, one would pass for all it has.
            problem = "has one topic only, of a broker that is not known yet: register all topics first"
            raise BadRequest("Registration", "topicConfigTable", problem)
        has_moved = previous is not None and previous.address != address
        if previous is not None and has_moved and _state(previous.version) > _state(version):
            return RegistrationResult()  # another has taken this number since; who lost it is not refused, only ignored
        member = BrokerMember(broker_id, address, ha_address, version, connection, now_ms, heartbeat_timeout_ms)
        group = self._brokers.put(broker_name, cluster, member)
        group.has_acting_master = bool(acting_master)
        # A slave that became master comes back under another number: one address must not be there twice.
        for other in [other for other in group.members.values() if other.address == address and other is not member]:
            self._brokers.remove(group, other)
        if group.data() != shown:
            self._forget(group.topics)
        # The master knows the topics; without one, the first of the slaves does. A 4.9 slave is never asked.
        if broker_id == MASTER_BROKER_ID or (acting_master is not None and broker_id == min(group.members)):
            is_news = previous is None or has_moved or not is_same_version(previous.version, version)
            self._take_topics(group, configs, is_news=is_news)
        master = group.members.get(MASTER_BROKER_ID)
        return (
            RegistrationResult()
            if master is None or master is member
            else RegistrationResult(master.address, master.ha_address)
        )

    def _take_topics(self, group: BrokerGroup, configs: Iterable[TopicConfig], *, is_news: bool) -> None:
        """Without news only what is missing is added: write permissions wiped by hand stay wiped."""
        for config in configs:
            if is_news or config.topic_name not in group.topics:
                queues = QueueData(
                    broker_name=group.name,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                    perm=config.perm,
                    topic_sys_flag=config.topic_sys_flag,
                )
                self._set_queues(group, config.topic_name, queues)

    def heard(self, broker_name: str, address: str, *, connection: Hashable, now_ms: int) -> DataVersion | None:
        """A sign of life. The version of the broker's topics that is known here; None: it must register first."""
        group = self._brokers.get(broker_name)
        member = group.at(address) if group is not None else None
        if group is None or member is None:
            return None
        self._brokers.heard(group, member, connection=connection, now_ms=now_ms)
        return member.version

    def unregister(self, broker_name: str, address: str) -> list[RemovedBroker]:
        group = self._brokers.get(broker_name)
        member = group.at(address) if group is not None else None
        return self._drop([(group, member)]) if group is not None and member is not None else []

    def connection_closed(self, connection: Hashable) -> list[RemovedBroker]:
        """Those who last spoke over it are gone."""
        return self._drop(self._brokers.heard_over(connection))

    def expire(self, now_ms: int) -> list[RemovedBroker]:
        """Those who have said nothing for longer than they may are gone."""
        return self._drop(self._brokers.silent(now_ms))

    def _drop(self, leaving: list[tuple[BrokerGroup, BrokerMember]]) -> list[RemovedBroker]:
        for group, member in leaving:
            self._forget(group.topics)
            self._brokers.remove(group, member)
            if not group.members:
                for topic in list(group.topics):
                    self._remove_queues(group, topic)
        return [RemovedBroker(group.name, member.number, member.address) for group, member in leaving]

    # -- topics come and go -------------------------------------------------------------------------------------------

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> bool:
        """Add a topic by hand: all of it, or nothing if one of its brokers is not known."""
        wanted = list(queues)
        if not all(some.broker_name in self._brokers for some in wanted):
            return False
        for some in wanted:
            self._set_queues(self._brokers[some.broker_name], topic, some)
        return True

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Everywhere, or in one cluster. A broker that still has it brings it back when it registers next."""
        for name in list(self._queues.get(topic, ())):
            group = self._brokers[name]
            if cluster is None or group.cluster == cluster:
                self._remove_queues(group, topic)

    def forbid_writes(self, broker_name: str) -> int:
        """Until its topics change. How many topics the broker has."""
        return self._set_permission(broker_name, keep=~PERM_WRITE, add=0)

    def allow_writes(self, broker_name: str) -> int:
        return self._set_permission(broker_name, keep=0, add=PERM_READ | PERM_WRITE)

    def _set_permission(self, broker_name: str, *, keep: int, add: int) -> int:
        group = self._brokers.get(broker_name)
        if group is None:
            return 0
        for topic in group.topics:
            queues = self._queues[topic][broker_name]
            self._set_queues(group, topic, msgspec.structs.replace(queues, perm=queues.perm & keep | add))
        return len(group.topics)

    def _set_queues(self, group: BrokerGroup, topic: str, queues: QueueData) -> None:
        by_broker = self._queues.setdefault(topic, {})
        if by_broker.get(group.name) != queues:
            by_broker[group.name] = queues
            group.topics.add(topic)
            self._encoded.pop(topic, None)

    def _remove_queues(self, group: BrokerGroup, topic: str) -> None:
        by_broker = self._queues[topic]
        del by_broker[group.name]
        if not by_broker:
            del self._queues[topic]
        group.topics.discard(topic)
        self._encoded.pop(topic, None)

    def _forget(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._encoded.pop(topic, None)

    # -- questions ----------------------------------------------------------------------------------------------------

    def route(self, topic: str, order: str | None = None) -> RouteData | None:
        """Who holds the topic, or None if nobody does. `order` is handed on to publishers of an ordered topic."""
        by_broker = self._queues.get(topic)
        if by_broker is None:
            return None
        shows_acting = not topic.startswith(BROKER_SYNC_TOPIC_PREFIX)
        brokers, queues = [], []
        for name in sorted(by_broker):
            group, some = self._brokers[name], by_broker[name]
            if shows_acting and group.is_led_by_slave:
                some = msgspec.structs.replace(some, perm=some.perm & ~PERM_WRITE)  # a slave can be read from, no more
            brokers.append(group.data(shows_acting_master=shows_acting))
            queues.append(some)
        return RouteData(broker_datas=brokers, queue_datas=queues, order_topic_conf=order)

    def encoded_route(self, topic: str, order: str | None = None) -> bytes | None:
        """The same as it goes out."""
        kept = self._encoded.get(topic)
        if kept is not None and kept[0] == order:
            return kept[1]
        route = self.route(topic, order)
        if route is None:
            return None
        body = write(route)
        self._encoded[topic] = order, body
        return body

    def topics(self) -> list[str]:
        return sorted(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        return sorted({topic for group in self._brokers.of_cluster(cluster) for topic in group.topics})

    def clusters(self) -> ClusterTable:
        groups = {group.name: group.data() for group in self._brokers}
        return ClusterTable(dict(sorted(groups.items())), self._brokers.clusters())

    def member_addresses(self, broker_name: str) -> dict[int, str]:
        """The members of a group by their real numbers; none if it is not known."""
        group = self._brokers.get(broker_name)
        return group.data().broker_addrs if group is not None else {}


def is_same_version(version: DataVersion, other: DataVersion) -> bool:
    """Whether both stand for one state of a broker's topics."""
    if (version.counter, version.timestamp) != (other.counter, other.timestamp):
        return False
    return _state(version) == _state(other)


def _state(version: DataVersion) -> int:
    """How often mastership has changed. 4.9 does not say, 5.x starts at 0."""
    return version.state_version or 0
