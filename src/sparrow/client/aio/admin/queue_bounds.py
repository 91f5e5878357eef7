"""Bounds of the queues of topics, fetched from all their brokers at once, with one request each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import Unavailable
from sparrow.model.queue import QueueRef
from sparrow.wire import bodies
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import TopicRequest

_REQUESTS_MAX = 32
"""Requests for single topics that wait for a response at the same time."""


class SizedQueueBounds(msgspec.Struct, frozen=True, gc=False):
    """Offsets from `first` to before `end`, and the size of records."""

    first: int
    end: int
    mean_bytes: int
    """The mean size of the newest records; 0 if the broker does not report it."""


async def fetch_queue_bounds(
    session: ClientSession, topics: Iterable[str], *, timeout_ms: int | None = None, without_absent: bool = False
) -> dict[QueueRef, SizedQueueBounds]:
    """Return the bounds of every readable queue of these topics, in order; raise `UnknownTopic` if one does not exist.

    `without_absent`: skip the queues of brokers that cannot be reached.
    """
    names = list(dict.fromkeys(topics))
    routes = await asyncio.gather(*(_route(session, name) for name in names))
    asked: dict[tuple[str, str], list[TopicRoute]] = {}
    for route in routes:
        for broker in dict.fromkeys(queue.broker_name for queue in route.read_queues):
            address = route.address_of(broker)
            if address is None:
                raise Unavailable(f"the route of topic {route.topic!r} has no broker {broker!r}")
            asked.setdefault((broker, address), []).append(route)
    answers = await asyncio.gather(
        *(_of_broker(session, broker, address, some, timeout_ms) for (broker, address), some in asked.items()),
        return_exceptions=True,
    )
    found: dict[QueueRef, SizedQueueBounds] = {}
    for answer in answers:
        if not isinstance(answer, BaseException):
            found |= answer
        elif not (without_absent and isinstance(answer, Unavailable)):
            raise answer
    return dict(sorted(found.items()))


async def _route(session: ClientSession, topic: str) -> TopicRoute:
    return session.cached_route(topic) or await session.route(topic)


async def fetch_bounds_by_broker(
    session: ClientSession, topics: Mapping[str, Mapping[str, int]], masters: Mapping[str, str]
) -> dict[QueueRef, SizedQueueBounds]:
    """Return the bounds of all queues: broker name to topic to number of read queues. It needs no routes."""
    parts = await asyncio.gather(
        *(_of_topics(session, broker, masters[broker], some, None) for broker, some in topics.items())
    )
    return {queue: bounds for part in parts for queue, bounds in part.items()}


async def _of_broker(
    session: ClientSession, broker: str, address: str, routes: list[TopicRoute], timeout_ms: int | None
) -> dict[QueueRef, SizedQueueBounds]:
    topics = {route.topic: sum(queue.broker_name == broker for queue in route.read_queues) for route in routes}
    return await _of_topics(session, broker, address, topics, timeout_ms)


async def _of_topics(
    session: ClientSession, broker: str, address: str, topics: Mapping[str, int], timeout_ms: int | None
) -> dict[QueueRef, SizedQueueBounds]:
    """Fetch the bounds of topics, given with the number of their read queues on this broker."""
    body = bodies.write(list(topics))
    answer = await session.invoke_unchecked(address, RequestCode.QUERY_QUEUE_BOUNDS, None, body, timeout_ms=timeout_ms)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        limit = asyncio.Semaphore(_REQUESTS_MAX)
        answers = await asyncio.gather(
            *(_by_stats(session, broker, address, topic, count, timeout_ms, limit) for topic, count in topics.items())
        )
        return {queue: head for each in answers for queue, head in each.items()}
    if answer.code != ResponseCode.SUCCESS:
        raise error_for_response(answer.code, answer.remark)
    table = bodies.read(dict[str, list[tuple[int, int, int, int]]], answer.body)
    return {
        QueueRef(topic, broker, queue_id): SizedQueueBounds(first, end, mean_bytes)
        for topic, rows in table.items()
        for queue_id, first, end, mean_bytes in rows
    }


async def _by_stats(
    session: ClientSession,
    broker: str,
    address: str,
    topic: str,
    queues: int,
    timeout_ms: int | None,
    limit: asyncio.Semaphore,
) -> dict[QueueRef, SizedQueueBounds]:
    """Fetch the bounds from a broker that is not Sparrow's."""
    async with limit:
        answer = await session.invoke(
            address, RequestCode.GET_TOPIC_STATS_INFO, TopicRequest(topic), timeout_ms=timeout_ms
        )
    return {
        queue: SizedQueueBounds(max(bounds.min_offset, 0), max(bounds.max_offset, 0), 0)
        for queue, bounds in bodies.read(bodies.TopicStats, answer.body).offset_table.items()
        if queue.broker_name == broker and queue.queue_id < queues
    }
