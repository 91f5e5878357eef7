"""Resets of a group's offsets: by time on a topic, or to an offset on one queue."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from difflib import get_close_matches

from sparrow.client.aio.admin.clusters import gather_all
from sparrow.client.aio.admin.groups import fetch_groups, fetch_members_on
from sparrow.client.aio.admin.topics import NEWEST_MS, search_offset
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.option_checks import validate_value
from sparrow.client.options import StartPosition
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import Refused, SparrowError, Unavailable
from sparrow.model.queue import QueueRef
from sparrow.wire import bodies, headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import CommitOffset, OffsetResponse, QueryOffset, QueueRequest, ResetOffset

log = logging.getLogger(__name__)


async def reset_offsets(
    session: ClientSession, group: str, topic: str, to: StartPosition | int, *, force: bool
) -> dict[QueueRef, int]:
    """Reset a group on a topic, and return the new offset of each queue."""
    validate_value("to", to, StartPosition | int, "reset_offsets")
    route = await session.route(topic, is_fresh=True)
    await _warn_if_unknown(session, group)
    request = ResetOffset(topic, group, _time_ms(to), force)
    parts = await gather_all(
        _reset_on(session, broker_name, address, route, request) for broker_name, address in route.masters.items()
    )
    return dict(sorted((queue, offset) for part in parts for queue, offset in part.items()))


async def reset_queue(session: ClientSession, group: str, queue: QueueRef, offset: int) -> None:
    """Reset a group on one queue."""
    route = await session.route(queue.topic, is_fresh=True)
    address = route.masters.get(queue.broker_name)
    if address is None or queue not in route.read_queues:
        raise Refused(f"topic {queue.topic!r} has no queue {queue.queue_id} on a master of {queue.broker_name!r}")
    request = QueueRequest(queue.topic, queue.queue_id, queue.broker_name)
    first, end = [
        max(0, headers.read(OffsetResponse, answer.ext).offset)
        for answer in await gather_all(
            session.invoke(address, code, request) for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        )
    ]
    if not first <= offset <= end:
        raise Refused(f"{queue} holds offsets {first} to {end}: it cannot be read from {offset}")
    await _warn_if_unknown(session, group)
    is_online = bool(await fetch_members_on(session, address, group))
    await _reset_queue_on(session, address, group, queue, offset, is_online=is_online)


async def reset_queues(session: ClientSession, group: str, topic: str, offsets: Mapping[QueueRef, int]) -> None:
    """Reset a group on several queues of a topic to these offsets, which the caller has compared with the bounds."""
    route = await session.route(topic, is_fresh=True)
    await _warn_if_unknown(session, group)
    online = {
        address: bool(await fetch_members_on(session, address, group))
        for address in {route.masters[queue.broker_name] for queue in offsets if queue.broker_name in route.masters}
    }
    # One after the other: RocketMQ 4 loses commits of a new group that arrive at the same time.
    for queue, offset in offsets.items():
        address = route.masters.get(queue.broker_name)
        if address is None:
            raise Unavailable(f"broker {queue.broker_name!r} of topic {topic!r} has no master now")
        await _reset_queue_on(session, address, group, queue, offset, is_online=online[address])


async def _reset_queue_on(
    session: ClientSession, address: str, group: str, queue: QueueRef, offset: int, *, is_online: bool
) -> None:
    if is_online:
        reset = ResetOffset(queue.topic, group, NEWEST_MS, True, queue.queue_id, offset)
        await session.invoke(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    else:
        await _commit(session, address, group, queue, offset)


async def _warn_if_unknown(session: ClientSession, group: str) -> None:
    """Warn that a group does not exist. It may be reset before its first start, but mostly its name is misspelled."""
    try:
        known = await fetch_groups(session)
    except SparrowError:  # a broker that is down, or no permission, must not prevent the reset
        return
    if group not in known:
        near = get_close_matches(group, known, 3)
        meant = f"did you mean {' or '.join(map(repr, near))}?" if near else "check its name"
        log.warning(
            "group %(group)r does not exist yet, and will start at the offsets of this reset: %(meant)s",
            {"group": group, "meant": meant},
        )


async def _reset_on(
    session: ClientSession, broker_name: str, address: str, route: TopicRoute, request: ResetOffset
) -> dict[QueueRef, int]:
    answer = await session.invoke_unchecked(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, request)
    if answer.code == ResponseCode.SUCCESS:
        return bodies.read(bodies.OffsetTable, answer.body).offset_table
    # Brokers report an error for a group that has never committed; the commits below are all that it lacks.
    if answer.code != ResponseCode.CONSUMER_NOT_ONLINE and (
        answer.code != ResponseCode.SYSTEM_ERROR or await fetch_members_on(session, address, request.group)
    ):
        raise error_for_response(answer.code, answer.remark)
    queues = [queue for queue in route.read_queues if queue.broker_name == broker_name]
    # One after the other: RocketMQ 4 loses commits of a new group that arrive at the same time.
    return {queue: await _recommit(session, address, queue, request) for queue in queues}


async def _recommit(session: ClientSession, address: str, queue: QueueRef, request: ResetOffset) -> int:
    offset = await search_offset(session, address, queue, request.time_ms)
    if not request.is_forced:
        query = QueryOffset(request.group, queue.topic, queue.queue_id, False, queue.broker_name)
        answer = await session.invoke_unchecked(address, RequestCode.QUERY_CONSUMER_OFFSET, query)
        if answer.code == ResponseCode.SUCCESS:
            offset = min(offset, headers.read(OffsetResponse, answer.ext).offset)
    await _commit(session, address, request.group, queue, offset)
    return offset


async def _commit(session: ClientSession, address: str, group: str, queue: QueueRef, offset: int) -> None:
    commit = CommitOffset(group, queue.topic, queue.queue_id, offset, queue.broker_name)
    await session.invoke(address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)


def _time_ms(position: StartPosition | int) -> int:
    """Return a time in ms since 1970; 0 is before every message."""
    if isinstance(position, str):
        return 0 if position == "first" else NEWEST_MS
    return int(position.timestamp() * 1000) if isinstance(position, datetime) else position
