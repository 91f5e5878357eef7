"""The registry of connected clients: the members of each group, and the subscriptions of consumer groups.

1. In a group, a client id belongs to one connection. A new connection replaces the old one.
2. A group has the subscriptions of its newest heartbeat: members are expected to subscribe alike. A subscription is
   only replaced by one with a higher version.
3. A group whose members report different subscriptions or message models is in conflict (see `member_report`).
4. A client that leaves is removed at once. A group without members is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from sparrow.broker.clients.member_report import MemberReport
from sparrow.broker.clients.subscriptions import SubscriptionFilter, build_filter
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import Refused
from sparrow.wire.bodies import ConsumerData, HeartbeatData
from sparrow.wire.codes import Language

CLUSTERING, BROADCASTING = "CLUSTERING", "BROADCASTING"


class OnlineClient(msgspec.Struct, frozen=True):
    """A member of a group."""

    channel: Any
    """Its connection; any hashable."""
    client_id: str
    language: Language
    version: int
    seen_ms: int
    """By the monotonic clock, as all times in this module."""


class OnlineConsumerGroup(msgspec.Struct):
    """The connected consumers of a group. Callers must not change it."""

    members: dict[str, OnlineClient] = {}
    """By client id, in the order of their first heartbeat."""
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = CLUSTERING
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: dict[str, SubscriptionFilter] = {}
    """By topic."""
    fingerprint: int | None = None
    """The fingerprint of the heartbeat with the subscriptions; None before the first one."""
    reports: dict[str, MemberReport] = {}
    """By client id: what must be the same for all members."""
    conflict_log: LogIntervals = msgspec.field(default_factory=LogIntervals)

    def conflict_of(self, client_id: str) -> tuple[str, MemberReport] | None:
        """Return a member that reports something else than this one; of several always the same."""
        mine = self.reports.get(client_id)
        others = [(str(report), other) for other, report in self.reports.items() if report != mine]
        if mine is None or not others:
            return None
        _, other = min(others)
        return other, self.reports[other]


class MembershipChange(msgspec.Struct, frozen=True):
    """The effect of a heartbeat or of a departure."""

    groups: tuple[str, ...] = ()
    """Consumer groups with other members or topics than before, and with members left."""
    needs_subscriptions: bool = False
    """The heartbeat had no subscriptions, and its fingerprint differs from the known one."""
    refused: tuple[Refused, ...] = ()
    """Subscriptions that were refused. The others were accepted."""


class ClientRegistry:
    """All clients of one broker."""

    def __init__(self) -> None:
        self._consumers: dict[str, OnlineConsumerGroup] = {}
        self._producers: dict[str, dict[str, OnlineClient]] = {}
        self._producer_clients: dict[str, OnlineClient] = {}
        self._memberships: dict[Any, _Memberships] = {}

    # -- changes ------------------------------------------------------------------------------------------------------

    @property
    def connection_count(self) -> int:
        """Connections over which clients have said who they are."""
        return len(self._memberships)

    def heartbeat(
        self, channel: Any, data: HeartbeatData, *, language: Language, version: int, now_ms: int
    ) -> MembershipChange:
        """Register a client with the groups in its heartbeat."""
        member = OnlineClient(channel, data.client_id, language, version, now_ms)
        memberships = self._memberships.setdefault(channel, _Memberships())
        memberships.seen_ms = now_ms
        for producer in data.producer_data_set:
            self._add_producer(producer.group_name, member)
            memberships.add_producer((producer.group_name, member.client_id))
        changed: list[str] = []
        refused: list[Refused] = []
        needs_subscriptions = False
        for consumer in data.consumer_data_set:
            name = consumer.group_name
            group = self._consumers.setdefault(name, OnlineConsumerGroup())
            is_changed = self._add_consumer(name, group, member)
            memberships.consumers.add((name, member.client_id))
            group.consume_type, group.message_model = consumer.consume_type, consumer.message_model
            group.consume_from_where = consumer.consume_from_where
            if data.without_sub:
                needs_subscriptions |= group.fingerprint != data.heartbeat_fingerprint
            else:
                is_changed |= _subscribe(group, consumer, refused)
                group.fingerprint = data.heartbeat_fingerprint
                group.reports[member.client_id] = MemberReport.of(consumer)
            if is_changed:
                changed.append(name)
        if memberships.is_empty:
            del self._memberships[channel]
        return MembershipChange(tuple(changed), needs_subscriptions, tuple(refused))

    def unregister(
        self, channel: Any, client_id: str, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> MembershipChange:
        """Remove a client from a producer group, a consumer group, or one of each."""
        changed: list[str] = []
        if producer_group is not None:
            self._drop_producer(channel, producer_group, client_id)
        if consumer_group is not None:
            changed += self._drop_consumer(channel, consumer_group, client_id)
        return MembershipChange(tuple(changed))

    def remove_channel(self, channel: Any) -> MembershipChange:
        """Remove every membership of a closed connection."""
        memberships = self._memberships.get(channel, _Memberships())
        for group, client_id in list(memberships.producers):
            self._drop_producer(channel, group, client_id)
        changed = [
            name
            for group, client_id in list(memberships.consumers)
            for name in self._drop_consumer(channel, group, client_id)
        ]
        self._memberships.pop(channel, None)
        return self._groups_left(changed)

    def silent_channels(self, before_ms: int) -> list[Any]:
        """Return the channels without a heartbeat since a time."""
        return [channel for channel, memberships in self._memberships.items() if memberships.seen_ms < before_ms]

    def expire(self, before_ms: int) -> MembershipChange:
        """Remove memberships that a client's heartbeats do not name any more.

        Go's client does not unregister when one of several consumers on a connection stops.
        """
        changed: list[str] = []
        for channel, memberships in list(self._memberships.items()):
            for name, client_id in list(memberships.producers):
                if self._producers[name][client_id].seen_ms < before_ms:
                    self._drop_producer(channel, name, client_id)
            for name, client_id in list(memberships.consumers):
                if self._consumers[name].members[client_id].seen_ms < before_ms:
                    changed += self._drop_consumer(channel, name, client_id)
        return self._groups_left(changed)

    # -- queries ------------------------------------------------------------------------------------------------------

    def subscription_filter(self, group: str, topic: str) -> SubscriptionFilter | None:
        """Return the group's filter on the topic. Called for every pull."""
        found = self._consumers.get(group)
        return found.subscriptions.get(topic) if found is not None else None

    def consumer_groups(self) -> list[str]:
        """Return the groups with consumers."""
        return list(self._consumers)

    def consumers(self, group: str) -> OnlineConsumerGroup | None:
        return self._consumers.get(group)

    def has_consumers(self, group: str) -> bool:
        """Return whether consumers of the group are online."""
        return group in self._consumers

    def find_consumer(self, group: str, client_id: str) -> OnlineClient | None:
        """Return a consumer of the group."""
        found = self._consumers.get(group)
        return found.members.get(client_id) if found is not None else None

    def client_id_of(self, group: str, channel: Any) -> str | None:
        """Return the client id of the consumer of the group that uses this channel."""
        found = self._consumers.get(group)
        members = found.members.values() if found is not None else ()
        return next((member.client_id for member in members if member.channel is channel), None)

    def producers(self, group: str) -> list[OnlineClient]:
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> Mapping[str, list[OnlineClient]]:
        return {name: list(members.values()) for name, members in self._producers.items()}

    def find_producer(self, client_id: str) -> OnlineClient | None:
        """Return a producer, whatever its group."""
        return self._producer_clients.get(client_id)

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the online consumer groups that subscribe to the topic."""
        return [name for name, group in self._consumers.items() if topic in group.subscriptions]

    # -- memberships --------------------------------------------------------------------------------------------------

    def _add_consumer(self, name: str, group: OnlineConsumerGroup, member: OnlineClient) -> bool:
        before = group.members.get(member.client_id)
        group.members[member.client_id] = member
        if before is None:
            return True
        if before.channel == member.channel:
            return False
        # It may have missed notifications while it reconnected.
        self._drop_membership(before.channel, consumer=(name, member.client_id))
        return True

    def _add_producer(self, name: str, member: OnlineClient) -> None:
        group = self._producers.setdefault(name, {})
        before = group.get(member.client_id)
        group[member.client_id] = self._producer_clients[member.client_id] = member
        if before is not None and before.channel != member.channel:
            self._drop_membership(before.channel, producer=(name, member.client_id))

    def _drop_consumer(self, channel: Any, name: str, client_id: str) -> Iterable[str]:
        """Remove a consumer. Return its group if members are left to be notified."""
        group = self._consumers.get(name)
        if group is None or client_id not in group.members or group.members[client_id].channel != channel:
            return ()
        del group.members[client_id]
        group.reports.pop(client_id, None)
        self._drop_membership(channel, consumer=(name, client_id))
        if group.members:
            return (name,)
        del self._consumers[name]
        return ()

    def _drop_producer(self, channel: Any, name: str, client_id: str) -> None:
        group = self._producers.get(name)
        if group is None or client_id not in group or group[client_id].channel != channel:
            return
        del group[client_id]
        if not group:
            del self._producers[name]
        self._drop_membership(channel, producer=(name, client_id))
        memberships, client = self._memberships.get(channel), self._producer_clients.get(client_id)
        is_in_others = memberships is not None and memberships.producer_groups[client_id] > 0
        if client is not None and client.channel == channel and not is_in_others:
            del self._producer_clients[client_id]

    def _groups_left(self, groups: Iterable[str]) -> MembershipChange:
        """Return a change of these groups, each once, without those that have no members left."""
        return MembershipChange(tuple(name for name in dict.fromkeys(groups) if name in self._consumers))

    def _drop_membership(
        self, channel: Any, *, consumer: tuple[str, str] | None = None, producer: tuple[str, str] | None = None
    ) -> None:
        memberships = self._memberships[channel]
        if consumer is not None:
            memberships.consumers.discard(consumer)
        if producer is not None:
            memberships.discard_producer(producer)
        if memberships.is_empty:
            del self._memberships[channel]


class _Memberships:
    """The memberships of one connection: (group, client id) in each role."""

    __slots__ = ("consumers", "producer_groups", "producers", "seen_ms")

    def __init__(self) -> None:
        self.consumers: set[tuple[str, str]] = set()
        self.producers: set[tuple[str, str]] = set()
        self.producer_groups: Counter[str] = Counter()
        """The number of producer groups of each client id: counted, so that leaving all groups takes linear time."""
        self.seen_ms = 0

    def add_producer(self, producer: tuple[str, str]) -> None:
        if producer not in self.producers:
            self.producers.add(producer)
            self.producer_groups[producer[1]] += 1

    def discard_producer(self, producer: tuple[str, str]) -> None:
        if producer in self.producers:
            self.producers.discard(producer)
            self.producer_groups[producer[1]] -= 1

    @property
    def is_empty(self) -> bool:
        return not self.consumers and not self.producers


def _subscribe(group: OnlineConsumerGroup, consumer: ConsumerData, refused: list[Refused]) -> bool:
    """Apply the subscriptions of a heartbeat. Return whether the group's topics changed."""
    before = group.subscriptions
    after: dict[str, SubscriptionFilter] = {}
    for data in consumer.subscription_data_set:
        known = after.get(data.topic) or before.get(data.topic)
        if known is not None and known.version >= data.sub_version:
            after[data.topic] = known
            continue
        try:
            after[data.topic] = build_filter(data)
        except Refused as refusal:
            refused.append(refusal)
    group.subscriptions = after
    return before.keys() != after.keys()
