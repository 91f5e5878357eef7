"""Requests that the broker relays to the consumers of a group: reset offsets, query status, consume a message.

A client's answer is passed on unchanged. A client whose version is too old for a request does not get it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from sparrow.broker.clients.registry import CLUSTERING, OnlineClient
from sparrow.broker.consume.references import resolve_record
from sparrow.broker.context import Broker
from sparrow.model.errors import RequestTimeout, SparrowError
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire import bodies, headers, message_ids
from sparrow.wire.bodies import OffsetList, OffsetTable, QueueRef
from sparrow.wire.codes import Language, RequestCode, ResponseCode, RocketMQVersion
from sparrow.wire.error_codes import RemoteRefused
from sparrow.wire.headers import ConsumeMessageDirectly, GetConsumerRunningInfo, GetConsumerStatus, ResetOffset

log = logging.getLogger(__name__)

STATUS_TIMEOUT_MS = 5_000
RELAY_TIMEOUT_MS = 10_000
RESET_SINCE_VERSION = 28
"""The first version (3.0.7) whose clients support requests 220 and 221."""
RELAY_SINCE_VERSION = 62
"""The first version (3.1.8) whose clients support requests 307 and 309."""
QUEUE_END_MS = -1
"""As a reset time, this means the end of the queue."""


async def reset_offsets(request: ResetOffset, broker: Broker, _: RequestContext) -> HandlerResponse:
    """Reset the group here if all members are of RocketMQ 5. Otherwise send every member the offsets to continue at.

    A client of RocketMQ 5 continues at once at the offset that its next pull is answered with. It needs far longer for
    the request to clients, which older ones need; they commit the offsets. Members of a broadcasting group keep their
    offsets themselves, so that all of them must be told.

    If no member is online, the tool gets CONSUMER_NOT_ONLINE and commits the offsets itself (mqadmin's
    `resetOffsetByTime`).
    """
    offsets = await _new_offsets(request, broker.topics[request.topic], broker)
    group = broker.clients.consumers(request.group)
    if group is None:
        remark = f"no consumer of group {request.group!r} is online: its offsets can be committed without it"
        return HandlerResponse(code=ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
    members = group.members.values()
    if group.message_model == CLUSTERING and all(member.version >= RocketMQVersion.V5_0_0 for member in members):
        await _reset_here(request.group, offsets, broker)
        return HandlerResponse.of(offsets)
    _check_versions(members, since=RESET_SINCE_VERSION)
    header = ResetOffset(request.topic, request.group, request.time_ms, request.is_forced)
    for member in members:
        body = OffsetList.of(offsets) if member.language == Language.CPP else offsets
        member.channel.send_one_way(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, bodies.write(body))
    return HandlerResponse.of(offsets)


async def _reset_here(group: str, offsets: OffsetTable, broker: Broker) -> None:
    """Commit the offsets, and answer the next pull of each queue with them, also pulls that are parked."""
    for ref, offset in offsets.offset_table.items():
        queue = Queue(ref.topic, ref.queue_id)
        broker.positions.reset(group, queue, offset)
        await broker.store.offsets.commit(group, queue, offset)
        broker.long_polls.wake(queue)


async def _new_offsets(request: ResetOffset, topic: Topic, broker: Broker) -> OffsetTable:
    """Return the new offsets.

    Only a forced reset moves forward: a reset by time is meant to read messages again, not to skip them.
    """
    one = request.queue_id if request.queue_id is not None and request.queue_id >= 0 else None
    if one is not None and one >= topic.read_queues:
        raise RemoteRefused(
            ResponseCode.SYSTEM_ERROR,
            f"topic {topic.name!r} has no queue {one}: its queues are 0 to {topic.read_queues - 1}",
        )
    table: dict[QueueRef, int] = {}
    for queue_id in range(topic.read_queues) if one is None else (one,):
        queue = Queue(topic.name, queue_id)
        committed = await broker.store.offsets.committed(request.group, queue)
        offset = await _wanted(request, queue, broker)
        is_named = request.offset is not None and request.offset >= 0
        table[QueueRef(topic.name, broker.name, queue_id)] = (
            offset if request.is_forced or is_named or committed is None else min(offset, committed)
        )
    return OffsetTable(table)


async def _wanted(request: ResetOffset, queue: Queue, broker: Broker) -> int:
    bounds = await broker.store.bounds(queue)
    if request.offset is not None and request.offset >= 0:
        if not bounds.first <= request.offset <= bounds.end:
            raise RemoteRefused(
                ResponseCode.SYSTEM_ERROR,
                f"{queue} has offsets {bounds.first} to {bounds.end}: offset {request.offset} is outside",
            )
        return request.offset
    if request.time_ms == QUEUE_END_MS:
        return bounds.end
    return await broker.store.offset_at(queue, request.time_ms)


async def query_consumer_status(request: GetConsumerStatus, broker: Broker, _: RequestContext) -> HandlerResponse:
    """Return the offsets that the members themselves report: of one member, or of all."""
    group = broker.clients.consumers(request.group)
    members = [
        member
        for member in (group.members.values() if group is not None else ())
        if not request.client_id or member.client_id == request.client_id
    ]
    if not members:
        raise _not_online(request.group, request.client_id)
    _check_versions(members, since=RESET_SINCE_VERSION)
    statuses = await asyncio.gather(*(_status(member, request) for member in members), return_exceptions=True)
    table = {}
    for member, status in zip(members, statuses, strict=True):
        if isinstance(status, bodies.ConsumerStatus):
            table[member.client_id] = status.message_queue_table
        else:
            log.warning(
                "consumer %(client)s did not report its status: %(error)s",
                {"client": member.client_id, "error": status},
            )
    failures = [status for status in statuses if isinstance(status, BaseException)]
    if not table and failures:
        raise failures[0]
    return HandlerResponse.of(bodies.ConsumerStatus(consumer_table=table))


async def _status(member: OnlineClient, request: GetConsumerStatus) -> bodies.ConsumerStatus:
    channel: Channel = member.channel
    answer = await channel.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, request, timeout_ms=STATUS_TIMEOUT_MS)
    if answer.code != ResponseCode.SUCCESS:
        raise RemoteRefused(answer.code, answer.remark or "")
    return bodies.read(bodies.ConsumerStatus, answer.body)


async def query_consumer_running(request: GetConsumerRunningInfo, broker: Broker, _: RequestContext) -> HandlerResponse:
    """Relay a client's report of its own state."""
    member = _member(broker, request.group, request.client_id)
    return await _relayed(RequestCode.GET_CONSUMER_RUNNING_INFO, request, b"", member, request.group)


