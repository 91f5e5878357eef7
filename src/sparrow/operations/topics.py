"""Topics: a list with sizes, one topic with its queues and readers, creation, change and deletion."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from enum import StrEnum

import msgspec

from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.broker_state import TopicTables, fetch_topic_tables
from sparrow.client.aio.admin.clusters import gather_all
from sparrow.client.aio.admin.group_state import fetch_groups_of_topic
from sparrow.client.aio.admin.queue_bounds import fetch_queue_bounds
from sparrow.client.aio.admin.topics import create_topic
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import Refused, UnknownTopic
from sparrow.model.priority import LANES_SYS_FLAG
from sparrow.model.protocol import DLQ_TOPIC_PREFIX, PERM_READ, PERM_WRITE, RETRY_TOPIC_PREFIX
from sparrow.model.topic import Topic, is_system_topic, validate_topic_name
from sparrow.operations.errors import AlreadyExists, NotFound
from sparrow.operations.plans import check_plan, hash_plan
from sparrow.wire import bodies
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import TopicRequest

MESSAGE_TYPE_ATTRIBUTE = "message.type"


class TopicKind(StrEnum):
    """Who uses a topic."""

    NORMAL = "normal"
    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    SYSTEM = "system"


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in a list."""

    name: str
    kind: TopicKind
    message_type: str | None
    """RocketMQ's `message.type`: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY; None if it is not restricted."""
    brokers: tuple[str, ...]
    queues: int
    """Write queues on all brokers."""
    has_lanes: bool
    is_readable: bool
    is_writable: bool
    messages: int
    """Messages that are stored now."""


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A read queue of a topic."""

    broker: str
    queue_id: int
    lane: str | None
    """high, middle or low in a topic with lanes."""
    first: int
    """The oldest stored offset."""
    end: int
    """The offset that the next message gets."""
    newest_ms: int | None
    """Store time of the newest message."""
    mean_bytes: int | None
    """Mean size of the newest records; None if the broker does not report it."""

    @property
    def messages(self) -> int:
        """Messages that are stored now."""
        return self.end - self.first


class TopicDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with everything that operators look at."""

    summary: TopicSummary
    in_per_s: float
    """Messages that arrived, over the last minute."""
    queues: tuple[QueueState, ...]
    groups: tuple[str, ...]
    """Groups that read it, or have read it."""
    configs: dict[str, Topic]
    """Its configuration by broker."""


class TopicDeletionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the deletion of a topic would remove."""

    topic: str
    brokers: tuple[str, ...]
    messages: int
    groups: tuple[str, ...]
    """Groups that lose their offsets on it."""
    hash: str


def kind_of_topic(name: str, server_names: Collection[str] = ()) -> TopicKind:
    """Return who uses a topic. `server_names`: names of clusters and brokers, each of which has a system topic."""
    if name.startswith(RETRY_TOPIC_PREFIX):
        return TopicKind.RETRY
    if name.startswith(DLQ_TOPIC_PREFIX):
        return TopicKind.DEAD_LETTER
    return TopicKind.SYSTEM if is_system_topic(name) or name in server_names else TopicKind.NORMAL


async def fetch_server_names(admin: Admin) -> frozenset[str]:
    """Return the names of clusters and brokers: RocketMQ's brokers create a topic of each."""
    clusters = await admin.clusters()
    return frozenset(clusters) | {broker for cluster in clusters.values() for broker in cluster.brokers}


async def list_topics(admin: Admin, *, kinds: frozenset[TopicKind] | None = None) -> list[TopicSummary]:
    """Return all topics of these kinds by name. It costs two requests for each broker, however many topics exist."""
    servers = await fetch_server_names(admin)
    tables = await fetch_topic_tables(
        admin.session, is_wanted=lambda name: kinds is None or kind_of_topic(name, servers) in kinds
    )
    return summarise_topics(tables, servers)


def summarise_topics(tables: TopicTables, server_names: Collection[str]) -> list[TopicSummary]:
    """Return the topics of all brokers by name."""
    configs: dict[str, dict[str, Topic]] = {}
    for broker, table in tables.topics.items():
        for name, topic in table.items():
            configs.setdefault(name, {})[broker] = topic
    counts = dict.fromkeys(configs, 0)
    for queue, bound in tables.bounds.items():
        counts[queue.topic] += bound.end - bound.first
    return [_summary(name, kind_of_topic(name, server_names), configs[name], counts[name]) for name in sorted(configs)]


