"""Which queues a consumer shall read, worked out by the broker (400), and whether it pulls or pops them (401).

The broker counts on the members it has heard of, and on the route that its name servers know: a topic may lie on other
brokers, too. Who pops usually gets all queues of every broker, as queue -1: pops share queues without dividing them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sparrow.broker.clients.registry import BROADCASTING
from sparrow.broker.context import Broker
from sparrow.model.errors import NotPermitted, Refused, SparrowError
from sparrow.model.protocol import PERM_READ, RETRY_TOPIC_PREFIX
from sparrow.net.address import parse_addresses
from sparrow.net.channel import connect
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire import bodies
from sparrow.wire.bodies import QueueRef, RouteData
from sparrow.wire.bodies.pop import Assignment, Assignments, QueryAssignment, SetRequestMode
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import EmptyHeader, GetRoute

PULL, POP = "PULL", "POP"
ALL_QUEUES = -1
_PULLS = -(1 << 31)
"""In the mark of a group and topic that was set to pull. Any other number is with how many others each member shares
its queues."""

QueueAllocator = Callable[[Sequence[QueueRef], Sequence[str], str], list[QueueRef]]


async def query_assignment(_: EmptyHeader, broker: Broker, call: RequestContext) -> HandlerResponse:
    """The queues of one consumer. No list at all says: skip this time, not all is known yet."""
    asked = call.body(QueryAssignment)
    if asked.strategy_name not in ALLOCATION_STRATEGIES:
        raise Refused(f"there is no strategy {asked.strategy_name!r}: there are {', '.join(ALLOCATION_STRATEGIES)}")
    queues = await _queues(broker, asked.topic)
    group = broker.clients.consumers(asked.consumer_group)
    if queues is None or group is None or asked.client_id not in group.members:
        return HandlerResponse.of(Assignments(None))
    share_with = await _share_with(broker, asked.consumer_group, asked.topic)
    mode = PULL if share_with is None else POP
    if asked.message_model == BROADCASTING:
        mine, mode = queues, PULL
    else:
        share, clients = ALLOCATION_STRATEGIES[asked.strategy_name], sorted(group.members)
        if share_with is None:
            mine = share(queues, clients, asked.client_id)
        else:
            mine = allocate_for_pop(queues, clients, asked.client_id, share_with=share_with, share=share)
    return HandlerResponse.of(Assignments([Assignment(queue, mode) for queue in mine]))


async def set_request_mode(_: EmptyHeader, broker: Broker, call: RequestContext) -> EmptyHeader:
    said = call.body(SetRequestMode)
    if said.topic.startswith(RETRY_TOPIC_PREFIX):
        raise NotPermitted(f"setting how {said.topic!r} is read", "retry topics are always pulled")
    if said.mode not in (PULL, POP):
        raise Refused(f"{said.mode!r} is no mode: there are {PULL} and {POP}")
    broker.topics[said.topic]
    await broker.groups.get_or_create(said.consumer_group)
    share_with = _PULLS if said.mode == PULL else max(said.pop_share_queue_num, ALL_QUEUES)
    await broker.store.marks.put(_mark(said.consumer_group, said.topic), share_with)
    return EmptyHeader()


async def _share_with(broker: Broker, group: str, topic: str) -> int | None:
    """With how many others a popping member shares its queues, 0 or less: with all. None: they pull."""
    if topic.startswith(RETRY_TOPIC_PREFIX):
        return None
    said = await broker.store.marks.get(_mark(group, topic))
    return None if said is None or said == _PULLS else said


def _mark(group: str, topic: str) -> str:
    return f"pop.mode {group} {topic}"


# -- sharing: pure ----------------------------------------------------------------------------------------------------


def allocate_averagely(queues: Sequence[QueueRef], clients: Sequence[str], client: str) -> list[QueueRef]:
    """A run of neighbouring queues each; the first clients get one more when it does not come out even."""
    index = clients.index(client)
    each, left = divmod(len(queues), len(clients))
    start = index * each + min(index, left)
    return list(queues[start : start + each + (index < left)])


def allocate_by_circle(queues: Sequence[QueueRef], clients: Sequence[str], client: str) -> list[QueueRef]:
    """Dealt out one by one, like cards."""
    return list(queues[clients.index(client) :: len(clients)])


ALLOCATION_STRATEGIES: Mapping[str, QueueAllocator] = {"AVG": allocate_averagely, "AVG_BY_CIRCLE": allocate_by_circle}


def allocate_for_pop(
    queues: Sequence[QueueRef], clients: Sequence[str], client: str, *, share_with: int, share: QueueAllocator
) -> list[QueueRef]:
    """All queues of every broker; or, when a number is set, one's own and those of so many that follow in the list."""
    if not queues:
        return []
    if share_with <= 0 or share_with >= len(clients) - 1:
        brokers = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [QueueRef(topic, broker, ALL_QUEUES) for topic, broker in brokers]
    if len(clients) > len(queues):  # fewer queues than members: nobody goes without
        return [queues[clients.index(client) % len(queues)]]
    index = clients.index(client)
    neighbours = [clients[(index + step) % len(clients)] for step in range(share_with + 1)]
    return list(dict.fromkeys(queue for each in neighbours for queue in share(queues, clients, each)))


# -- routes -----------------------------------------------------------------------------------------------------------


async def _queues(broker: Broker, topic: str) -> list[QueueRef] | None:
    """All queues of the topic that can be read, on whatever broker; None when that cannot be found out just now."""
    name_servers = parse_addresses(broker.settings.name_servers)
    if not name_servers:
        found = broker.topics.get(topic)
        if found is None or not found.is_readable:
            return None
        return [QueueRef(topic, broker.name, number) for number in range(found.read_queues)]
    timeout_ms = broker.settings.name_server_timeout_ms
    for address in name_servers:
        try:
            channel = await connect(address, timeout_ms=timeout_ms)
            try:
                answer = await channel.request(
                    RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute(topic), timeout_ms=timeout_ms
                )
            finally:
                channel.close()
            if answer.code == ResponseCode.SUCCESS:
                return _queues_in(topic, bodies.read(RouteData, answer.body))
        except SparrowError:
            continue
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
