"""Consumer groups: a list with lag, one group with members, assignment and lag per queue, and deletion."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

import msgspec

from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.broker_state import (
    CommittedOffsets,
    TopicTables,
    fetch_committed_offsets,
    fetch_topic_tables,
)
from sparrow.client.aio.admin.clusters import gather_all
from sparrow.client.aio.admin.group_state import (
    count_members,
    fetch_assignment,
    fetch_connections,
    fetch_time_spans,
)
from sparrow.client.aio.admin.groups import QueueProgress
from sparrow.client.aio.admin.queue_bounds import SizedQueueBounds, fetch_queue_bounds
from sparrow.model.errors import UnknownGroup, UnknownTopic
from sparrow.model.protocol import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, TOOLS_GROUP
from sparrow.model.queue import QueueRef
from sparrow.model.topic import Group, validate_group_name
from sparrow.operations.errors import AlreadyExists, MembersOnline
from sparrow.operations.plans import check_plan, hash_plan
from sparrow.wire.bodies import ConsumerConnections

_SYSTEM_GROUP_PREFIXES = ("CID_RMQ_SYS_", "CID_ONSAPI_", "CID_ONS-")
_SYSTEM_GROUPS = frozenset({TOOLS_GROUP, "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_RMQ_SYS_TRANS"})


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a list."""

    name: str
    is_system: bool
    """Whether RocketMQ's brokers or tools use it."""
    is_configured: bool
    """Whether brokers have its configuration. A group that only has offsets was deleted, or is not created yet."""
    members: int | None
    """Members that are online; None if they were not counted."""
    topics: tuple[str, ...]
    """Topics on which it has committed offsets, without its retry topic."""
    lag: int
    """Messages of these topics that it has not read."""
    retrying: int
    """Messages that wait in its retry topic."""
    dead_letters: int


class QueueLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group has read a queue."""

    broker: str
    queue_id: int
    committed: int
    """The offset that the group reads next."""
    end: int
    lag: int
    read_ms: int | None
    """When the last message that the group has read was stored."""
    delay_ms: int | None
    """How long the next message has waited; None if there is none, or the broker does not know."""
    member: str | None
    """Client id of the member that reads the queue, if it reports it."""


class GroupTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that a group reads."""

    topic: str
    expression: str | None
    """The filter of its subscription; None if no member is online."""
    expression_type: str | None
    lag: int
    delay_ms: int | None
    """How long the oldest unread message has waited."""
    queues: tuple[QueueLag, ...]