async def fetch_topic(admin: Admin, name: str) -> TopicDetail:
    """Return a topic with its queues and readers; raise `UnknownTopic` if it does not exist."""
    route = await admin.route(validate_topic_name(name))
    configs, servers, stats, bounds, groups = await asyncio.gather(
        _fetch_configs(admin, route),
        fetch_server_names(admin),
        gather_all(
            admin.session.invoke(address, RequestCode.GET_TOPIC_STATS_INFO, TopicRequest(name))
            for address in route.masters.values()
        ),
        fetch_queue_bounds(admin.session, [name], without_absent=True),
        fetch_groups_of_topic(admin.session, route),
    )
    tables = [bodies.read(bodies.TopicStats, answer.body) for answer in stats]
    newest_ms = {
        queue: offsets.last_update_timestamp for table in tables for queue, offsets in table.offset_table.items()
    }
    queues = tuple(
        QueueState(
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            lane=lane.label if (lane := route.lane_of(queue)) is not None else None,
            first=bound.first,
            end=bound.end,
            newest_ms=newest_ms.get(queue) or None,
            mean_bytes=bound.mean_bytes or None,
        )
        for queue, bound in bounds.items()
    )
    return TopicDetail(
        summary=_summary(name, kind_of_topic(name, servers), configs, sum(queue.messages for queue in queues)),
        in_per_s=sum(table.topic_put_tps for table in tables),
        queues=queues,
        groups=tuple(groups),
        configs=configs,
    )


async def put_topic(
    admin: Admin,
    name: str,
    *,
    queues: int = 8,
    has_lanes: bool = False,
    permission: int = PERM_READ | PERM_WRITE,
    message_type: str | None = None,
    cluster: str | None = None,
    is_new: bool | None = None,
) -> TopicSummary:
    """Create a topic or change it, and return it.

    `is_new`: True refuses to change an existing topic, False to create one. `message_type` sets the attribute
    `message.type`, which cannot be changed to lanes later.
    """
    if is_new is not None:
        await _check_existence(admin, validate_topic_name(name), is_new=is_new)
    attributes = f"+{MESSAGE_TYPE_ATTRIBUTE}={message_type}" if message_type else None
    route = await create_topic(
        admin.session,
        name,
        queues,
        cluster=cluster,
        brokers=None,
        permission=permission,
        has_lanes=has_lanes,
        attributes=attributes,
    )
    return _summary(name, kind_of_topic(name), await _fetch_configs(admin, route), 0)


async def plan_deletion(admin: Admin, name: str) -> TopicDeletionPlan:
    """Return what the deletion of a topic would remove; raise `UnknownTopic` if it does not exist."""
    found = await fetch_topic(admin, name)
    brokers, groups = found.summary.brokers, found.groups
    return TopicDeletionPlan(
        topic=name,
        brokers=brokers,
        messages=found.summary.messages,
        groups=groups,
        # Without the number of messages: a topic in use could not be deleted otherwise.
        hash=hash_plan("delete topic", name, brokers, groups),
    )


async def delete_topic(admin: Admin, name: str, *, plan: str | None, force: bool = False) -> TopicDeletionPlan:
    """Delete a topic as planned, and return what was deleted."""
    if kind_of_topic(name, await fetch_server_names(admin)) is TopicKind.SYSTEM:
        raise Refused(f"topic {name!r} is a system topic and cannot be deleted")
    current = await plan_deletion(admin, name)
    check_plan(f"the deletion of topic {name!r}", plan, current.hash, force=force)
    await admin.delete_topic(name)
    return current


async def _check_existence(admin: Admin, name: str, *, is_new: bool) -> None:
    try:
        await admin.route(name)
    except UnknownTopic:
        if not is_new:
            raise
        return
    if is_new:
        raise AlreadyExists("topic", name)


async def _fetch_configs(admin: Admin, route: TopicRoute) -> dict[str, Topic]:
    answers = await gather_all(
        admin.session.invoke(address, RequestCode.GET_TOPIC_CONFIG, TopicRequest(route.topic))
        for address in route.masters.values()
    )
    return {
        broker: bodies.read(bodies.TopicConfig, answer.body).topic()
        for broker, answer in zip(route.masters, answers, strict=True)
    }


def _summary(name: str, kind: TopicKind, configs: dict[str, Topic], messages: int) -> TopicSummary:
    if not configs:
        raise NotFound("topic", name, "no broker that runs has it")
    return TopicSummary(
        name=name,
        kind=kind,
        message_type=next(
            (found for each in configs.values() if (found := each.attributes.get(MESSAGE_TYPE_ATTRIBUTE))), None
        ),
        brokers=tuple(sorted(configs)),
        queues=sum(each.write_queues for each in configs.values()),
        has_lanes=any(each.sys_flag & LANES_SYS_FLAG for each in configs.values()),
        is_readable=any(each.is_readable for each in configs.values()),
        is_writable=any(each.is_writable for each in configs.values()),
        messages=messages,
    )
