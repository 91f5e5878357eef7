"""Handlers of brokers' requests to a consumer: rebalance, reset offsets, report state, consume a message."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import msgspec

from sparrow import clock
from sparrow.client.aio.connection.session import ClientRequestHandler, ClientSession
from sparrow.client.aio.connection.session_users import SessionConsumer
from sparrow.client.aio.consume.queue_fetcher import restore_original_topic
from sparrow.client.consume.retry import is_handler_decision
from sparrow.model.errors import UnknownGroup
from sparrow.model.queue import QueueRef
from sparrow.net.dispatcher import HandlerResponse, RequestContext
from sparrow.wire import bodies, record
from sparrow.wire.bodies import ConsumeDirectlyResult, ConsumerStatus, OffsetTable, SubscriptionData
from sparrow.wire.codes import ADVERTISED_VERSION, RequestCode
from sparrow.wire.headers import ConsumeMessageDirectly, GetConsumerRunningInfo, NotifyConsumersChanged, ResetOffset
from sparrow.wire.headers import GetConsumerStatus as AskStatus


async def on_members_changed(request: NotifyConsumersChanged, session: ClientSession, _context: RequestContext) -> None:
    """Rebalance: a member joined or left the group."""
    member = session.consumers.get(request.group)
    if member is not None:
        member.on_members_changed()


async def reset_offsets(request: ResetOffset, session: ClientSession, context: RequestContext) -> None:
    """Continue from other offsets: an operator reset the group."""
    # Not `context.body`: the table of a wide topic is large, and keyed by queues, which is the dialect.
    table = bodies.read(OffsetTable, context.command.body)
    await _member(session, request.group).reset_offsets(table.offset_table)


async def report_offsets(request: AskStatus, session: ClientSession, _context: RequestContext) -> HandlerResponse:
    """Report the offset of each queue."""
    member = _member(session, request.group)
    return HandlerResponse.of(ConsumerStatus(message_queue_table=member.positions(request.topic)))


class _QueueState(msgspec.Struct, rename="camel"):
    """As mqadmin's `consumerStatus` prints it."""

    commit_offset: int
    cached_msg_count: int
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_size_in_mi_b: int = 0
    locked: bool = False
    droped: bool = False  # RocketMQ's spelling
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class _Running(msgspec.Struct, rename="camel"):
    """The body of the report."""

    properties: dict[str, str]
    subscription_set: list[SubscriptionData]
    mq_table: dict[QueueRef, _QueueState]
    status_table: dict[str, Any]


async def report_running_info(
    request: GetConsumerRunningInfo, session: ClientSession, _context: RequestContext
) -> HandlerResponse:
    """Report configuration and state of the consumer, for mqadmin."""
    member = _member(session, request.group)
    described = member.heartbeat_data()
    figures = {
        "PROP_CONSUME_TYPE": described.consume_type,
        "PROP_CLIENT_VERSION": str(ADVERTISED_VERSION),
        "PROP_NAMESERVER_ADDR": ";".join(session.name_servers),
        "PROP_CONSUMER_START_TIMESTAMP": str(member.started_ms),
        "PROP_CONSUME_ORDERLY": str(member.is_orderly).lower(),
        "PROP_THREADPOOL_CORE_SIZE": "0",
        "pid": str(os.getpid()),
    }
    now_ms = clock.now_ms()
    table = {
        queue: _QueueState(commit_offset=offset, cached_msg_count=count, last_pull_timestamp=now_ms)
        for queue, (offset, count) in member.queue_states().items()
    }
    return HandlerResponse.of(_Running(figures, described.subscription_data_set, table, {}))


async def consume_directly(
    request: ConsumeMessageDirectly, session: ClientSession, context: RequestContext
) -> HandlerResponse:
    """Pass a message to the handler now, whatever the offsets of the group."""
    member = _member(session, request.group)
    message = record.decode(context.command.body)
    restore_original_topic(message)
    begun = time.monotonic()
    try:
        await member.handle_directly(message)
        result, remark = "CR_SUCCESS", None
    except asyncio.CancelledError:
        raise
    except Exception as error:
        result, remark = "CR_LATER" if is_handler_decision(error) else "CR_THROW_EXCEPTION", repr(error)
    spent_ms = int((time.monotonic() - begun) * 1000)
    return HandlerResponse.of(
        ConsumeDirectlyResult(result, order=member.is_orderly, remark=remark, spent_time_mills=spent_ms)
    )


def _member(session: ClientSession, group: str) -> SessionConsumer:
    found = session.consumers.get(group)
    if found is None:
        raise UnknownGroup(group)
    return found


HANDLERS: dict[int, ClientRequestHandler] = {
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: on_members_changed,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: reset_offsets,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: report_offsets,
    RequestCode.GET_CONSUMER_RUNNING_INFO: report_running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
}
"""Used by sessions with consumers."""
