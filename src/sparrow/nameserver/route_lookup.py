"""Who holds a topic, and what topics, brokers and clusters there are. Tools also change topics here."""

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


def route_handler(naming: NameServerContext) -> InlineHandler:
    """What every client asks for every topic every 30 s: a plain function, and the body is mostly made already."""

    def route(command: RemotingCommand, _: Channel) -> bytes | None:
        topic = headers.read(GetRoute, command.ext).topic
        order = naming.kv.get(ORDER_TOPIC_NAMESPACE, topic) if naming.is_order_message_enabled else None
        body = naming.routes.encoded_route(topic, order)
        return encode_response(
            command, HandlerResponse(body=body) if body is not None else _unknown(topic[:_TOPIC_CHARS_SHOWN])
        )

    return route


def _unknown(topic: str) -> HandlerResponse:
    # Producers rely on the code to try the template topic instead; the first line is RocketMQ's.
    remark = (
        f"No topic route info in name server for the topic: {topic}\n"
        f"No broker has registered {topic!r}: create it, or switch on automatic creation at the brokers"
    )
    return HandlerResponse(code=ResponseCode.TOPIC_NOT_EXIST, remark=remark)


async def clusters(_: EmptyHeader, naming: NameServerContext, __: RequestContext) -> HandlerResponse:
    return HandlerResponse.of(naming.routes.clusters())


async def topics(_: EmptyHeader, naming: NameServerContext, __: RequestContext) -> HandlerResponse:
    return HandlerResponse.of(TopicList(naming.routes.topics()))


async def topics_of_cluster(request: GetClusterTopics, naming: NameServerContext, _: RequestContext) -> HandlerResponse:
    return HandlerResponse.of(TopicList(naming.routes.topics_of_cluster(request.cluster)))


async def system_topics(_: EmptyHeader, naming: NameServerContext, __: RequestContext) -> HandlerResponse:
    """The topics by which tools find all brokers of a cluster, or one broker; and some broker to ask for more."""
    table = naming.routes.clusters()
    names = [name for cluster, brokers in table.cluster_addr_table.items() for name in (cluster, *brokers)]
    some = next(iter(table.broker_addr_table.values()), None)
    return HandlerResponse.of(TopicList(names, next(iter(some.broker_addrs.values())) if some is not None else None))


async def unit_topics(_: EmptyHeader, __: NameServerContext, ___: RequestContext) -> HandlerResponse:
    """There are none: units are a routing scheme of RocketMQ's that nothing here takes part in."""
    return HandlerResponse.of(TopicList())


async def delete_topic(request: DeleteTopic, naming: NameServerContext, _: RequestContext) -> EmptyHeader:
    naming.routes.delete_topic(request.topic, request.cluster or None)
    return EmptyHeader()


async def register_topic(request: TopicRequest, naming: NameServerContext, call: RequestContext) -> EmptyHeader:
    """A topic of brokers that are not known is passed over, as RocketMQ does: they bring it when they register."""
    if call.command.body:
        naming.routes.register_topic(request.topic, call.body(RouteData).queue_datas)
    return EmptyHeader()


async def forbid_writes(
    request: ChangeWritePermission, naming: NameServerContext, _: RequestContext
) -> WipeWritePermissionResponse:
    return WipeWritePermissionResponse(naming.routes.forbid_writes(request.broker_name))


async def allow_writes(
    request: ChangeWritePermission, naming: NameServerContext, _: RequestContext
) -> AddWritePermissionResponse:
    return AddWritePermissionResponse(naming.routes.allow_writes(request.broker_name))


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
