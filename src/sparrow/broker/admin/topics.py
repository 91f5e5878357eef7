"""Admin requests for topics: create, change, list, delete, and statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from sparrow.broker.context import Broker
from sparrow.broker.produce.lanes import has_lanes, topic_with_lanes
from sparrow.broker.query.queue_scan import QueueScan
from sparrow.broker.query.store_time import store_ms_at
from sparrow.model.errors import Refused
from sparrow.model.priority import LANES_SYS_FLAG
from sparrow.model.protocol import PERM_PRIORITY
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic, is_group_topic, validate_topic_name
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.bodies import (
    DataVersion,
    GroupList,
    QueueRef,
    TopicConfig,
    TopicConfigList,
    TopicList,
    TopicOffset,
    TopicStats,
    TopicTable,
)
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import DeleteTopic, EmptyHeader, ListTopics, TopicRequest, UpdateTopic

FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
SYS_FLAGS = range(4)
"""RocketMQ's flags. The lanes flag may be added."""
PRIORITY_TYPE = "PRIORITY"
"""The message type of topics with lanes."""
TOPIC_ATTRIBUTES: Mapping[str, frozenset[str]] = {
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", PRIORITY_TYPE}),
    "queue.type": frozenset({"SimpleCQ"}),
    "cleanup.policy": frozenset({"DELETE"}),
    "reserve.time": frozenset({"-1"}),
}
"""The attributes that a topic may have, and their values. Values that the broker does not implement are left out."""
_REFUSAL_REASONS = {
    ("queue.type", "BatchCQ"): "a batch is stored as single messages here, so there are no batch consume queues; ",
    ("queue.type", "RocksDBCQ"): "there are no consume queues in RocksDB here; ",
    ("cleanup.policy", "COMPACTION"): "topics are not compacted here; ",
    ("message.type", "LITE"): "there are no lite topics here; ",
}
"""Why other values of RocketMQ are refused."""

_Change = tuple[str, str | None]
"""An attribute and its new value; None removes it."""


async def put_topic(request: UpdateTopic, broker: Broker, _call: RequestContext) -> EmptyHeader:
    """Create or change a topic. Repeating the request changes nothing."""
    config = TopicConfig(
        topic_name=request.topic,
        read_queue_nums=request.read_queues,
        write_queue_nums=request.write_queues,
        perm=request.permission,
        topic_filter_type=request.filter_type,
        topic_sys_flag=request.sys_flag or 0,
        order=request.is_ordered,
    )
    with broker.events.topic_creation():
        await broker.topics.put(_checked(broker, config, _changes(request.attributes or "")))
    return EmptyHeader()


async def put_topics(_request: EmptyHeader, broker: Broker, call: RequestContext) -> EmptyHeader:
    """Create or change a list of topics, or none of them if one is invalid."""
    wanted = call.body(TopicConfigList).topic_config_list
    if not wanted:
        raise Refused("the list of topics is empty")
    topics = [_checked(broker, config, _keyed_changes(config.attributes)) for config in wanted]
    for topic in topics:
        with broker.events.topic_creation():
            await broker.topics.put(topic)
    return EmptyHeader()


async def refuse_static_topic(request: UpdateTopic, broker: Broker, _call: RequestContext) -> HandlerResponse:
    return HandlerResponse(
        code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        remark=(f"topic {request.topic!r} cannot be static: this broker has no static topics, create an ordinary one"),
    )


def _checked(broker: Broker, config: TopicConfig, changes: Iterable[_Change]) -> Topic:
    """Return the validated topic, or raise `Refused`."""
    name, queues_max = validate_topic_name(config.topic_name), broker.settings.topic_queues_max
    if broker.topics.is_system(name):
        raise Refused(f"topic {name!r} is a system topic: choose another name")
    for kind, count in (("read", config.read_queue_nums), ("write", config.write_queue_nums)):
        if count > queues_max:
            broker.topics.refused_queues += 1
            raise Refused(
                f"topic {name!r} cannot have {count} {kind} queues: use 1 to {queues_max}, or raise"
                " broker.topic_queues_max"
            )
        if count < 1:
            raise Refused(f"topic {name!r} cannot have {count} {kind} queues: use 1 to {queues_max}")
    if not 0 <= config.perm < PERM_PRIORITY:
        raise Refused(f"{config.perm} is not a permission: add up 4 for read, 2 for write, 1 for inherit")
    if config.topic_filter_type not in FILTER_TYPES:
        raise Refused(f"{config.topic_filter_type[:80]!r} is not a filter type: use {' or '.join(FILTER_TYPES)}")
    if config.topic_sys_flag & ~LANES_SYS_FLAG not in SYS_FLAGS:
        raise Refused(
            f"{config.topic_sys_flag} is not a topic flag: use 0 to {SYS_FLAGS[-1]}, plus {LANES_SYS_FLAG} for lanes"
        )
    known = broker.topics.get(name)
    attributes = dict(known.attributes) if known is not None else {}
    for key, value in changes:
        if key not in TOPIC_ATTRIBUTES:
            raise Refused(f"topics have no attribute {key[:80]!r}: use one of {', '.join(TOPIC_ATTRIBUTES)}")
        if value is None:
            attributes.pop(key, None)
        elif value not in TOPIC_ATTRIBUTES[key]:
            possible = ", ".join(sorted(TOPIC_ATTRIBUTES[key]))
            reason = _REFUSAL_REASONS.get((key, value), "")
            raise Refused(f"attribute {key!r} cannot be {value[:80]!r}: {reason}use one of {possible}")
        else:
            attributes[key] = value
    wanted = msgspec.structs.replace(config.topic(), attributes=attributes)
    keeps_lanes = known is not None and has_lanes(known) and broker.store.all_topics_have_lanes
    is_by_priority = attributes.get("message.type") == PRIORITY_TYPE
    if is_by_priority and known is not None and not has_lanes(known):
        raise Refused(
            f"topic {name!r} cannot become one of type {PRIORITY_TYPE}: it was created without lanes, and that "
            "determines the meaning of its queues; create another topic"
        )
    if keeps_lanes or is_by_priority:
        # RocketMQ's tools do not know the flag.
        wanted = msgspec.structs.replace(wanted, sys_flag=wanted.sys_flag | LANES_SYS_FLAG)
    topic = topic_with_lanes(wanted, known)
    if has_lanes(topic) and is_group_topic(name):
        raise Refused(f"topic {name!r} is a retry or dead-letter topic, and those have no lanes")
    if topic.read_queues > queues_max:
        raise Refused(f"topic {name!r} cannot have {topic.read_queues} queues in lanes: {queues_max} is the maximum")
    return topic


