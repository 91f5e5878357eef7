"""Handlers that return a group's next messages without popping them, and the number of its parked pops."""

from __future__ import annotations

import asyncio

from sparrow.broker.consume.references import resolve_references
from sparrow.broker.context import Broker
from sparrow.broker.pop.fetch import QUEUES_A_STEP, PopFetcher
from sparrow.broker.pop.pop import ParkedPop
from sparrow.broker.pop.response import ANSWER_BYTES_MAX
from sparrow.broker.pop.validation import check_may_pop, check_message_count
from sparrow.model.queue import Queue
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.store.spi import Slice
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import GetPollingCount, GetPollingCountResponse, PeekMessage, PopMessageResponse


async def peek(request: PeekMessage, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return the group's next messages without putting them in flight."""
    broker.pop_state.check_available()
    check_message_count(request.messages_max)
    await broker.groups.get_or_create(request.group)
    check_may_pop(broker, request.group, request.topic, request.queue_id)
    slots_left, bytes_left, rest = request.messages_max, ANSWER_BYTES_MAX, 0
    records: list[memoryview] = []
    queues = PopFetcher(broker).queues(request.topic, request.queue_id)
    opening = broker.pop_state.load_positions(request.group, queues)
    if opening is not None:
        await opening
    for number, queue in enumerate(queues):
        if number % QUEUES_A_STEP == QUEUES_A_STEP - 1:
            await asyncio.sleep(0)  # others have a turn
        bounds = await broker.store.bounds(queue)
        at = max(broker.pop_state.position(request.group, queue) or 0, bounds.first)
        if slots_left > 0 and bytes_left > 0:
            found = await broker.store.read(queue, at, count_max=slots_left, bytes_max=bytes_left)
            found = await resolve_references(broker.store, found, bytes_max=bytes_left)
            if isinstance(found, Slice):
                records += found.buffers
                slots_left, bytes_left = slots_left - len(found.sizes), bytes_left - sum(found.sizes)
                at = found.next_offset
        rest += max(0, bounds.end - at)
    header = PopMessageResponse(pop_ms=broker.now_ms(), invisible_ms=0, revive_queue=0, rest=rest)
    if not records:
        return HandlerResponse(header, code=ResponseCode.PULL_NOT_FOUND, remark="there is no message for the group")
    return HandlerResponse(header, records, remark="FOUND")


async def count_polling(request: GetPollingCount, broker: Broker, _call: RequestContext) -> GetPollingCountResponse:
    """Return how many pops of the request's group are parked for this queue; for queue -1, those for all queues."""
    topic = broker.topics[request.topic]
    queue = Queue(topic.name, max(request.queue_id, 0))
    waiting = [parked for parked in broker.long_polls.parked_on(queue) if isinstance(parked, ParkedPop)]
    key = (request.group, request.queue_id)
    return GetPollingCountResponse(sum((parked.group, parked.queue_id) == key for parked in waiting))


HANDLERS: dict[int, RequestHandler[Broker]] = {RequestCode.PEEK_MESSAGE: peek, RequestCode.POLLING_INFO: count_polling}
