"""The bounds and the mean record size of every queue of many topics, in one answer.

For readers that plan by offset ranges and ask often. This request is Sparrow's own; RocketMQ's clients ask topic by
topic (GET_TOPIC_STATS_INFO).
"""

from __future__ import annotations

import msgspec

from sparrow.broker.context import Broker
from sparrow.broker.query.queue_scan import QueueScan
from sparrow.model.queue import Queue, QueueBounds
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.store.spi import Slice
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import EmptyHeader

SAMPLE_MESSAGES = 64
"""How many of the newest messages the mean is computed from, and how many new ones cause it to be computed again."""
_SAMPLE_BYTES = 256 << 10
CACHED_MEANS_MAX = 1 << 17
"""The cache of means is cleared when it has this many queues."""


_write = msgspec.json.Encoder().encode
"""Not the encoder of other bodies, which knows the dialect and needs a third of a second for 65,536 queues."""


async def query_queue_bounds(_request: EmptyHeader, broker: Broker, call: RequestContext) -> HandlerResponse:
    """Return [queue id, first, end, mean record size] of every readable queue."""
    found: dict[str, list[tuple[int, int, int, int]]] = {}
    topics = [broker.topics[name] for name in dict.fromkeys(call.body(list[str]))]
    async with QueueScan(broker.scan_turn) as scan:
        for topic in topics:
            rows = found[topic.name] = []
            for queue_id in range(topic.read_queues):
                queue = Queue(topic.name, queue_id)
                bounds = await broker.store.bounds(queue)
                rows.append((queue_id, bounds.first, bounds.end, await _mean_bytes(broker, queue, bounds)))
                await scan.next_queue()
    return HandlerResponse(body=_write(found))


async def _mean_bytes(broker: Broker, queue: Queue, bounds: QueueBounds) -> int:
    """Return the mean record size, or 0 for an empty queue."""
    first, end = bounds
    if first == end:
        return 0
    means = broker.mean_record_bytes
    sampled_end, mean = means.get(queue, (-1, 0))
    if 0 <= end - sampled_end < SAMPLE_MESSAGES and mean:
        return mean
    found = await broker.store.read(
        queue, max(first, end - SAMPLE_MESSAGES), count_max=SAMPLE_MESSAGES, bytes_max=_SAMPLE_BYTES
    )
    if not isinstance(found, Slice) or not found.sizes:
        return mean
    if len(means) >= CACHED_MEANS_MAX:
        means.clear()
    mean = sum(found.sizes) // len(found.sizes)
    means[queue] = end, mean
    return mean


HANDLERS: dict[int, RequestHandler[Broker]] = {RequestCode.QUERY_QUEUE_BOUNDS: query_queue_bounds}
