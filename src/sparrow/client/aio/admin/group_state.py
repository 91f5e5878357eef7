"""What brokers know of a group that is online: connections, subscriptions, assigned queues and delays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from sparrow.client.aio.admin.clusters import fetch_masters, gather_all
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import SparrowError
from sparrow.model.queue import QueueRef
from sparrow.wire import bodies, headers
from sparrow.wire.bodies import ConsumerConnections, QueueTimeSpan
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import (
    GetConsumerConnections,
    GetConsumerStatus,
    GetConsumeTimeSpans,
    OffsetResponse,
    QueryOffset,
    TopicRequest,
)

REQUESTS_MAX = 32
"""Requests about groups that wait for a response at the same time."""


async def fetch_connections(session: ClientSession, group: str) -> ConsumerConnections | None:
    """Return the connections and subscriptions of a group on all masters; None if no member is online."""
    masters = await fetch_masters(session)
    found = await gather_all(_connections_on(session, address, group) for address in masters.values())
    online = [each for each in found if each is not None]
    if not online:
        return None
    members = {member.client_id: member for each in online for member in each.connection_set}
    return ConsumerConnections(
        connection_set=[members[client_id] for client_id in sorted(members)],
        subscription_table={topic: data for each in online for topic, data in each.subscription_table.items()},
        consume_type=online[0].consume_type,
        message_model=online[0].message_model,
        consume_from_where=online[0].consume_from_where,
    )


async def count_members(session: ClientSession, groups: Iterable[str]) -> dict[str, int]:
    """Return how many members of each group are online. It costs a request for each group and master."""
    limit = asyncio.Semaphore(REQUESTS_MAX)

    async def count(group: str) -> int:
        async with limit:
            online = await fetch_connections(session, group)
        return len(online.connection_set) if online is not None else 0

    names = list(groups)
    return dict(zip(names, await gather_all(map(count, names)), strict=True))


async def fetch_assignment(session: ClientSession, group: str, route: TopicRoute) -> dict[QueueRef, str]:
    """Return which member reads each queue of a topic, as the members report it. Silent members are left out."""
    request = GetConsumerStatus(route.topic, group)

    async def ask(address: str) -> dict[str, dict[QueueRef, int]]:
        try:
            answer = await session.invoke(address, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, request)
        except SparrowError:  # no member is online here, or none responds: then it is not known
            return {}
        return bodies.read(bodies.ConsumerStatus, answer.body).consumer_table

    reports = await gather_all(map(ask, route.masters.values()))
    return {queue: client_id for report in reports for client_id, queues in report.items() for queue in queues}


async def fetch_time_spans(session: ClientSession, group: str, route: TopicRoute) -> dict[QueueRef, QueueTimeSpan]:
    """Return the store times of each queue's ends, and how long its next message has waited for the group."""
    request = GetConsumeTimeSpans(route.topic, group)
    answers = await gather_all(
        session.invoke_unchecked(address, RequestCode.QUERY_CONSUME_TIME_SPAN, request)
        for address in route.masters.values()
    )
    spans = [
        span
        for answer in answers
        if answer.code == ResponseCode.SUCCESS
        for span in bodies.read(bodies.ConsumeTimeSpans, answer.body).consume_time_span_set
    ]
    return {span.message_queue: span for span in spans}


async def fetch_committed(session: ClientSession, group: str, route: TopicRoute) -> dict[QueueRef, int]:
    """Return the committed offset of each queue of a topic. Queues without one are left out."""
    queues = [queue for queue in route.read_queues if queue.broker_name in route.masters]
    answers = await gather_all(
        session.invoke_unchecked(
            route.masters[queue.broker_name],
            RequestCode.QUERY_CONSUMER_OFFSET,
            QueryOffset(group, queue.topic, queue.queue_id, False, queue.broker_name),
        )
        for queue in queues
    )
    return {
        queue: headers.read(OffsetResponse, answer.ext).offset
        for queue, answer in zip(queues, answers, strict=True)
        if answer.code == ResponseCode.SUCCESS
    }


async def fetch_groups_of_topic(session: ClientSession, route: TopicRoute) -> list[str]:
    """Return the groups that subscribe to a topic now, or have committed offsets on it."""
    answers = await gather_all(
        session.invoke(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequest(route.topic))
        for address in route.masters.values()
    )
    return sorted({group for answer in answers for group in bodies.read(bodies.GroupList, answer.body).group_list})


async def _connections_on(session: ClientSession, address: str, group: str) -> ConsumerConnections | None:
    request = GetConsumerConnections(group)
    answer = await session.invoke_unchecked(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, request)
    if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise error_for_response(answer.code, answer.remark)
    return bodies.read(ConsumerConnections, answer.body)
