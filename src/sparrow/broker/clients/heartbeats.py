"""Handlers of heartbeats and unregistrations. Members of a group are notified of each change and rebalance."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable

import msgspec

from sparrow.broker.clients.registry import CLUSTERING
from sparrow.broker.clients.subscriptions import build_filter
from sparrow.broker.context import Broker
from sparrow.model.errors import BadRequest, Refused, StoreFull
from sparrow.model.errors.base import by_limit
from sparrow.model.protocol import RETRY_TOPIC_PREFIX
from sparrow.model.topic import Group
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire import headers
from sparrow.wire.bodies import ClientConfigCheck, ConsumerList, GroupConflict, GroupConflicts, HeartbeatData
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand, encode
from sparrow.wire.headers import (
    EmptyHeader,
    Heartbeat,
    HeartbeatResponse,
    ListConsumers,
    NotifyConsumersChanged,
    UnregisterClient,
)

log = logging.getLogger(__name__)


async def heartbeat(_: Heartbeat, broker: Broker, call: RequestContext) -> HandlerResponse:
    """Register a client with its groups. Create missing consumer groups and their retry topics."""
    data = call.body(HeartbeatData)
    if not data.client_id:
        raise BadRequest("HeartbeatData", "clientID", "is empty")
    named, groups_max = len(data.consumer_data_set) + len(data.producer_data_set), broker.settings.client_groups_max
    if named > groups_max:
        raise by_limit(
            "client_groups",
            Refused(f"the client has {named} groups, the limit is {groups_max} (broker.client_groups_max)"),
        )
    if broker.is_follower:  # it creates nothing, and knows all members when it becomes the leader
        changed = broker.clients.heartbeat(
            call.channel,
            data,
            language=call.command.language,
            version=call.command.version,
            now_ms=broker.monotonic_ms(),
        )
        return HandlerResponse(HeartbeatResponse(supports_v2=True, subscription_changed=changed.needs_subscriptions))
    groups = [group for consumer in data.consumer_data_set if (group := await _group(broker, consumer.group_name))]
    names = {group.name for group in groups}
    data = msgspec.structs.replace(
        data, consumer_data_set=[consumer for consumer in data.consumer_data_set if consumer.group_name in names]
    )
    if not call.channel.is_open:  # closed while its groups were created: it would never be removed again
        return HandlerResponse(HeartbeatResponse())
    changed = broker.clients.heartbeat(
        call.channel, data, language=call.command.language, version=call.command.version, now_ms=broker.monotonic_ms()
    )
    notify_group_changed(broker, changed.groups)
    # Last, because it may wait for name servers, and membership must not.
    for group in groups:
        if group.retry_queues > 0:
            with contextlib.suppress(StoreFull):  # its members read on; a later heartbeat creates the topic
                await broker.topics.create_for_group(RETRY_TOPIC_PREFIX, group.name, group.retry_queues)
    if changed.refused:
        raise changed.refused[0]
    header = HeartbeatResponse(supports_v2=True, subscription_changed=changed.needs_subscriptions)
    conflicts = [found for name in sorted(names) if (found := _conflict(broker, name, data.client_id)) is not None]
    # Clients of RocketMQ ignore the body; ours log it.
    return HandlerResponse.of(GroupConflicts(conflicts), header) if conflicts else HandlerResponse(header)


def _conflict(broker: Broker, name: str, client_id: str) -> GroupConflict | None:
    """Return how this member of a group differs from another one, and log it at growing intervals."""
    group = broker.clients.consumers(name)
    if group is None:  # its connection was closed while the retry topic was created
        return None
    found = group.conflict_of(client_id)
    if found is None:
        if group.conflict_log.end(name):
            log.info("all members of group %(group)s have the same subscriptions again", {"group": name})
        return None
    conflict = GroupConflict(name, client_id, str(group.reports[client_id]), found[0], str(found[1]))
    if group.conflict_log.is_due(name, frozenset(group.reports.values())):
        log.warning(
            "members of group %(group)s differ: client %(client)s reads %(report)s, client %(other_client)s reads"
            " %(other_report)s; messages are skipped until all members have the same subscriptions and mode",
            {
                "group": name,
                "client": conflict.client_id,
                "report": conflict.report,
                "other_client": conflict.other_client_id,
                "other_report": conflict.other_report,
            },
        )
    return conflict


async def _group(broker: Broker, name: str) -> Group | None:
    """Return the group; None if it may not be created. Its consumers get the error when they pull."""
    try:
        return await broker.groups.get_or_create(name)
    except Refused as refusal:
        log.info("group %(group)s of a heartbeat may not be created: %(error)s", {"group": name, "error": refusal})
        return None


async def unregister(request: UnregisterClient, broker: Broker, call: RequestContext) -> None:
    notify_group_changed(
        broker,
        broker.clients.unregister(
            call.channel,
            request.client_id,
            producer_group=request.producer_group,
            consumer_group=request.consumer_group,
        ).groups,
    )


async def list_consumers(request: ListConsumers, broker: Broker, _: RequestContext) -> HandlerResponse:
    """Return the client ids of a group, by which members divide the queues."""
    found = broker.clients.consumers(request.group)
    if found is None:
        return HandlerResponse(
            code=ResponseCode.SYSTEM_ERROR, remark=f"no consumer of group {request.group!r} is online"
        )
    return HandlerResponse.of(ConsumerList(list(found.members)))


async def check_config(_: EmptyHeader, broker: Broker, call: RequestContext) -> None:
    """Validate a subscription before a consumer starts with it."""
    build_filter(call.body(ClientConfigCheck).subscription_data)


def remove_channel(broker: Broker, channel: Channel) -> None:
    """Remove the clients of a closed connection."""
    notify_group_changed(broker, broker.clients.remove_channel(channel).groups)


def expire_clients(broker: Broker) -> None:
    """Close connections without heartbeats, and remove their clients. Such a connection may be dead unnoticed."""
    before_ms = broker.monotonic_ms() - broker.settings.client_timeout_ms
    for channel in broker.clients.silent_channels(before_ms):
        log.info(
            "client at %(peer)s sent no heartbeat for %(timeout_ms)s ms; its connection is closed",
            {"peer": channel.address, "timeout_ms": broker.settings.client_timeout_ms},
        )
        channel.close("no heartbeat within the client timeout")
        remove_channel(broker, channel)
    notify_group_changed(broker, broker.clients.expire(before_ms).groups)


def notify_group_changed(broker: Broker, groups: Iterable[str]) -> None:
    """Notify all members of a change. Broadcasting members do not divide queues and are not notified."""
    if broker.is_follower:
        return  # the leader notifies
    for name in groups:
        group = broker.clients.consumers(name)
        if group is None or group.message_model != CLUSTERING:
            continue
        # One frame is encoded for all: when a thousand members leave one by one, half a million are sent.
        ext = headers.write(NotifyConsumersChanged(name))
        news = encode(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, flag=ONE_WAY_FLAG, ext=ext))
        for member in group.members.values():
            channel: Channel = member.channel
            # A client that does not read rebalances by itself within 20 s; frames must not pile up for it.
            if not channel.is_crowded:
                channel.write(news)


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: list_consumers,
    RequestCode.CHECK_CLIENT_CONFIG: check_config,
}
