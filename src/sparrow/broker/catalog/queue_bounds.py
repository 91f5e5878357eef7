"""Where queues begin and end, and how large their newest messages are: of many topics, in one answer.

For readers that plan by ranges of offsets and look often. Sparrow's own request; others ask topic by topic
(GET_TOPIC_STATS_INFO).
"""

from __future__ import annotations

import asyncio

from sparrow.broker.admin.topics import QUEUES_PER_YIELD
from sparrow.broker.context import Broker
from sparrow.model.queue import Queue, QueueBounds
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.store.spi import Slice
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import EmptyHeader

SAMPLE_MESSAGES = 64
"""The newest messages that stand for the others of their queue. While fewer have come, the mean stays what it was."""
_SAMPLE_BYTES = 256 << 10
CACHED_MEANS_MAX = 1 << 17
"""Queues whose mean is kept; past it all are forgotten, and taken again when asked for."""


async def query_queue_bounds(_request: EmptyHeader, broker: Broker, call: RequestContext) -> HandlerResponse:
    """[queue id, first, end, mean size of a record] of every queue that can be read."""
    found: dict[str, list[tuple[int, int, int, int]]] = {}
    topics = [broker.topics[name] for name in dict.fromkeys(call.body(list[str]))]
    looked_at = 0
    for topic in topics:
        rows = found[topic.name] = []
        for queue_id in range(topic.read_queues):
            queue = Queue(topic.name, queue_id)
            bounds = await broker.store.bounds(queue)
            rows.append((queue_id, bounds.first, bounds.end, await _mean_bytes(broker, queue, bounds)))
            looked_at += 1
            if not looked_at % QUEUES_PER_YIELD:
                await asyncio.sleep(0)
    return HandlerResponse.of(found)


async def _mean_bytes(broker: Broker, queue: Queue, bounds: QueueBounds) -> int:
    """0 if there is nothing to go by."""
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
