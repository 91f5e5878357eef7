"""The route table: which brokers hold a topic. Soft state, built from registrations; time is an argument.

1. Topics belong to a broker group. They stay while one member is registered, even if a registration omits them.
2. A member is removed when it unregisters, when it sends no heartbeat in time, or when the connection of its last
   request closes. Closing an older connection has no effect.
3. The encoded route of a topic is cached until one of its brokers changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple

import msgspec

from sparrow.model.errors import BadRequest
from sparrow.model.protocol import BROKER_SYNC_TOPIC_PREFIX, MASTER_BROKER_ID, PERM_READ, PERM_WRITE
from sparrow.nameserver.brokers import BrokerGroup, BrokerMember, BrokerTable
from sparrow.nameserver.name_conflicts import NameConflicts
from sparrow.wire.bodies import ClusterTable, DataVersion, QueueData, RouteData, TopicConfig, TopicTable, write


class RegistrationResult(NamedTuple):
    """The address of the master, for a slave; empty for the master itself."""

    master_address: str | None = None
    ha_address: str | None = None
    rival_address: str | None = None
    """Another broker that registers under the same name and id, if that has just become known."""


class RemovedBroker(NamedTuple):
    """A broker that was removed from all routes."""

    broker_name: str
    broker_id: int
    address: str


class RouteTable:
    """All registered brokers and their topics."""

    def __init__(self) -> None:
        self._brokers = BrokerTable()
        self.conflicts = NameConflicts()
        self._queues: dict[str, dict[str, QueueData]] = {}
        """Topic to broker name to queues. It holds exactly the topics in the `topics` of the groups."""
        self._encoded: dict[str, tuple[str | None, bytes]] = {}
        """Topic to the order configuration of the request and the encoded route."""

    # -- registration of brokers --------------------------------------------------------------------------------------

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
        """Add or update a member and its topics. `acting_master` is None for brokers before 5.0."""
        known = self._brokers.get(broker_name)
        shown = known.data() if known is not None else None
        previous = known.members.get(broker_id) if known is not None else None
        version, configs = topics.data_version, topics.topic_config_table.values()
        if previous is None and len(configs) == 1:
            # 5.x sends single topics when they change. From an unknown broker, one topic would count as all of them.
            problem = "has only one topic of an unknown broker: register all topics first"
            raise BadRequest("Registration", "topicConfigTable", problem)
        has_moved = previous is not None and previous.address != address
        if previous is not None and has_moved and _state(previous.version) > _state(version):
            return RegistrationResult()  # another broker has taken the id since; RocketMQ ignores the old one silently
        self.conflicts.forget(broker_name, address, except_id=broker_id)
        rival = None
        if previous is not None and has_moved:
            old = previous.address, previous.connection
            if self.conflicts.replace((broker_name, broker_id), old, (address, connection)):
                rival = previous.address
        member = BrokerMember(broker_id, address, ha_address, version, connection, now_ms, heartbeat_timeout_ms)
        group = self._brokers.put(broker_name, cluster, member)
        group.has_acting_master = bool(acting_master)
        # A slave that became master registers with another id; each address may be registered once.
        for other in [other for other in group.members.values() if other.address == address and other is not member]:
            self._brokers.remove(group, other)
        if group.data() != shown:
            self._invalidate(group.topics)
        # Topics are taken from the master; without one, from the first slave. Topics of a 4.9 slave are ignored.
        if broker_id == MASTER_BROKER_ID or (acting_master is not None and broker_id == min(group.members)):
            is_changed = previous is None or has_moved or not is_same_version(previous.version, version)
            self._update_topics(group, configs, is_changed=is_changed)
        master = group.members.get(MASTER_BROKER_ID)
        if master is None or master is member:
            return RegistrationResult(rival_address=rival)
        return RegistrationResult(master.address, master.ha_address, rival)

    def _update_topics(self, group: BrokerGroup, configs: Iterable[TopicConfig], *, is_changed: bool) -> None:
        """Without a change, add only missing topics: write permissions that a tool removed stay removed."""
        for config in configs:
            if is_changed or config.topic_name not in group.topics:
                queues = QueueData(
                    broker_name=group.name,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                    perm=config.perm,
                    topic_sys_flag=config.topic_sys_flag,
                )
                self._set_queues(group, config.topic_name, queues)

    def touch(self, broker_name: str, address: str, *, connection: Hashable, now_ms: int) -> DataVersion | None:
        """Record a heartbeat. Return the registered version of the topics, or None if the broker must register."""
        group = self._brokers.get(broker_name)
        member = group.member_at(address) if group is not None else None
        if group is None or member is None:
            return None
        self._brokers.touch(group, member, connection=connection, now_ms=now_ms)
        return member.version

    def unregister(self, broker_name: str, address: str) -> list[RemovedBroker]:
        self.conflicts.forget(broker_name, address)
        group = self._brokers.get(broker_name)
        member = group.member_at(address) if group is not None else None
        return self._remove([(group, member)]) if group is not None and member is not None else []

    def connection_closed(self, connection: Hashable) -> list[RemovedBroker]:
        """Remove the members whose last request came over this connection."""
        self.conflicts.connection_closed(connection)
        return self._remove(self._brokers.members_on(connection))

    def expire(self, now_ms: int) -> list[RemovedBroker]:
        """Remove the members whose heartbeat is overdue."""
        return self._remove(self._brokers.expired(now_ms))

    def _remove(self, leaving: list[tuple[BrokerGroup, BrokerMember]]) -> list[RemovedBroker]:
        for group, member in leaving:
            self._invalidate(group.topics)
            self._brokers.remove(group, member)
            if not group.members:
                for topic in list(group.topics):
                    self._remove_queues(group, topic)
        return [RemovedBroker(group.name, member.broker_id, member.address) for group, member in leaving]

    # -- changes of topics -------------------------------------------------------------------------------------------

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> bool:
        """Add a topic for a tool: on all its brokers, or on none if one of them is unknown."""
        queues = list(queues)
        if not all(data.broker_name in self._brokers for data in queues):
            return False
        for data in queues:
            self._set_queues(self._brokers[data.broker_name], topic, data)
        return True

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic everywhere, or in one cluster. A broker that still has it registers it again."""
        for name in list(self._queues.get(topic, ())):
            group = self._brokers[name]
            if cluster is None or group.cluster == cluster:
                self._remove_queues(group, topic)

    def forbid_writes(self, broker_name: str) -> int:
        """Remove the write permission of all topics of a broker until they change. Return their number."""
        return self._set_permission(broker_name, keep=~PERM_WRITE, add=0)

    def allow_writes(self, broker_name: str) -> int:
        """Allow reads and writes on every topic of a broker, whatever was allowed before. Return their number."""
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

    def _invalidate(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._encoded.pop(topic, None)

    # -- queries ------------------------------------------------------------------------------------------------------

    def route(self, topic: str, order: str | None = None) -> RouteData | None:
        """Return the route of a topic, or None if no broker holds it. `order` is included for ordered topics."""
        by_broker = self._queues.get(topic)
        if by_broker is None:
            return None
        shows_acting = not topic.startswith(BROKER_SYNC_TOPIC_PREFIX)
        brokers, queues = [], []
        for name in sorted(by_broker):
            group, data = self._brokers[name], by_broker[name]
            if shows_acting and group.is_led_by_slave:
                data = msgspec.structs.replace(data, perm=data.perm & ~PERM_WRITE)  # slaves are read-only
            brokers.append(group.data(shows_acting_master=shows_acting))
            queues.append(data)
        return RouteData(broker_datas=brokers, queue_datas=queues, order_topic_conf=order)

    def encoded_route(self, topic: str, order: str | None = None) -> bytes | None:
        """Return the encoded route of a topic, from the cache if possible."""
        cached = self._encoded.get(topic)
        if cached is not None and cached[0] == order:
            return cached[1]
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

    def broker_counts(self) -> dict[str, int]:
        """Return the number of registered brokers of each cluster."""
        counts: Counter[str] = Counter()
        for group in self._brokers:
            counts[group.cluster] += len(group.members)
        return counts

    def oldest_registration_ms(self) -> int | None:
        """Return the time of the last sign of life of the broker that is silent longest; None without brokers."""
        return min((member.last_seen_ms for group in self._brokers for member in group.members.values()), default=None)

    @property
    def topic_count(self) -> int:
        """The number of topics with a route."""
        return len(self._queues)

    def member_addresses(self, broker_name: str) -> dict[int, str]:
        """Return the addresses of a broker group by broker id; empty if it is unknown."""
        group = self._brokers.get(broker_name)
        return group.data().broker_addrs if group is not None else {}


def is_same_version(version: DataVersion, other: DataVersion) -> bool:
    """Return whether both denote the same state of a broker's topics."""
    if (version.counter, version.timestamp) != (other.counter, other.timestamp):
        return False
    return _state(version) == _state(other)


def _state(version: DataVersion) -> int:
    """Return the count of master changes. 4.9 does not send it, 5.x starts at 0."""
    return version.state_version or 0
