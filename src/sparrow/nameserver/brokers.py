"""The brokers that are registered with a name server, by name, by cluster and by connection.

Brokers with one name form a broker group; its members have ids, and id 0 is the master. A group without members is
removed, and so is a cluster without groups.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from sparrow.model.protocol import MASTER_BROKER_ID
from sparrow.wire.bodies import BrokerData, DataVersion


@dataclass(slots=True)
class BrokerMember:
    """One broker of a broker group."""

    broker_id: int
    address: str
    ha_address: str
    version: DataVersion
    """The version of its topics at its last registration."""
    connection: Hashable
    """The connection of its last request."""
    last_seen_ms: int
    heartbeat_timeout_ms: int

    def is_expired(self, now_ms: int) -> bool:
        return self.last_seen_ms + self.heartbeat_timeout_ms < now_ms


@dataclass(slots=True)
class BrokerGroup:
    """The brokers with one name: a master and its slaves."""

    name: str
    cluster: str
    has_acting_master: bool = False
    """Whether the slave with the lowest id acts for a missing master."""
    members: dict[int, BrokerMember] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)

    @property
    def is_led_by_slave(self) -> bool:
        """Whether a slave acts as the master now."""
        return self.has_acting_master and MASTER_BROKER_ID not in self.members

    def member_at(self, address: str) -> BrokerMember | None:
        return next((member for member in self.members.values() if member.address == address), None)

    def data(self, *, shows_acting_master: bool = False) -> BrokerData:
        """Return the group as routes show it; with `shows_acting_master`, an acting master has id 0."""
        addresses = {broker_id: self.members[broker_id].address for broker_id in sorted(self.members)}
        if shows_acting_master and self.is_led_by_slave:
            addresses = {MASTER_BROKER_ID: addresses.pop(min(addresses)), **addresses}
        return BrokerData(self.cluster, self.name, addresses, self.has_acting_master)


class BrokerTable:
    """All broker groups, indexed by name, by cluster and by connection."""

    def __init__(self) -> None:
        self._groups: dict[str, BrokerGroup] = {}
        self._clusters: dict[str, set[str]] = {}
        self._on_connection: dict[Hashable, set[tuple[str, int]]] = {}
        """Connection to (broker name, broker id) of the members whose last request came over it."""

    def get(self, name: str) -> BrokerGroup | None:
        return self._groups.get(name)

    def __getitem__(self, name: str) -> BrokerGroup:
        return self._groups[name]

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def __iter__(self) -> Iterator[BrokerGroup]:
        return iter(self._groups.values())

    def clusters(self) -> dict[str, list[str]]:
        """Return the names of the groups of each cluster."""
        return {cluster: sorted(self._clusters[cluster]) for cluster in sorted(self._clusters)}

    def of_cluster(self, cluster: str) -> list[BrokerGroup]:
        return [self._groups[name] for name in self._clusters.get(cluster, ())]

    def members_on(self, connection: Hashable) -> list[tuple[BrokerGroup, BrokerMember]]:
        """Return the members whose last request came over this connection."""
        found = self._on_connection.get(connection, ())
        return [(self._groups[name], self._groups[name].members[broker_id]) for name, broker_id in found]

    def expired(self, now_ms: int) -> list[tuple[BrokerGroup, BrokerMember]]:
        return [(group, member) for group in self for member in group.members.values() if member.is_expired(now_ms)]

    def put(self, name: str, cluster: str, member: BrokerMember) -> BrokerGroup:
        """Add a member to its group, or replace the one with its id. The group may move to another cluster."""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = BrokerGroup(name, cluster)
        elif group.cluster != cluster:
            self._leave_cluster(group)
            group.cluster = cluster
        self._clusters.setdefault(cluster, set()).add(name)
        if (previous := group.members.get(member.broker_id)) is not None:
            self._detach(group, previous)
        group.members[member.broker_id] = member
        self._on_connection.setdefault(member.connection, set()).add((name, member.broker_id))
        return group

    def touch(self, group: BrokerGroup, member: BrokerMember, *, connection: Hashable, now_ms: int) -> None:
        """Record a sign of life. From now on the member is removed if this connection closes, and no other."""
        member.last_seen_ms = now_ms
        if member.connection != connection:
            self._detach(group, member)
            member.connection = connection
            self._on_connection.setdefault(connection, set()).add((group.name, member.broker_id))

    def remove(self, group: BrokerGroup, member: BrokerMember) -> None:
        del group.members[member.broker_id]
        self._detach(group, member)
        if not group.members:
            self._leave_cluster(group)
            del self._groups[group.name]

    def _detach(self, group: BrokerGroup, member: BrokerMember) -> None:
        members = self._on_connection[member.connection]
        members.discard((group.name, member.broker_id))
        if not members:
            del self._on_connection[member.connection]

    def _leave_cluster(self, group: BrokerGroup) -> None:
        names = self._clusters[group.cluster]
        names.discard(group.name)
        if not names:
            del self._clusters[group.cluster]
