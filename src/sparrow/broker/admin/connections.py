"""Lists of connected producers and consumers."""

from __future__ import annotations

from sparrow.broker.clients.registry import OnlineClient
from sparrow.broker.context import Broker
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire import bodies
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import EmptyHeader, GetConsumerConnections, GetProducerConnections


async def list_consumer_connections(
    request: GetConsumerConnections, broker: Broker, _: RequestContext
) -> HandlerResponse:
    group = broker.clients.consumers(request.group)
    if group is None:
        remark = f"no consumer of group {request.group!r} is online"
        return HandlerResponse(code=ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
    return HandlerResponse.of(
        bodies.ConsumerConnections(
            connection_set=[_connection(member) for member in group.members.values()],
            subscription_table={topic: found.data for topic, found in group.subscriptions.items()},
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
    )


async def list_producer_connections(
    request: GetProducerConnections, broker: Broker, _: RequestContext
) -> HandlerResponse:
    members = broker.clients.producers(request.group)
    if not members:
        return HandlerResponse(
            code=ResponseCode.SYSTEM_ERROR, remark=f"no producer of group {request.group!r} is online"
        )
    return HandlerResponse.of(bodies.ProducerConnections([_connection(member) for member in members]))


async def list_all_producers(_: EmptyHeader, broker: Broker, __: RequestContext) -> HandlerResponse:
    return HandlerResponse.of(
        bodies.ProducerTable(
            {
                group: [_entry(member, broker) for member in members]
                for group, members in broker.clients.producer_groups().items()
            }
        )
    )


def _connection(member: OnlineClient) -> bodies.ClientConnection:
    return bodies.ClientConnection(member.client_id, member.channel.address, member.language.name, member.version)


def _entry(member: OnlineClient, broker: Broker) -> bodies.ProducerEntry:
    return bodies.ProducerEntry(
        client_id=member.client_id,
        remote_ip=member.channel.address,
        language=member.language.name,
        version=member.version,
        last_update_timestamp=broker.now_ms() - (broker.monotonic_ms() - member.seen_ms),
    )


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.GET_CONSUMER_CONNECTION_LIST: list_consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: list_producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: list_all_producers,
}
