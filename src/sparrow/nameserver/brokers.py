"""The brokers a name server has heard of, and over which connection it last heard each.

Brokers of one name form a group; its members are numbered, and 0 is the master. A group without members does not exist,
nor does a cluster without groups.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from sparrow.model.protocol import MASTER_BROKER_ID
from sparrow.wire.bodies import BrokerData, DataVersion


@dataclass(slots=True)
class BrokerMember:
    number: int
    address: str
    ha_address: str
    version: DataVersion
    """Of its topics, as it registered them last."""
    connection: Hashable
    last_seen_ms: int
    heartbeat_timeout_ms: int

    def is_silent(self, now_ms: int) -> bool:
        return self.last_seen_ms + self.heartbeat_timeout_ms < now_ms


@dataclass(slots=True)
class BrokerGroup:
    name: str
    cluster: str
    has_acting_master: bool = False
    """Whether the first slave stands in for a master that is not there."""
    members: dict[int, BrokerMember] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)

    @property
    def is_led_by_slave(self) -> bool:
        return self.has_acting_master and MASTER_BROKER_ID not in self.members

    def at(self, address: str) -> BrokerMember | None:
        return next((member for member in self.members.values() if member.address == address), None)

    def data(self, *, shows_acting_master: bool = False) -> BrokerData:
        addresses = {number: self.members[number].address for number in sorted(self.members)}
        if shows_acting_master and self.is_led_by_slave:
            addresses = {MASTER_BROKER_ID: addresses.pop(min(addresses)), **addresses}
        return BrokerData(self.cluster, self.name, addresses, self.has_acting_master)


class BrokerTable:
    """All groups, by name, by cluster and by connection."""

    def __init__(self) -> None:
        self._groups: dict[str, BrokerGroup] = {}
        self._clusters: dict[str, set[str]] = {}
        self._speakers: dict[Hashable, set[tuple[str, int]]] = {}
        """Connection to the members that last spoke over it."""

    def get(self, name: str) -> BrokerGroup | None:
        return self._groups.get(name)

    def __getitem__(self, name: str) -> BrokerGroup:
        return self._groups[name]

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def __iter__(self) -> Iterator[BrokerGroup]:
        return iter(self._groups.values())

    def clusters(self) -> dict[str, list[str]]:
        """Cluster to the names of its groups."""
        return {cluster: sorted(self._clusters[cluster]) for cluster in sorted(self._clusters)}

    def of_cluster(self, cluster: str) -> list[BrokerGroup]:
        return [self._groups[name] for name in self._clusters.get(cluster, ())]

    def heard_over(self, connection: Hashable) -> list[tuple[BrokerGroup, BrokerMember]]:
        """Those who last spoke over this connection."""
        found = self._speakers.get(connection, ())
        return [(self._groups[name], self._groups[name].members[number]) for name, number in found]

    def silent(self, now_ms: int) -> list[tuple[BrokerGroup, BrokerMember]]:
        return [(group, member) for group in self for member in group.members.values() if member.is_silent(now_ms)]

    def put(self, name: str, cluster: str, member: BrokerMember) -> BrokerGroup:
        """Add a member to its group, or replace the one with its number. The group may move to another cluster."""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = BrokerGroup(name, cluster)
        elif group.cluster != cluster:
            self._leave_cluster(group)
            group.cluster = cluster
        self._clusters.setdefault(cluster, set()).add(name)
        if (previous := group.members.get(member.number)) is not None:
            self._mute(group, previous)
        group.members[member.number] = member
        self._speakers.setdefault(member.connection, set()).add((name, member.number))
        return group

    def heard(self, group: BrokerGroup, member: BrokerMember, *, connection: Hashable, now_ms: int) -> None:
        """The member spoke: only if this connection closes is it gone."""
        member.last_seen_ms = now_ms
        if member.connection != connection:
            self._mute(group, member)
            member.connection = connection
            self._speakers.setdefault(connection, set()).add((group.name, member.number))

    def remove(self, group: BrokerGroup, member: BrokerMember) -> None:
        del group.members[member.number]
        self._mute(group, member)
        if not group.members:
            self._leave_cluster(group)
            del self._groups[group.name]

    def _mute(self, group: BrokerGroup, member: BrokerMember) -> None:
        speakers = self._speakers[member.connection]
        speakers.discard((group.name, member.number))
        if not speakers:
            del self._speakers[member.connection]

    def _leave_cluster(self, group: BrokerGroup) -> None:
        names = self._clusters[group.cluster]
        names.discard(group.name)
        if not names:
            del self._clusters[group.cluster]