def _changes(text: str) -> list[_Change]:
    """Parse `+message.type=FIFO,-reserve.time`."""
    changes: list[_Change] = []
    for part in filter(None, map(str.strip, text.split(","))):
        key, _, value = part.partition("=")
        if part[0] == "+" and value:
            changes.append((key[1:].strip(), value.strip()))
        elif part[0] == "-" and not value:
            changes.append((key[1:].strip(), None))
        else:
            raise Refused(f"{part[:80]!r} is not an attribute change: write +name=value to set, or -name to remove")
    return changes


def _keyed_changes(attributes: Mapping[str, str]) -> list[_Change]:
    """Parse the attributes of a topic in a list, where tools keep the sign in the key. A plain key is set."""
    return [
        (key[1:], None) if key.startswith("-") else (key.removeprefix("+"), value) for key, value in attributes.items()
    ]


async def delete_topic(request: DeleteTopic, broker: Broker, _call: RequestContext) -> EmptyHeader:
    """Delete a topic with its messages, queues and offsets. Deleting one that does not exist is no error."""
    name = validate_topic_name(request.topic)
    if broker.topics.is_system(name):
        raise Refused(f"topic {name!r} is a system topic and cannot be deleted")
    await broker.topics.delete(name)
    broker.counters.forget_topic(name)
    broker.events.forget_topic(name)
    broker.positions.forget_topic(name)
    return EmptyHeader()


async def get_topic(request: TopicRequest, broker: Broker, _call: RequestContext) -> HandlerResponse:
    return HandlerResponse.of(TopicConfig.of(broker.topics[request.topic]))


async def list_topics(_request: ListTopics, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return all topics at once.

    The answer has no total, so 5.3's tools do not request a second page.
    """
    async with broker.listing_turn:
        # In a thread: with thousands of topics, it takes long.
        return await asyncio.to_thread(_topic_table, list(broker.topics), broker.topics.version)


def _topic_table(topics: list[Topic], version: DataVersion) -> HandlerResponse:
    return HandlerResponse.of(
        TopicTable(
            topic_config_table={topic.name: TopicConfig.of(topic) for topic in topics},
            data_version=version,
            mapping_data_version=DataVersion(),
            topic_queue_mapping_detail_map={},
        )
    )


async def list_system_topics(_request: EmptyHeader, broker: Broker, _call: RequestContext) -> HandlerResponse:
    return HandlerResponse.of(TopicList(broker.topics.system_names))


async def topic_statistics(request: TopicRequest, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return the bounds of each queue, and the rate of sends."""
    topic = broker.topics[request.topic]
    table = {}
    async with QueueScan(broker.scan_turn) as scan:
        for queue_id in range(max(topic.read_queues, topic.write_queues)):
            queue = Queue(topic.name, queue_id)
            first, end = broker.store.bounds_nowait(queue)
            newest_ms = await store_ms_at(broker.store, queue, end - 1) if end > first else None
            table[QueueRef(topic.name, broker.name, queue_id)] = TopicOffset(first, end, newest_ms or 0)
            await scan.next_queue()
    sent = broker.counters.topic_traffic(topic.name, broker.now_ms())
    return HandlerResponse.of(TopicStats(table, sent.messages.minute.rate if sent is not None else 0.0))


async def list_groups_of_topic(request: TopicRequest, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return the groups that subscribe to the topic now, or have committed offsets on it."""
    groups = set(broker.clients.groups_of_topic(request.topic))
    groups.update(group for topic, group in await broker.store.offsets.all() if topic == request.topic)
    return HandlerResponse.of(GroupList(sorted(groups)))


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: put_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: put_topics,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: refuse_static_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    RequestCode.GET_TOPIC_CONFIG: get_topic,
    RequestCode.GET_ALL_TOPIC_CONFIG: list_topics,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: list_system_topics,
    RequestCode.GET_TOPIC_STATS_INFO: topic_statistics,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: list_groups_of_topic,
}
