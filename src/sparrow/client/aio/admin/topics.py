"""Topics: creation, deletion, the bounds of their queues, and offsets by time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from sparrow.client.aio.admin.clusters import fetch_masters, gather_all
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import Refused, Unavailable, UnknownTopic
from sparrow.model.priority import LANE_COUNT, LANES_SYS_FLAG
from sparrow.model.protocol import AUTO_CREATE_TOPIC
from sparrow.model.queue import QueueBounds, QueueOffset, QueueRef
from sparrow.model.topic import validate_topic_name
from sparrow.wire import bodies, headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import DeleteTopic, OffsetResponse, QueueRequest, SearchOffset, TopicRequest, UpdateTopic

NEWEST_MS = -1
"""As a time: the end of the queue."""
_ROUTE_POLL_S = 0.01
"""How often the name server is asked for a route that is about to appear."""


async def fetch_topics(session: ClientSession) -> list[str]:
    """Return the names of all topics of all brokers, system topics included."""
    answer = await session.invoke_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    return sorted(bodies.read(bodies.TopicList, answer.body).topic_list)


async def create_topic(
    session: ClientSession,
    name: str,
    queues: int,
    *,
    cluster: str | None,
    brokers: Iterable[str] | None,
    permission: int,
    has_lanes: bool,
    attributes: str | None = None,
) -> TopicRoute:
    """Create or change a topic on masters, and wait until the name server lists it there."""
    validate_topic_name(name)
    masters = await fetch_masters(session, cluster, brokers)
    read_queues, sys_flag = (queues * LANE_COUNT, LANES_SYS_FLAG) if has_lanes else (queues, 0)
    header = UpdateTopic(
        name, AUTO_CREATE_TOPIC, read_queues, queues, permission, "SINGLE_TAG", False, sys_flag, attributes
    )
    await gather_all(
        session.invoke(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header) for address in masters.values()
    )
    return await _registered_route(session, name, masters)


async def _registered_route(session: ClientSession, topic: str, masters: Mapping[str, str]) -> TopicRoute:
    """Return the route once it contains all these brokers, which register the topic on their own."""
    try:
        async with asyncio.timeout(session.timeout_ms / 1000):
            while True:
                try:
                    route = await session.route(topic, is_fresh=True)
                    if masters.keys() <= route.masters.keys():
                        return route
                except UnknownTopic:
                    pass
                await asyncio.sleep(_ROUTE_POLL_S)
    except TimeoutError as cause:
        raise Unavailable(
            f"topic {topic!r} is created, but the name server did not list it on all of {', '.join(masters)} "
            f"within {session.timeout_ms} ms"
        ) from cause


async def delete_topic(session: ClientSession, name: str, *, cluster: str | None) -> None:
    """Delete a topic from all masters and from the name servers."""
    masters = await fetch_masters(session, cluster)
    await gather_all(
        session.invoke(address, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic(name)) for address in masters.values()
    )
    header = DeleteTopic(name, cluster)
    await gather_all(
        session.invoke(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, header) for address in session.name_servers
    )


async def fetch_topic_bounds(session: ClientSession, topic: str) -> dict[QueueRef, QueueBounds]:
    """Return the first and the end offset of each queue."""
    route = await session.route(topic, is_fresh=True)
    addresses = [address for name in route.addresses if (address := route.address_of(name)) is not None]
    answers = await gather_all(
        session.invoke(address, RequestCode.GET_TOPIC_STATS_INFO, TopicRequest(topic)) for address in addresses
    )
    found: dict[QueueRef, QueueBounds] = {}
    for answer in answers:
        for queue, bounds in bodies.read(bodies.TopicStats, answer.body).offset_table.items():
            found[queue] = QueueBounds(QueueOffset(max(bounds.min_offset, 0)), QueueOffset(bounds.max_offset))
    return dict(sorted(found.items()))


async def fetch_offset_at(session: ClientSession, queue: QueueRef, time_ms: int, *, upper: bool) -> int:
    """Return the first offset stored at or after a time; with `upper`, the last one at or before it."""
    route = await session.route(queue.topic)
    address = route.address_of(queue.broker_name)
    if address is None:
        raise Refused(f"topic {queue.topic!r} is not on broker {queue.broker_name!r}")
    return await search_offset(session, address, queue, time_ms, upper=upper)


async def search_offset(
    session: ClientSession, address: str, queue: QueueRef, time_ms: int, *, upper: bool = False
) -> int:
    """Return the offset for a time from the broker at an address."""
    if time_ms == NEWEST_MS:
        request = QueueRequest(queue.topic, queue.queue_id, queue.broker_name)
        answer = await session.invoke(address, RequestCode.GET_MAX_OFFSET, request)
    else:
        boundary = "UPPER" if upper else "LOWER"
        search = SearchOffset(queue.topic, queue.queue_id, time_ms, boundary, queue.broker_name)
        answer = await session.invoke(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
    return headers.read(OffsetResponse, answer.ext).offset