class MemberState(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer of a group that is online."""

    client_id: str
    address: str
    language: str
    version: int
    queues: tuple[QueueRef, ...]
    """The queues that it says it reads."""


class GroupDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A group with everything that operators look at."""

    name: str
    config: Group | None
    message_model: str | None
    """CLUSTERING or BROADCASTING; None if no member is online."""
    consume_type: str | None
    """CONSUME_ACTIVELY (pull), CONSUME_PASSIVELY (push) or CONSUME_POP."""
    members: tuple[MemberState, ...]
    topics: tuple[GroupTopic, ...]
    out_per_s: float
    """Messages that it read, over the last minute."""
    lag: int
    delay_ms: int | None
    retrying: int
    dead_letters: int


class GroupDeletionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the deletion of a group would remove."""

    group: str
    members: int
    topics: tuple[str, ...]
    """Topics on which its offsets are deleted."""
    lag: int
    hash: str


def is_system_group(name: str) -> bool:
    """Return whether RocketMQ's brokers or tools use the group."""
    return name in _SYSTEM_GROUPS or name.startswith(_SYSTEM_GROUP_PREFIXES)


async def list_groups(admin: Admin, *, with_members: bool = True) -> list[GroupSummary]:
    """Return all groups by name, with their lag.

    Lag costs three requests for each broker, however many groups exist; members cost one for each group and broker.
    """
    configs, committed, tables = await asyncio.gather(
        admin.groups(), fetch_committed_offsets(admin.session), fetch_topic_tables(admin.session)
    )
    names = sorted(configs.keys() | {group for table in committed.values() for _, group in table})
    members = await count_members(admin.session, names) if with_members else {}
    return summarise_groups(names, configs, committed, tables, members)


def lags_by_group(
    committed: CommittedOffsets, bounds: Mapping[QueueRef, SizedQueueBounds]
) -> dict[tuple[str, str], int]:
    """Return the lag of each (group, topic) in messages that are still stored."""
    lags: dict[tuple[str, str], int] = {}
    for broker, table in committed.items():
        for (topic, group), offsets in table.items():
            for queue_id, offset in offsets.items():
                found = bounds.get(QueueRef(topic, broker, queue_id))
                if found is not None:
                    behind = max(0, found.end - max(offset, found.first))
                    lags[group, topic] = lags.get((group, topic), 0) + behind
    return lags


def summarise_groups(
    names: Iterable[str],
    configs: Mapping[str, Group],
    committed: CommittedOffsets,
    tables: TopicTables,
    members: Mapping[str, int],
) -> list[GroupSummary]:
    """Return the groups of these names with their lag."""
    lags = lags_by_group(committed, tables.bounds)
    sizes: dict[str, int] = {}
    for queue, bound in tables.bounds.items():
        if queue.topic.startswith(DLQ_TOPIC_PREFIX):
            sizes[queue.topic] = sizes.get(queue.topic, 0) + bound.end - bound.first
    topics_of: dict[str, list[str]] = {}
    for group, topic in sorted(lags):
        if topic != RETRY_TOPIC_PREFIX + group:
            topics_of.setdefault(group, []).append(topic)
    return [
        GroupSummary(
            name=name,
            is_system=is_system_group(name),
            is_configured=name in configs,
            members=members.get(name),
            topics=tuple(topics_of.get(name, ())),
            lag=sum(lags[name, topic] for topic in topics_of.get(name, ())),
            retrying=lags.get((name, RETRY_TOPIC_PREFIX + name), 0),
            dead_letters=sizes.get(DLQ_TOPIC_PREFIX + name, 0),
        )
        for name in names
    ]


async def fetch_group(admin: Admin, name: str) -> GroupDetail:
    """Return a group with members, assignment and lag; raise `UnknownGroup` if no broker knows it."""
    validate_group_name(name)
    configs, online, progress = await asyncio.gather(
        admin.groups(), fetch_connections(admin.session, name), admin.progress(name)
    )
    config = configs.get(name)
    if config is None and online is None and not progress.queues:
        raise UnknownGroup(name, get_close_matches(name, [each for each in configs if not is_system_group(each)]))
    subscribed = online.subscription_table if online is not None else {}
    names = sorted({queue.topic for queue in progress.queues} | set(subscribed))
    # Brokers list only topics with committed offsets, unless they are asked for one.
    unread = [topic for topic in subscribed if all(queue.topic != topic for queue in progress.queues)]
    more = await gather_all(admin.progress(name, topic) for topic in unread)
    queues = {**progress.queues, **{queue: read for part in more for queue, read in part.queues.items()}}
    topics, assigned = await _fetch_topics(admin, name, names, queues, online)
    retry_topic = RETRY_TOPIC_PREFIX + name
    plain = [topic for topic in topics if topic.topic != retry_topic]
    return GroupDetail(
        name=name,
        config=config,
        message_model=online.message_model if online is not None else None,
        consume_type=online.consume_type if online is not None else None,
        members=_members(online, assigned),
        topics=tuple(plain),
        out_per_s=progress.messages_per_s,
        lag=sum(topic.lag for topic in plain),
        delay_ms=_oldest(topic.delay_ms for topic in plain),
        retrying=sum(topic.lag for topic in topics if topic.topic == retry_topic),
        dead_letters=await count_messages(admin, DLQ_TOPIC_PREFIX + name),
    )


async def count_messages(admin: Admin, topic: str) -> int:
    """Return how many messages of a topic are stored; 0 if it does not exist."""
    try:
        bounds = await fetch_queue_bounds(admin.session, [topic], without_absent=True)
    except UnknownTopic:
        return 0
    return sum(bound.end - bound.first for bound in bounds.values())


async def put_group(admin: Admin, group: Group, *, is_new: bool | None = None) -> Group:
    """Create a group or change it. `is_new`: True refuses to change an existing group, False to create one."""
    if is_new is not None:
        exists = validate_group_name(group.name) in await admin.groups()
        if exists and is_new:
            raise AlreadyExists("group", group.name)
        if not exists and not is_new:
            raise UnknownGroup(group.name)
    await admin.create_group(group)
    return group


async def plan_deletion(admin: Admin, name: str) -> GroupDeletionPlan:
    """Return what the deletion of a group would remove; raise `UnknownGroup` if no broker knows it."""
    found = await fetch_group(admin, name)
    topics = tuple(topic.topic for topic in found.topics)
    return GroupDeletionPlan(
        group=name,
        members=len(found.members),
        topics=topics,
        lag=found.lag,
        hash=hash_plan("delete group", name, topics),
    )


async def delete_group(admin: Admin, name: str, *, plan: str | None, force: bool = False) -> GroupDeletionPlan:
    """Delete a group with its offsets as planned, and return what was deleted. Unless forced, none may be online."""
    current = await plan_deletion(admin, name)
    if current.members and not force:
        raise MembersOnline(name, current.members)
    check_plan(f"the deletion of group {name!r}", plan, current.hash, force=force)
    await admin.delete_group(name)
    return current


async def _fetch_topics(
    admin: Admin,
    group: str,
    names: list[str],
    progress: Mapping[QueueRef, QueueProgress],
    online: ConsumerConnections | None,
) -> tuple[list[GroupTopic], dict[QueueRef, str]]:
    async def one(topic: str) -> tuple[GroupTopic, dict[QueueRef, str]] | None:
        try:
            route = await admin.session.route(topic)
        except UnknownTopic:  # deleted after the group read it
            return None
        spans = await fetch_time_spans(admin.session, group, route)
        assigned = await fetch_assignment(admin.session, group, route) if online is not None else {}
        subscription = online.subscription_table.get(topic) if online is not None else None
        queues = tuple(
            _queue_lag(queue, read, spans[queue].delay_time if queue in spans else 0, assigned.get(queue))
            for queue, read in progress.items()
            if queue.topic == topic
        )
        found = GroupTopic(
            topic=topic,
            expression=subscription.sub_string if subscription is not None else None,
            expression_type=subscription.expression_type if subscription is not None else None,
            lag=sum(queue.lag for queue in queues),
            delay_ms=_oldest(queue.delay_ms for queue in queues),
            queues=queues,
        )
        return found, assigned

    parts = [part for part in await gather_all(map(one, names)) if part is not None]
    return [topic for topic, _ in parts], {queue: who for _, some in parts for queue, who in some.items()}


def _queue_lag(queue: QueueRef, read: QueueProgress, delay_ms: int, member: str | None) -> QueueLag:
    lag = max(0, read.lag)
    return QueueLag(
        broker=queue.broker_name,
        queue_id=queue.queue_id,
        committed=read.committed,
        end=read.end,
        lag=lag,
        read_ms=read.read_ms or None,
        delay_ms=delay_ms if lag else None,
        member=member,
    )


def _members(online: ConsumerConnections | None, assigned: dict[QueueRef, str]) -> tuple[MemberState, ...]:
    if online is None:
        return ()
    return tuple(
        MemberState(
            client_id=member.client_id,
            address=member.client_addr,
            language=member.language,
            version=member.version,
            queues=tuple(sorted(queue for queue, who in assigned.items() if who == member.client_id)),
        )
        for member in online.connection_set
    )


def _oldest(delays: Iterable[int | None]) -> int | None:
    return max((delay for delay in delays if delay is not None), default=None)
