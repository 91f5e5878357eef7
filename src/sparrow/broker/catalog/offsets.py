"""Handlers for committed offsets of groups, for the bounds of a queue, and for offsets by store time."""

from __future__ import annotations

from sparrow.broker.context import Broker
from sparrow.model.errors import OffsetConflict, Refused, UnknownOffset
from sparrow.net.dispatcher import RequestContext, RequestHandler
from sparrow.store.spi import Slice
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import (
    CommitOffset,
    EmptyHeader,
    OffsetResponse,
    QueryOffset,
    QueueRequest,
    SearchOffset,
    StoreTimeResponse,
)
from sparrow.wire.record import decode


async def query_offset(request: QueryOffset, broker: Broker, _call: RequestContext) -> OffsetResponse:
    """Return the offset that the group should read next."""
    committed = await broker.store.offsets.committed(request.group, request.queue)
    if committed is not None:
        return OffsetResponse(committed)
    # A new group starts at 0 while no message was deleted, as in RocketMQ for a young topic. Any offset in the answer
    # overrides the consumer's own start policy (first, last, time). An empty queue is answered alike: a client that is
    # told "unknown" asks for the end next, and would skip a message that arrives in between.
    topic = broker.topics.get(request.topic)
    if request.zero_if_unknown and topic is not None and 0 <= request.queue_id < topic.read_queues:
        first, _ = await broker.store.bounds(request.queue)
        if first == 0:
            return OffsetResponse(0)
    raise UnknownOffset(request.group, request.queue)


async def commit_offset(request: CommitOffset, broker: Broker, _call: RequestContext) -> EmptyHeader:
    """Commit an offset. A smaller offset than before rewinds the group.

    With an expected offset, nothing is committed if the committed one is another. Members do not know of a reset before
    their next pull, so that their other commits are ignored until then.
    """
    if request.offset < 0:
        raise Refused(f"{request.offset} is not an offset: offsets start at 0")
    topic, queue_id = broker.topics[request.topic], request.queue_id
    is_known = 0 <= queue_id < max(topic.read_queues, topic.write_queues)
    # A queue that the topic had before it was narrowed is not empty.
    if not is_known and (queue_id < 0 or (await broker.store.bounds(request.queue)).end == 0):
        raise Refused(f"topic {request.topic!r} has no queue {queue_id}")
    await broker.groups.get_or_create(request.group)
    offsets, expected = broker.store.offsets, request.expected_offset
    if expected is None:
        if (request.group, request.queue) not in broker.positions.resets:
            await offsets.commit(request.group, request.queue, request.offset)
    elif not await offsets.commit_if(
        request.group, request.queue, request.offset, expected=expected if expected >= 0 else None
    ):
        raise OffsetConflict(request.group, request.queue, expected)
    return EmptyHeader()


async def max_offset(request: QueueRequest, broker: Broker, _call: RequestContext) -> OffsetResponse:
    """Return the end of a queue: the offset of the next message."""
    return OffsetResponse((await broker.store.bounds(request.queue)).end)


async def min_offset(request: QueueRequest, broker: Broker, _call: RequestContext) -> OffsetResponse:
    return OffsetResponse((await broker.store.bounds(request.queue)).first)


async def search_offset(request: SearchOffset, broker: Broker, _call: RequestContext) -> OffsetResponse:
    return OffsetResponse(await broker.store.offset_at(request.queue, request.time_ms, upper=request.wants_upper))


async def earliest_store_time(request: QueueRequest, broker: Broker, _call: RequestContext) -> StoreTimeResponse:
    """Return the store time of the oldest message of a queue, or -1 if the queue is empty."""
    first, _ = await broker.store.bounds(request.queue)
    found = await broker.store.read(request.queue, first, count_max=1)
    if not isinstance(found, Slice) or not found.sizes:
        return StoreTimeResponse(-1)
    return StoreTimeResponse(decode(found.tobytes(), verify_crc=False, expand=False).store_ms)


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: commit_offset,
    RequestCode.GET_MAX_OFFSET: max_offset,
    RequestCode.GET_MIN_OFFSET: min_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: earliest_store_time,
}
