"""The progress of consumer groups: offsets, lag and times; and offsets copied from one group to another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from sparrow.broker.context import Broker
from sparrow.broker.query.queue_scan import QueueScan
from sparrow.broker.query.store_time import store_ms_at
from sparrow.model.queue import Queue, QueueOffset
from sparrow.model.topic import Topic
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire import bodies
from sparrow.wire.bodies import (
    ConsumerOffsets,
    ConsumeStatsList,
    ConsumeTimeSpans,
    QueueConsumeStats,
    QueueRef,
    QueueTimeSpan,
    TopicList,
)
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import (
    CloneGroupOffsets,
    EmptyHeader,
    GetBrokerConsumeStats,
    GetConsumeStats,
    GetConsumeTimeSpans,
    GetCorrectedOffsets,
    GetGroupSubscription,
    GetGroupTopics,
)

NO_STORE_TIME_MS = -1
NO_CORRECTION = (1 << 63) - 1


async def group_progress(request: GetConsumeStats, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return the progress of a group on the requested topics, or on all topics it reads."""
    names = request.topics or await _topics_of(broker, request.group)
    table: dict[QueueRef, QueueConsumeStats] = {}
    rate = 0.0
    async with QueueScan(broker.scan_turn) as scan:
        for topic in _read_by(broker, request.group, names):
            table |= await _progress(broker, request.group, topic, scan)
            rate += _rate(broker, request.group, topic.name)
    return HandlerResponse.of(bodies.ConsumeStats(table, rate))


