"""Consumer groups: their configuration, their progress and the members that are online."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sparrow.client.aio.admin.clusters import fetch_masters, gather_all
from sparrow.client.aio.connection.session import ClientSession
from sparrow.model.queue import QueueRef
from sparrow.model.topic import Group, validate_group_name
from sparrow.wire import bodies
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import DeleteGroup, GetConsumerConnections, GetConsumeStats


class QueueProgress(msgspec.Struct, frozen=True):
    """How far a group has read a queue."""

    committed: int
    """The offset that the group reads next."""
    end: int
    """The offset that the next message will get."""
    read_ms: int
    """When the last message that the group has read was stored; 0 if unknown."""

    @property
    def lag(self) -> int:
        """Messages that the group has not read yet."""
        return self.end - self.committed


class GroupProgress(msgspec.Struct, frozen=True):
    """How far a group has read its queues."""

    group: str
    queues: Mapping[QueueRef, QueueProgress]
    messages_per_s: float

    @property
    def lag(self) -> int:
        """Messages that the group has not read yet."""
        return sum(queue.lag for queue in self.queues.values())


class GroupMember(msgspec.Struct, frozen=True):
    """A consumer of a group that is online."""

    client_id: str
    address: str
    language: str
    version: int


async def fetch_groups(session: ClientSession) -> dict[str, Group]:
    """Return every group of every master by name."""
    masters = await fetch_masters(session)
    answers = await gather_all(
        session.invoke(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG) for address in masters.values()
    )
    tables = [bodies.read(bodies.GroupTable, answer.body).subscription_group_table for answer in answers]
    return {name: config.group() for table in tables for name, config in sorted(table.items())}


async def create_group(session: ClientSession, group: Group, *, cluster: str | None) -> None:
    """Create or change a group on all masters."""
    validate_group_name(group.name)
    body = bodies.write(bodies.GroupConfig.of(group))
    masters = await fetch_masters(session, cluster)
    await gather_all(
        session.invoke(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
        for address in masters.values()
    )


async def delete_group(session: ClientSession, name: str, *, clean_offsets: bool) -> None:
    """Delete a group from all masters."""
    masters = await fetch_masters(session)
    header = DeleteGroup(name, clean_offsets, clean_offsets)
    await gather_all(
        session.invoke(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header) for address in masters.values()
    )


async def fetch_progress(session: ClientSession, group: str, topic: str | None) -> GroupProgress:
    """Return the progress of a group on a topic, or on all topics that it reads."""
    masters = await fetch_masters(session)
    header = GetConsumeStats(group, topic)
    answers = await gather_all(
        session.invoke(address, RequestCode.GET_CONSUME_STATS, header) for address in masters.values()
    )
    found = [bodies.read(bodies.ConsumeStats, answer.body) for answer in answers]
    queues = {
        queue: QueueProgress(progress.consumer_offset, progress.broker_offset, progress.last_timestamp)
        for stats in found
        for queue, progress in stats.offset_table.items()
    }
    return GroupProgress(group, dict(sorted(queues.items())), sum(stats.consume_tps for stats in found))


async def fetch_members(session: ClientSession, group: str) -> list[GroupMember]:
    """Return the members of a group that are online, sorted by client id."""
    masters = await fetch_masters(session)
    parts = await gather_all(fetch_members_on(session, address, group) for address in masters.values())
    found = {member.client_id: member for part in parts for member in part}
    return [found[client_id] for client_id in sorted(found)]


async def fetch_members_on(session: ClientSession, address: str, group: str) -> list[GroupMember]:
    """Return the members of a group that are connected to one broker."""
    request = GetConsumerConnections(group)
    answer = await session.invoke_unchecked(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, request)
    if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
        return []
    if answer.code != ResponseCode.SUCCESS:
        raise error_for_response(answer.code, answer.remark)
    found = bodies.read(bodies.ConsumerConnections, answer.body).connection_set
    return [GroupMember(each.client_id, each.client_addr, each.language, each.version) for each in found]
