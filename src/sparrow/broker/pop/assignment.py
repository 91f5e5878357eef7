"""Queue assignment by the broker (400), and whether a consumer pulls or pops its queues (401).

The assignment uses the members that this broker knows, and the route from its name servers, because a topic may be on
several brokers. A popping consumer usually gets all queues of every broker as queue -1: pops share queues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sparrow.broker.clients.registry import BROADCASTING
from sparrow.broker.context import Broker
from sparrow.broker.routes import read_routes
from sparrow.model.errors import NotPermitted, Refused
from sparrow.model.protocol import PERM_READ, RETRY_TOPIC_PREFIX
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.bodies import QueueRef, RouteData
from sparrow.wire.bodies.pop import Assignment, Assignments, QueryAssignment, SetRequestMode
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import EmptyHeader

PULL, POP = "PULL", "POP"
ALL_QUEUES = -1
_PULLS = -(1 << 31)
"""The mark's value for a group and topic that pulls. Other values are the number of members that share queues."""

QueueAllocator = Callable[[Sequence[QueueRef], Sequence[str], str], list[QueueRef]]


async def query_assignment(_: EmptyHeader, broker: Broker, call: RequestContext) -> HandlerResponse:
    """Return the queues of one consumer.

    An answer without a list means that not everything is known yet: the consumer keeps its queues.
    """
    request = call.body(QueryAssignment)
    if request.strategy_name not in ALLOCATION_STRATEGIES:
        raise Refused(f"there is no strategy {request.strategy_name!r}: use one of {', '.join(ALLOCATION_STRATEGIES)}")
    queues = await _queues(broker, request.topic)
    group = broker.clients.consumers(request.consumer_group)
    if queues is None or group is None or request.client_id not in group.members:
        return HandlerResponse.of(Assignments(None))
    share_with = await _share_with(broker, request.consumer_group, request.topic)
    mode = PULL if share_with is None else POP
    if request.message_model == BROADCASTING:
        assigned, mode = queues, PULL
    else:
        share, clients = ALLOCATION_STRATEGIES[request.strategy_name], sorted(group.members)
        if share_with is None:
            assigned = share(queues, clients, request.client_id)
        else:
            assigned = allocate_for_pop(queues, clients, request.client_id, share_with=share_with, share=share)
    return HandlerResponse.of(Assignments([Assignment(queue, mode) for queue in assigned]))


async def set_request_mode(_: EmptyHeader, broker: Broker, call: RequestContext) -> EmptyHeader:
    request = call.body(SetRequestMode)
    if request.topic.startswith(RETRY_TOPIC_PREFIX):
        raise NotPermitted(f"setting the request mode of {request.topic!r}", "retry topics are always pulled")
    if request.mode not in (PULL, POP):
        raise Refused(f"{request.mode!r} is not a request mode: use {PULL} or {POP}")
    broker.topics[request.topic]
    await broker.groups.get_or_create(request.consumer_group)
    share_with = _PULLS if request.mode == PULL else max(request.pop_share_queue_num, ALL_QUEUES)
    await broker.store.marks.put(_mark(request.consumer_group, request.topic), share_with)
    return EmptyHeader()


async def _share_with(broker: Broker, group: str, topic: str) -> int | None:
    """Return with how many others a popping member shares its queues; 0 or less: with all. None: the group pulls."""
    if topic.startswith(RETRY_TOPIC_PREFIX):
        return None
    request = await broker.store.marks.get(_mark(group, topic))
    return None if request is None or request == _PULLS else request


def _mark(group: str, topic: str) -> str:
    return f"pop.mode {group} {topic}"


# -- allocation strategies: pure functions ----------------------------------------------------------------------------


def allocate_averagely(queues: Sequence[QueueRef], clients: Sequence[str], client: str) -> list[QueueRef]:
    """Allocate consecutive queues. The first clients get one more if the numbers do not divide."""
    index = clients.index(client)
    each, rest = divmod(len(queues), len(clients))
    start = index * each + min(index, rest)
    return list(queues[start : start + each + (index < rest)])


def allocate_by_circle(queues: Sequence[QueueRef], clients: Sequence[str], client: str) -> list[QueueRef]:
    """Allocate queues round robin."""
    return list(queues[clients.index(client) :: len(clients)])


ALLOCATION_STRATEGIES: Mapping[str, QueueAllocator] = {"AVG": allocate_averagely, "AVG_BY_CIRCLE": allocate_by_circle}


def allocate_for_pop(
    queues: Sequence[QueueRef], clients: Sequence[str], client: str, *, share_with: int, share: QueueAllocator
) -> list[QueueRef]:
    """Return all queues of every broker; with `share_with`, those of the client and of so many next clients."""
    if not queues:
        return []
    if share_with <= 0 or share_with >= len(clients) - 1:
        brokers = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [QueueRef(topic, broker, ALL_QUEUES) for topic, broker in brokers]
    if len(clients) > len(queues):  # more members than queues: each gets one
        return [queues[clients.index(client) % len(queues)]]
    index = clients.index(client)
    neighbours = [clients[(index + step) % len(clients)] for step in range(share_with + 1)]
    return list(dict.fromkeys(queue for each in neighbours for queue in share(queues, clients, each)))


# -- routes -----------------------------------------------------------------------------------------------------------


async def _queues(broker: Broker, topic: str) -> list[QueueRef] | None:
    """Return all readable queues of the topic, on every broker; None if no name server answers."""
    settings = broker.settings
    if not settings.name_servers:
        found = broker.topics.get(topic)
        if found is None or not found.is_readable:
            return None
        return [QueueRef(topic, broker.name, number) for number in range(found.read_queues)]
    access, timeout_ms = broker.name_server_access, settings.name_server_timeout_ms
    async for route in read_routes(access, settings.name_servers, topic, timeout_ms=timeout_ms):
        return _queues_in(topic, route)
    return None


def _queues_in(topic: str, route: RouteData) -> list[QueueRef]:
    return sorted(
        QueueRef(topic, data.broker_name, number)
        for data in route.queue_datas
        if data.perm & PERM_READ
        for number in range(data.read_queue_nums)
    )


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.QUERY_ASSIGNMENT: query_assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: set_request_mode,
}