async def broker_progress(request: GetBrokerConsumeStats, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return the progress of every group with committed offsets, on the ordered topics or on the others."""
    topics_of: dict[str, list[str]] = {}
    listed: list[dict[str, list[bodies.ConsumeStats]]] = []
    behind = 0
    async with QueueScan(broker.scan_turn) as scan:
        await scan.take_turn()
        for name, group in sorted(await broker.store.offsets.all()):
            topics_of.setdefault(group, []).append(name)
        for group, names in sorted(topics_of.items()):
            stats = []
            for topic in _read_by(broker, group, names):
                if topic.is_ordered == request.in_order:
                    table = await _progress(broker, group, topic, scan)
                    behind += sum(queue.broker_offset - queue.consumer_offset for queue in table.values())
                    stats.append(bodies.ConsumeStats(table, _rate(broker, group, topic.name)))
            listed.append({group: stats})
        # In a thread: with thousands of groups, it takes long.
        return await asyncio.to_thread(HandlerResponse.of, ConsumeStatsList(listed, str(broker.address), behind))


async def _topics_of(broker: Broker, group: str) -> list[str]:
    """Return the topics on which the group has committed offsets."""
    return sorted(topic for topic, reader in await broker.store.offsets.all() if reader == group)


def _read_by(broker: Broker, group: str, names: Iterable[str]) -> list[Topic]:
    """Return those of the topics that exist and, if the group is online, that it subscribes to."""
    online = broker.clients.consumers(group)
    return [
        topic
        for topic in map(broker.topics.get, names)
        if topic is not None and (online is None or not online.subscriptions or topic.name in online.subscriptions)
    ]


async def _progress(broker: Broker, group: str, topic: Topic, scan: QueueScan) -> dict[QueueRef, QueueConsumeStats]:
    table = {}
    for queue_id in range(topic.read_queues):
        queue = Queue(topic.name, queue_id)
        first, end = broker.store.bounds_nowait(queue)
        offset = await broker.store.offsets.committed(group, queue) or 0
        read_ms = await store_ms_at(broker.store, queue, offset - 1) if first < offset <= end else None
        handed_out = broker.positions.handed_out.get((group, queue), offset)
        progress = QueueConsumeStats(end, offset, read_ms or 0, pull_offset=max(offset, handed_out))
        table[QueueRef(topic.name, broker.name, queue_id)] = progress
        await scan.next_queue()
    return table


def _rate(broker: Broker, group: str, topic: str) -> float:
    pulled = broker.counters.group_traffic(group, topic, broker.now_ms())
    return pulled.messages.minute.rate if pulled is not None else 0.0


async def query_time_spans(request: GetConsumeTimeSpans, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return the store times of each queue's ends and last consumed message, and the delay of its next message."""
    topic = broker.topics[request.topic]
    spans = []
    async with QueueScan(broker.scan_turn) as scan:
        for queue_id in range(topic.read_queues):
            spans.append(await _time_span(broker, request.group, Queue(topic.name, queue_id)))
            await scan.next_queue()
    return HandlerResponse.of(ConsumeTimeSpans(spans))


async def _time_span(broker: Broker, group: str, queue: Queue) -> QueueTimeSpan:
    first, end = broker.store.bounds_nowait(queue)
    offset = await broker.store.offsets.committed(group, queue) or 0

    async def stored_ms(at: int) -> int:
        found = await store_ms_at(broker.store, queue, at) if first <= at < end else None
        return NO_STORE_TIME_MS if found is None else found

    oldest_ms = await stored_ms(first)
    next_ms = await stored_ms(max(offset, first))
    return QueueTimeSpan(
        message_queue=QueueRef(queue.topic, broker.name, queue.id),
        min_time_stamp=oldest_ms,
        max_time_stamp=await stored_ms(end - 1),
        consume_time_stamp=await stored_ms(offset - 1) if offset > first else oldest_ms,
        delay_time=max(0, broker.now_ms() - next_ms) if next_ms != NO_STORE_TIME_MS else 0,
    )


async def list_topics_of_group(request: GetGroupTopics, broker: Broker, _call: RequestContext) -> HandlerResponse:
    return HandlerResponse.of(TopicList(await _topics_of(broker, request.group), str(broker.address)))


async def query_subscription(request: GetGroupSubscription, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return the group's subscription to the topic; empty if no consumer is online."""
    topic = request.topic or ""
    wanted = broker.clients.subscription_filter(request.group, topic)
    subscription = wanted.data if wanted is not None else None
    return HandlerResponse.of(bodies.GroupSubscription(request.group, topic, subscription))


async def query_corrections(request: GetCorrectedOffsets, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return the smallest offset of any group on each queue, where it is lower than that of the compared group.

    Groups in the filter are ignored, and so are offsets whose messages are deleted.
    """
    ignored = set((request.filter_groups or "").split(","))
    least: dict[int, int] = {}
    offsets = await broker.store.offsets.all()
    for (topic, group), committed in offsets.items():
        if topic != request.topic or group in ignored:
            continue
        for queue_id, offset in committed.items():
            if offset >= broker.store.bounds_nowait(Queue(topic, queue_id)).first:
                least[queue_id] = min(offset, least.get(queue_id, offset))
    for queue_id, offset in offsets.get((request.topic, request.compare_group), {}).items():
        if least.get(queue_id, NO_CORRECTION) > offset:
            least[queue_id] = NO_CORRECTION
    return HandlerResponse.of(bodies.CorrectedOffsets(least))


async def clone_offsets(request: CloneGroupOffsets, broker: Broker, _call: RequestContext) -> EmptyHeader:
    """Copy the offsets of one group to another, on one topic or on all topics that the source reads."""
    await broker.groups.get_or_create(request.to_group)
    offsets = await broker.store.offsets.all()
    names = [request.topic] if request.topic else await _topics_of(broker, request.from_group)
    topics = [broker.topics[name] for name in names]
    if not request.is_offline:
        topics = _read_by(broker, request.to_group, names)
    for topic in topics:
        for queue_id, offset in offsets.get((topic.name, request.from_group), {}).items():
            await broker.store.offsets.commit(request.to_group, Queue(topic.name, queue_id), offset)
    return EmptyHeader()


async def list_all_offsets(_request: EmptyHeader, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return all committed offsets, as a slave broker copies them."""
    async with broker.listing_turn:
        offsets = await broker.store.offsets.all()
        # In a thread: with thousands of groups, it takes long.
        return await asyncio.to_thread(_all_offsets, offsets)


def _all_offsets(offsets: Mapping[tuple[str, str], Mapping[int, QueueOffset]]) -> HandlerResponse:
    table = {f"{topic}@{group}": committed for (topic, group), committed in offsets.items()}
    return HandlerResponse.of(ConsumerOffsets(table))


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.GET_CONSUME_STATS: group_progress,
    RequestCode.GET_BROKER_CONSUME_STATS: broker_progress,
    RequestCode.QUERY_CONSUME_TIME_SPAN: query_time_spans,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: list_topics_of_group,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: query_subscription,
    RequestCode.QUERY_CORRECTION_OFFSET: query_corrections,
    RequestCode.CLONE_GROUP_OFFSET: clone_offsets,
    RequestCode.GET_ALL_CONSUMER_OFFSET: list_all_offsets,
}
