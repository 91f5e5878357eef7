"""Resend: deliver messages of a topic again to one group or to all its readers, as references in their retry topics.

A reference (see `references`) names a stored message, which is not copied. A group's progress in its retry topic is
the progress of the resend.

1. Nothing is stored before the request has been validated for every group.
2. References are stored some hundreds at a time, and other tasks run in between. The answer follows when all are
   stored. A broker that stops in between has resent the first ones.
3. A group that is online gets only messages that match its subscription.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from sparrow.broker.catalog.groups import SYSTEM_GROUPS
from sparrow.broker.clients.registry import BROADCASTING
from sparrow.broker.clients.subscriptions import SubscriptionFilter
from sparrow.broker.consume.references import make_reference
from sparrow.broker.context import Broker
from sparrow.broker.pop import receipt_handles
from sparrow.model.errors import Refused
from sparrow.model.message import Draft
from sparrow.model.priority import LANES_SYS_FLAG, parse_priority, priority_of_queue
from sparrow.model.protocol import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from sparrow.model.queue import Queue
from sparrow.model.topic import Group, Topic
from sparrow.net.dispatcher import RequestContext, RequestHandler
from sparrow.store.spi import AtEnd, Moved, Slice
from sparrow.wire import record
from sparrow.wire.codes import RequestCode
from sparrow.wire.hashes import tags_code_in
from sparrow.wire.headers import ResendMessages, ResendMessagesResponse

REFERENCES_PER_CHUNK = 500
"""References that are stored without yielding to other tasks: a few milliseconds."""
CHUNK_BYTES_MAX = 4 << 20
KEY_MATCHES_MAX = 1000
"""Stores do not search for more messages of one key. Such messages are resent by time or by offsets."""


class ResendSpan(NamedTuple):
    """Consecutive messages of one queue; `end` is exclusive."""

    queue: Queue
    begin: int
    end: int


class ResendSelection(NamedTuple):
    spans: list[ResendSpan]
    missing: int
    """How many of the requested messages are deleted."""


class ResendTarget(NamedTuple):
    """A group that gets the messages."""

    group: Group
    queue: Queue
    wanted: SubscriptionFilter | None
    """None: everything."""


async def resend(request: ResendMessages, broker: Broker, call: RequestContext) -> ResendMessagesResponse:
    """Resend the requested messages. Return how many there are, how many are deleted, and which groups get them."""
    topic = _checked_topic(request, broker)
    selection = await _selected(request, topic, broker)
    targets = [await _target(group, topic, broker) for group in await _groups(request, topic, broker)]
    if not request.is_forced:
        await _check_already_read(selection, targets, broker)
    count, missing = 0, selection.missing
    # A database has tables for ranges; the leader turns them into references.
    stores_now = broker.resender is None and not request.is_dry_run
    if targets:
        for target in targets if not request.is_dry_run else ():
            await broker.topics.create_for_group(
                RETRY_TOPIC_PREFIX, target.queue.topic.removeprefix(RETRY_TOPIC_PREFIX)
            )
        for span in selection.spans:
            found = 0
            async for records in _chunks(span, broker):
                found += len(records)
                count += await _store(records, topic.name, targets, broker, is_dry_run=not stores_now)
                await asyncio.sleep(0)
            missing += span.end - span.begin - found
            if broker.resender is not None and not request.is_dry_run:
                readers = [target.group.name for target in targets]
                await broker.resender.request(
                    span.queue,
                    span.begin,
                    span.end,
                    group=request.group,
                    readers=readers,
                    token=broker.token_of(call.command),
                )
    return ResendMessagesResponse(count, missing, ",".join(target.group.name for target in targets))


# -- selection of messages --------------------------------------------------------------------------------------------


def _checked_topic(request: ResendMessages, broker: Broker) -> Topic:
    topic = broker.topics[request.topic]
    if topic.name.startswith(DLQ_TOPIC_PREFIX):
        raise Refused(f"{topic.name!r} is a dead-letter topic: redrive its messages instead of resending them")
    if topic.name.startswith(RETRY_TOPIC_PREFIX) or broker.topics.is_system(topic.name):
        raise Refused(f"messages of {topic.name!r} cannot be resent: name the topic they were sent to")
    return topic


async def _selected(request: ResendMessages, topic: Topic, broker: Broker) -> ResendSelection:
    by_offsets = request.begin is not None or request.end is not None
    by_time = request.from_ms is not None or request.to_ms is not None
    if request.keys is None and not by_offsets and not by_time:
        raise Refused("no messages selected: give offsets (begin and end), keys, or times (from and to)")
    if by_offsets:
        if request.keys is not None:
            raise Refused("give offsets or keys, not both")
        if by_time:
            raise Refused("give offsets or times, not both")
        return await _by_offsets(request, topic, broker)
    if request.queue_id is not None:
        raise Refused("a queue can only be given with offsets: times and keys apply to all queues")
    begin_ms, end_ms = request.from_ms or 0, request.to_ms if request.to_ms is not None else 1 << 62
    if begin_ms > end_ms:
        raise Refused(f"the time range ends ({end_ms} ms) before it begins ({begin_ms} ms)")
    queues = _queues(request, topic)
    if request.keys is not None:
        return await _by_keys(request.keys.split(), begin_ms, end_ms, queues, broker)
    spans = [
        ResendSpan(queue, await broker.store.offset_at(queue, begin_ms), await broker.store.offset_at(queue, end_ms))
        for queue in queues
    ]
    return ResendSelection([span for span in spans if span.begin < span.end], 0)


async def _by_offsets(request: ResendMessages, topic: Topic, broker: Broker) -> ResendSelection:
    begin, last = request.begin, request.end
    if begin is None or last is None:
        raise Refused("a range of offsets needs both begin and end (inclusive)")
    if begin > last or begin < 0:
        raise Refused(f"{begin} to {last} is not a range of offsets: begin must be 0 or more, and not above end")
    if request.queue_id is None and request.priority is None and topic.read_queues > 1:
        raise Refused(f"offsets need a queue: topic {topic.name!r} has {topic.read_queues} queues")
    spans, missing, ends = [], 0, []
    for queue in _queues(request, topic):
        first, end = await broker.store.bounds(queue)
        ends.append(int(end))
        span = ResendSpan(queue, max(begin, first), min(last + 1, end))
        missing += max(0, min(last + 1, first) - begin)
        if span.begin < span.end:
            spans.append(span)
    if begin >= max(ends):
        raise Refused(f"offset {begin} does not exist yet: the last message has offset {max(ends) - 1}")
    return ResendSelection(spans, missing)


async def _by_keys(keys: list[str], begin_ms: int, end_ms: int, queues: list[Queue], broker: Broker) -> ResendSelection:
    if not keys:
        raise Refused("the list of keys is empty")
    wanted, positions = set(queues), set[tuple[Queue, int]]()
    for key in keys:
        found = await broker.store.find_by_key(
            queues[0].topic, key, limit=KEY_MATCHES_MAX, begin_ms=begin_ms, end_ms=max(end_ms - 1, 0)
        )
        if len(found) >= KEY_MATCHES_MAX:
            raise Refused(f"{KEY_MATCHES_MAX} messages or more have the key {key!r}: add a time range, or give offsets")
        for raw in found:
            message = record.decode(raw, verify_crc=False, expand=False)
            if message.queue in wanted:
                positions.add((message.queue, message.queue_offset))
    return ResendSelection(_merged(sorted(positions)), 0)


def _merged(positions: list[tuple[Queue, int]]) -> list[ResendSpan]:
    """Merge consecutive messages into spans."""
    spans: list[ResendSpan] = []
    for queue, offset in positions:
        if spans and spans[-1].queue == queue and spans[-1].end == offset:
            spans[-1] = spans[-1]._replace(end=offset + 1)
        else:
            spans.append(ResendSpan(queue, offset, offset + 1))
    return spans


def _queues(request: ResendMessages, topic: Topic) -> list[Queue]:
    """Return one queue, those of a lane, or all, including queues that are not written or read any more."""
    count = max(topic.read_queues, topic.write_queues)
    ids = list(range(count))
    if request.queue_id is not None:
        if not 0 <= request.queue_id < count:
            raise Refused(f"topic {topic.name!r} has no queue {request.queue_id}: its queues are 0 to {count - 1}")
        ids = [request.queue_id]
    if request.priority is not None:
        if not topic.sys_flag & LANES_SYS_FLAG:
            raise Refused(f"topic {topic.name!r} has no priorities: give a queue")
        priority = parse_priority(request.priority)
        if request.queue_id is not None and (own := priority_of_queue(request.queue_id)) != priority:
            raise Refused(f"queue {request.queue_id} has the priority {own.label}, not {priority.label}")
        ids = [each for each in ids if priority_of_queue(each) == priority]
    return [Queue(topic.name, each) for each in ids]


# -- target groups ----------------------------------------------------------------------------------------------------


async def _groups(request: ResendMessages, topic: Topic, broker: Broker) -> list[Group]:
    if request.group is not None:
        group = broker.groups[request.group]
        if (why := _why_not(group, broker)) is not None:
            raise Refused(f"cannot resend to group {group.name!r}: {why}")
        return [group]
    readers = sorted({group for name, group in await broker.store.offsets.all() if name == topic.name})
    durable = [broker.groups.get(name) for name in readers if name not in SYSTEM_GROUPS]
    return [group for group in durable if group is not None and _why_not(group, broker) is None]


def _why_not(group: Group, broker: Broker) -> str | None:
    """Return why nothing can be resent to a group; None if it can."""
    if not group.may_consume:
        return "its configuration forbids consuming"
    online = broker.clients.consumers(group.name)
    if online is not None and online.message_model == BROADCASTING:
        return "it broadcasts, and broadcasting members read no retry topic"
    return None


async def _target(group: Group, topic: Topic, broker: Broker) -> ResendTarget:
    """Return the retry topic of a group: one for all topics if it pulls, one for each topic if it pops.

    A group with a subscription pulls the former, even a Java consumer that pops the topic itself. Of a group without
    one, a mark says whether it has ever popped the topic.
    """
    wanted = broker.clients.subscription_filter(group.name, topic.name)
    pops = (
        wanted is None
        and await broker.store.marks.get(receipt_handles.pop_begun_mark(group.name, topic.name)) is not None
    )
    name = receipt_handles.pop_retry_topic(group.name, topic.name) if pops else RETRY_TOPIC_PREFIX + group.name
    return ResendTarget(group, Queue(name, 0), wanted)


async def _check_already_read(selection: ResendSelection, targets: list[ResendTarget], broker: Broker) -> None:
    """Refuse messages that a group has not read yet: it gets them anyway."""
    for target in targets:
        for queue, _, end in selection.spans:
            committed = await broker.store.offsets.committed(target.group.name, queue)
            if committed is None or committed < end:
                at = "has read nothing" if committed is None else f"is at offset {committed}"
                raise Refused(
                    f"group {target.group.name!r} {at} of {queue}, and would get messages up to {end - 1} "
                    "twice: wait until it has read them, or force it"
                )


# -- storing references -----------------------------------------------------------------------------------------------


async def _chunks(span: ResendSpan, broker: Broker) -> AsyncIterator[list[memoryview]]:
    """Yield the records of a span that are not deleted."""
    offset = span.begin
    while offset < span.end:
        found = await broker.store.read(
            span.queue, offset, count_max=min(REFERENCES_PER_CHUNK, span.end - offset), bytes_max=CHUNK_BYTES_MAX
        )
        match found:
            case Slice():
                yield list(found.records())
                offset = found.next_offset
            case Moved(to=to) if to > offset:
                offset = to
            case Moved() | AtEnd():
                return


async def _store(
    records: list[memoryview], topic: str, targets: list[ResendTarget], broker: Broker, *, is_dry_run: bool
) -> int:
    """Append references for the targets. Return how many of the records match at least one."""
    drafts: list[list[Draft]] = [[] for _ in targets]
    count = 0
    for raw in records:
        properties = record.properties_of(raw)
        code = tags_code_in(properties)
        receivers = [
            which
            for which, target in enumerate(targets)
            if target.wanted is None or target.wanted.matches(code, properties)
        ]
        if receivers:
            count += 1
            draft = make_reference(raw, topic, properties)
            for which in receivers:
                drafts[which].append(draft)
    if not is_dry_run:
        for target, some in zip(targets, drafts, strict=True):
            if some:
                await broker.store.append(target.queue, some)
    return count


HANDLERS: dict[int, RequestHandler[Broker]] = {RequestCode.RESEND_MESSAGES: resend}
