"""Resend: which messages a request means, and asking every broker that has some of them."""

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
"""The answer comes when all is stored, and there may be millions."""


class ResendResult(msgspec.Struct, frozen=True):
    """What a resend did, or (dry) would do."""

    count: int
    """Messages, each for every one of the groups that wants it."""
    missing: int
    """Messages that were asked for, and that retention took before."""
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
    """The request. What makes no sense is refused by brokers, for all clients alike."""
    if group is not None and not group:
        raise Refused("an empty name is no group: name one, or say None for all groups that read the topic")
    words = [keys] if isinstance(keys, str) else keys
    return ResendMessages(
        topic,
        group,
        queue_id,
        priority.label if isinstance(priority, Priority) else priority,
        begin,
        end,
        None if words is None else " ".join(words),
        from_ms,
        to_ms,
        dry_run,
        force,
    )


async def resend_messages(
    session: ClientSession, route: TopicRoute, wish: ResendMessages, broker: str | None
) -> ResendResult:
    """Ask the master of that broker, or of every one that has the topic. If one of them refuses, none has begun."""
    masters = _masters(route, wish, broker)
    if len(masters) > 1 and not wish.is_dry_run:
        await _ask(session, masters, msgspec.structs.replace(wish, is_dry_run=True))
    answers = await _ask(session, masters, wish)
    groups = sorted({group for answer in answers for group in answer.groups.split(",") if group})
    if not groups:
        raise Refused(f"no group has committed an offset on topic {wish.topic!r}: there is nobody to resend to")
    return ResendResult(
        sum(answer.count for answer in answers), sum(answer.missing for answer in answers), tuple(groups)
    )


def _masters(route: TopicRoute, wish: ResendMessages, broker: str | None) -> Mapping[str, str]:
    masters = dict(sorted(route.masters.items()))
    if broker is not None:
        if broker not in masters:
            raise Refused(f"topic {wish.topic!r} has no master {broker!r}, only {', '.join(masters) or 'none'}")
        return {broker: masters[broker]}
    if len(masters) > 1 and (wish.begin is not None or wish.end is not None):
        raise Refused(f"offsets of which broker's queue? Topic {wish.topic!r} is on {', '.join(masters)}")
    return masters


async def _ask(
    session: ClientSession, masters: Mapping[str, str], wish: ResendMessages
) -> list[ResendMessagesResponse]:
    answers = await asyncio.gather(
        *(
            session.invoke(address, RequestCode.RESEND_MESSAGES, wish, timeout_ms=RESEND_TIMEOUT_MS)
            for address in masters.values()
        )
    )
    return [headers.read(ResendMessagesResponse, answer.ext) for answer in answers]
