"""Pages of messages that wait, merged from the lists of all brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from sparrow.client.aio.admin.clusters import fetch_masters, gather_all
from sparrow.client.aio.connection.session import ClientSession
from sparrow.wire.bodies import WaitingMessages

Answer = TypeVar("Answer", bound=WaitingMessages[Any, Any])
E = TypeVar("E")
P = TypeVar("P")
View = TypeVar("View")


class WaitingPage(msgspec.Struct, Generic[View, P], frozen=True, kw_only=True):
    """Some waiting messages, and how many were read for them."""

    messages: tuple[View, ...]
    scanned: int
    next: dict[str, P | None] | None
    """The position at each broker after which the list continues. Brokers that are not in it have been read."""

    @property
    def complete(self) -> bool:
        """Whether everything was read."""
        return self.next is None


async def list_waiting(
    session: ClientSession,
    fetch: Callable[[str, P | None], Awaitable[Answer]],
    view: Callable[[str, Any, Answer], View],
    *,
    sort_key: Callable[[Any], Any],
    position_of: Callable[[Any], P],
    limit: int,
    after: Mapping[str, P | None] | None,
) -> WaitingPage[View, P]:
    """Return waiting messages of all masters, in the order of the sort key.

    `fetch` asks the broker at an address for what follows a position; `view` gets the broker, an entry, and the answer
    that the entry came with.
    """
    masters = await fetch_masters(session)
    asked: dict[str, P | None] = (
        dict.fromkeys(masters)
        if after is None
        else {broker: position for broker, position in after.items() if broker in masters}
    )
    found = await gather_all(fetch(masters[broker], position) for broker, position in asked.items())
    answers = dict(zip(asked, found, strict=True))
    rows, following = _merge_pages(
        {broker: (answer.messages, answer.next) for broker, answer in answers.items()},
        sort_key=sort_key,
        position_of=position_of,
        limit=limit,
        after=asked,
    )
    return WaitingPage(
        messages=tuple(view(broker, entry, answers[broker]) for broker, entry in rows),
        scanned=sum(answer.scanned for answer in found),
        next=following,
    )


def _merge_pages(
    pages: Mapping[str, tuple[Sequence[E], P | None]],
    *,
    sort_key: Callable[[E], Any],
    position_of: Callable[[E], P],
    limit: int,
    after: Mapping[str, P | None],
) -> tuple[list[tuple[str, E]], dict[str, P | None] | None]:
    """Merge the lists of several brokers, each with the position at which the broker stopped; None if it read all.

    Return the first `limit` with their brokers, and the positions to continue from; None if everything was read.
    """
    rows = [(broker, entry) for broker, (entries, _) in pages.items() for entry in entries]
    rows.sort(key=lambda row: (sort_key(row[1]), row[0]))
    taken = rows[:limit]
    following: dict[str, P | None] = {}
    for broker, (entries, end) in pages.items():
        used = [entry for name, entry in taken if name == broker]
        if len(used) < len(entries):
            following[broker] = position_of(used[-1]) if used else after.get(broker)
        elif end is not None:
            following[broker] = end
    return taken, following or None