async def consume_directly(request: ConsumeMessageDirectly, broker: Broker, _: RequestContext) -> HandlerResponse:
    """Let a client consume one message now, and relay the result."""
    member = _member(broker, request.group, request.client_id)
    if not request.message_id:
        raise RemoteRefused(ResponseCode.SYSTEM_ERROR, "no message id given: set msgId to the message's offset id")
    position = message_ids.parse_offset_id(request.message_id)
    record = await broker.store.record_at(position.physical_offset)
    whole = await resolve_record(broker.store, record) if record is not None else None
    if whole is None:
        raise RemoteRefused(ResponseCode.SYSTEM_ERROR, f"message {request.message_id} does not exist, or not any more")
    topic = broker.topics.get(request.topic or "")
    header = msgspec.structs.replace(
        request,
        client_id=member.client_id,
        broker_name=broker.name,
        topic_sys_flag=topic.sys_flag if topic is not None else None,
    )
    return await _relayed(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, bytes(whole), member, request.group)


async def _relayed(
    code: RequestCode, header: headers.Header, body: bytes, member: OnlineClient, group: str
) -> HandlerResponse:
    if member.version < RELAY_SINCE_VERSION:
        raise _too_old(member)
    channel: Channel = member.channel
    try:
        answer = await channel.request(code, header, body, timeout_ms=RELAY_TIMEOUT_MS)
    except RequestTimeout as late:
        return HandlerResponse(
            code=ResponseCode.CONSUME_MSG_TIMEOUT, remark=f"consumer {member.client_id!r} of {group!r}: {late}"
        )
    except SparrowError as failed:
        return HandlerResponse(
            code=ResponseCode.SYSTEM_ERROR, remark=f"consumer {member.client_id!r} of {group!r}: {failed}"
        )
    return HandlerResponse(body=bytes(answer.body), code=answer.code, remark=answer.remark)


def _member(broker: Broker, group: str, client_id: str | None) -> OnlineClient:
    """Return that client, or any member of the group if no client is named."""
    if client_id:
        member = broker.clients.find_consumer(group, client_id)
    else:
        found = broker.clients.consumers(group)
        member = next(iter(found.members.values())) if found is not None else None
    if member is None:
        raise _not_online(group, client_id)
    return member


def _check_versions(members: Iterable[OnlineClient], *, since: int) -> None:
    """Refuse if any member is too old.

    A reset that only some members follow would leave the group at two positions.
    """
    for member in members:
        if member.version < since:
            raise _too_old(member)


def _too_old(member: OnlineClient) -> RemoteRefused:
    return RemoteRefused(
        ResponseCode.SYSTEM_ERROR,
        f"consumer {member.client_id!r} (version {member.version}) is too old for this request: upgrade it",
    )


def _not_online(group: str, client_id: str | None) -> RemoteRefused:
    who = f"consumer {client_id!r} of group {group!r} is not" if client_id else f"no consumer of group {group!r} is"
    return RemoteRefused(ResponseCode.SYSTEM_ERROR, f"{who} online")


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset_offsets,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: query_consumer_status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: query_consumer_running,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
}
