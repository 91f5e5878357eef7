"""How far each consumer group has read each queue, and where queues begin and end."""

from __future__ import annotations

from sparrow.broker.context import Broker
from sparrow.model.errors import Refused, UnknownOffset
from sparrow.net.dispatcher import RequestContext, RequestHandler
from sparrow.store.spi import Slice
from sparrow.wire.codes import Code
from sparrow.wire.headers import (
    AskQueue,
    CommitOffset,
    Done,
    OffsetFound,
    QueryOffset,
    SearchOffset,
    StoreTimeFound,
)
from sparrow.wire.record import decode


async def query_offset(request: QueryOffset, broker: Broker, _call: RequestContext) -> OffsetFound:
    """The offset the group should read next."""
    committed = await broker.store.committed(request.group, request.queue)
    if committed is not None:
        return OffsetFound(committed)
    # A new group starts at 0 while message 0 is still there, as RocketMQ does for a young topic: any answer but
    # "unknown" overrides the consumer's own policy (first, last, time).
    if request.zero_if_unknown:
        first, end = await broker.store.bounds(request.queue)
        if first == 0 and end > 0:
            return OffsetFound(0)
    raise UnknownOffset(request.group, request.queue)


async def commit_offset(request: CommitOffset, broker: Broker, _call: RequestContext) -> Done:
    """Going backwards is allowed: it is how a group is rewound."""
    if request.offset < 0:
        raise Refused(f"{request.offset} is no offset: they start at 0")
    broker.topics[request.topic]
    await broker.groups.found_or_created(request.group)
    await broker.store.commit(request.group, request.queue, request.offset)
    return Done()


async def max_offset(request: AskQueue, broker: Broker, _call: RequestContext) -> OffsetFound:
    """The next offset to be given out, as consumers see it."""
    return OffsetFound((await broker.store.bounds(request.queue)).end)


async def min_offset(request: AskQueue, broker: Broker, _call: RequestContext) -> OffsetFound:
    return OffsetFound((await broker.store.bounds(request.queue)).first)


async def search_offset(request: SearchOffset, broker: Broker, _call: RequestContext) -> OffsetFound:
    return OffsetFound(await broker.store.offset_at(request.queue, request.time_ms, upper=request.wants_upper))


async def earliest_store_time(request: AskQueue, broker: Broker, _call: RequestContext) -> StoreTimeFound:
    """When the oldest message of the queue was stored; -1 if it has none."""
    first, _ = await broker.store.bounds(request.queue)
    found = await broker.store.read(request.queue, first, count_max=1)
    if not isinstance(found, Slice) or not found.sizes:
        return StoreTimeFound(-1)
    return StoreTimeFound(decode(found.tobytes(), verify_crc=False, expand=False).store_ms)


HANDLERS: dict[int, RequestHandler[Broker]] = {
    Code.QUERY_CONSUMER_OFFSET: query_offset,
    Code.UPDATE_CONSUMER_OFFSET: commit_offset,
    Code.GET_MAX_OFFSET: max_offset,
    Code.GET_MIN_OFFSET: min_offset,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: search_offset,
    Code.GET_EARLIEST_MSG_STORETIME: earliest_store_time,
}
