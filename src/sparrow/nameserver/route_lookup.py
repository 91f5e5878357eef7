"""Handlers of clients and tools: routes, lists of topics and clusters, and changes of topics."""

from __future__ import annotations

from sparrow.model.protocol import ORDER_TOPIC_NAMESPACE
from sparrow.nameserver.context import NameServerContext
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import HandlerResponse, InlineHandler, RequestContext, RequestHandler, encode_response
from sparrow.wire import headers
from sparrow.wire.bodies import RouteData, TopicList
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import (
    AddWritePermissionResponse,
    ChangeWritePermission,
    DeleteTopic,
    EmptyHeader,
    GetClusterTopics,
    GetRoute,
    TopicRequest,
    WipeWritePermissionResponse,
)

_TOPIC_CHARS_SHOWN = 255


def route_handler(context: NameServerContext) -> InlineHandler:
    """Return the inline handler of route requests.

    Every client sends one per topic every 30 s, and the encoded body is usually cached.
    """

    def route(command: RemotingCommand, _: Channel) -> bytes | None:
        topic = headers.read(GetRoute, command.ext).topic
        order = context.kv.get(ORDER_TOPIC_NAMESPACE, topic) if context.is_order_message_enabled else None
        body = context.routes.encoded_route(topic, order)
        return encode_response(
            command, HandlerResponse(body=body) if body is not None else _unknown(topic[:_TOPIC_CHARS_SHOWN])
        )

    return route


def _unknown(topic: str) -> HandlerResponse:
    # On this code producers try the auto-create topic instead. The first line is RocketMQ's.
    remark = (
        f"No topic route info in name server for the topic: {topic}\n"
        f"No broker has registered {topic!r}: create the topic, or set auto_create_topics on the brokers"
    )
    return HandlerResponse(code=ResponseCode.TOPIC_NOT_EXIST, remark=remark)


async def clusters(_: EmptyHeader, context: NameServerContext, __: RequestContext) -> HandlerResponse:
    return HandlerResponse.of(context.routes.clusters())


async def topics(_: EmptyHeader, context: NameServerContext, __: RequestContext) -> HandlerResponse:
    return HandlerResponse.of(TopicList(context.routes.topics()))


async def topics_of_cluster(
    request: GetClusterTopics, context: NameServerContext, _: RequestContext
) -> HandlerResponse:
    return HandlerResponse.of(TopicList(context.routes.topics_of_cluster(request.cluster)))


async def system_topics(_: EmptyHeader, context: NameServerContext, __: RequestContext) -> HandlerResponse:
    """Return the topics through which tools find the brokers of a cluster, and the address of one broker."""
    table = context.routes.clusters()
    names = [name for cluster, brokers in table.cluster_addr_table.items() for name in (cluster, *brokers)]
    first = next(iter(table.broker_addr_table.values()), None)
    return HandlerResponse.of(TopicList(names, next(iter(first.broker_addrs.values())) if first is not None else None))


async def unit_topics(_: EmptyHeader, __: NameServerContext, ___: RequestContext) -> HandlerResponse:
    """Return an empty list: Sparrow does not support RocketMQ's units."""
    return HandlerResponse.of(TopicList())


async def delete_topic(request: DeleteTopic, context: NameServerContext, _: RequestContext) -> EmptyHeader:
    context.routes.delete_topic(request.topic, request.cluster or None)
    return EmptyHeader()


async def register_topic(request: TopicRequest, context: NameServerContext, call: RequestContext) -> EmptyHeader:
    """Add a topic. Topics of unknown brokers are ignored, as in RocketMQ: the brokers register them later."""
    if call.command.body:
        context.routes.register_topic(request.topic, call.body(RouteData).queue_datas)
    return EmptyHeader()


async def forbid_writes(
    request: ChangeWritePermission, context: NameServerContext, _: RequestContext
) -> WipeWritePermissionResponse:
    return WipeWritePermissionResponse(context.routes.forbid_writes(request.broker_name))


async def allow_writes(
    request: ChangeWritePermission, context: NameServerContext, _: RequestContext
) -> AddWritePermissionResponse:
    return AddWritePermissionResponse(context.routes.allow_writes(request.broker_name))


HANDLERS: dict[int, RequestHandler[NameServerContext]] = {
    RequestCode.GET_BROKER_CLUSTER_INFO: clusters,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: unit_topics,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: register_topic,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: forbid_writes,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: allow_writes,
}
