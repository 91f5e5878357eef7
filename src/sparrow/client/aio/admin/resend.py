"""Resends: the request that selects messages, and its execution by every broker that has some of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import Refused
from sparrow.model.priority import Priority
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import ResendMessages, ResendMessagesResponse

RESEND_TIMEOUT_MS = 600_000
"""The response is sent when everything is stored, which may be millions of messages."""


class ResendResult(msgspec.Struct, frozen=True):
    """What a resend did, or a dry run would do."""

    count: int
    """Messages, counted once for each group."""
    missing: int
    """Requested messages that retention has removed."""
    groups: tuple[str, ...]


def make_resend_request(
    topic: str,
    group: str | None,
    *,
    begin: int | None,
    end: int | None,
    queue_id: int | None,
    priority: Priority | str | None,
    keys: str | Iterable[str] | None,
    from_ms: int | None,
    to_ms: int | None,
    dry_run: bool,
    force: bool,
) -> ResendMessages:
    """Return the request. Brokers validate it, for all clients alike."""
    if group is not None and not group:
        raise Refused("the group name is empty: name a group, or use None for all groups that read the topic")
    key_list = [keys] if isinstance(keys, str) else keys
    return ResendMessages(
        topic,
        group,
        queue_id,
        priority.label if isinstance(priority, Priority) else priority,
        begin,
        end,
        None if key_list is None else " ".join(key_list),
        from_ms,
        to_ms,
        dry_run,
        force,
    )


async def resend_messages(
    session: ClientSession, route: TopicRoute, request: ResendMessages, broker: str | None
) -> ResendResult:
    """Send the request to the master of that broker, or of all that have the topic. If one refuses, none has begun."""
    masters = _masters(route, request, broker)
    if len(masters) > 1 and not request.is_dry_run:
        await _ask(session, masters, msgspec.structs.replace(request, is_dry_run=True))
    answers = await _ask(session, masters, request)
    groups = sorted({group for answer in answers for group in answer.groups.split(",") if group})
    if not groups:
        raise Refused(f"no group has committed an offset on topic {request.topic!r}: name the group to resend to")
    return ResendResult(
        sum(answer.count for answer in answers), sum(answer.missing for answer in answers), tuple(groups)
    )


def _masters(route: TopicRoute, request: ResendMessages, broker: str | None) -> Mapping[str, str]:
    masters = dict(sorted(route.masters.items()))
    if broker is not None:
        if broker not in masters:
            raise Refused(f"topic {request.topic!r} has no master {broker!r}, only {', '.join(masters) or 'none'}")
        return {broker: masters[broker]}
    if len(masters) > 1 and (request.begin is not None or request.end is not None):
        raise Refused(f"topic {request.topic!r} is on {', '.join(masters)}: name the broker of the offsets")
    return masters


async def _ask(
    session: ClientSession, masters: Mapping[str, str], request: ResendMessages
) -> list[ResendMessagesResponse]:
    answers = await asyncio.gather(
        *(
            session.invoke(address, RequestCode.RESEND_MESSAGES, request, timeout_ms=RESEND_TIMEOUT_MS)
            for address in masters.values()
        )
    )
    return [headers.read(ResendMessagesResponse, answer.ext) for answer in answers]
