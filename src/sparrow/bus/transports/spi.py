"""What the bus needs of a broker.

1. `send` returns when the broker has acknowledged each envelope, or says why not, one by one; it raises only when it
   could not try at all. Envelopes with the same key are sent in the order given.
2. A group gets every event of the names it listens to; its members share them. What was received is theirs until it is
   acknowledged or given back; if they die it comes again.
3. An envelope is sent again with the same id when it is not known whether it arrived: receivers drop repeats by id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from sparrow.bus import headers as h


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """An event on its way to a broker."""

    name: str
    headers: dict[str, str | None]
    body: bytes
    """The payload as UTF-8 JSON; empty for null."""
    added: datetime
    key: str | None = None
    """Events with the same key keep their order."""
    retries: int = 0

    @property
    def id(self) -> str:
        return self.headers[h.ID] or ""


class BrokerDelivery(msgspec.Struct, kw_only=True):
    """An event as it came from a broker."""

    name: str
    """What the broker calls it: the routing key, topic, stream or subject."""
    headers: dict[str, str | None]
    body: bytes
    ack_handle: Any = None
    """What the transport needs to acknowledge it."""


HeaderBuilder = Callable[[BrokerDelivery], dict[str, str | None]]
"""Makes the headers of a message that no CAP service sent. What it returns needs an id; the name has a default."""


class TransportConsumer(Protocol):
    """A membership in a group, for some names."""

    async def receive(self, count_max: int) -> Sequence[BrokerDelivery]:
        """At least one, at most so many; waits for the first. Raises `Unavailable` when the broker went away: the
        caller closes this listening and makes a new one."""
        ...

    async def acknowledge(self, deliveries: Sequence[BrokerDelivery]) -> None:
        """They are stored: they need not come again."""
        ...

    async def release(self, deliveries: Sequence[BrokerDelivery]) -> None:
        """They could not be stored: let them come again."""
        ...

    async def close(self) -> None:
        """Leave the group; what was neither acknowledged nor given back comes again, to another member."""
        ...


class Transport(Protocol):
    def check_name(self, name: str) -> None:
        """Raise `IllegalName` for a name the broker would refuse. Called before anything is written."""
        ...

    async def open(self) -> None:
        """Connect; raises `Unavailable` when the broker is not there. May be called again after that."""
        ...

    async def send(self, envelopes: Sequence[Envelope]) -> Sequence[Exception | None]:
        """For each envelope None (acknowledged) or why it was not."""
        ...

    async def listen(self, group: str, names: Sequence[str], *, prefetch: int) -> TransportConsumer:
        """Join a group. A name may hold AMQP wildcards: `*` for one word, `#` for any number of words."""
        ...

    async def close(self) -> None: ...


def with_foreign_headers(
    delivery: BrokerDelivery, fallback_id: str, build: HeaderBuilder | None = None
) -> BrokerDelivery:
    """The delivery, with the headers that a message needs: those of CAP, of `build`, or what the broker knows of it."""
    headers = delivery.headers
    if not headers.get(h.ID) and (old := _as_cap_2(delivery.body)) is not None:
        delivery.body = old.Content.encode()
        headers = headers | {h.ID: old.Id, h.CALLBACK: old.CallbackName}
    if not headers.get(h.ID) and build is not None:
        headers = headers | build(delivery)
    if not headers.get(h.ID):
        headers = headers | {h.ID: fallback_id}
    if not headers.get(h.NAME):
        headers = headers | {h.NAME: delivery.name}
    delivery.headers = headers
    return delivery


class _Cap2(msgspec.Struct, forbid_unknown_fields=True):
    """What CAP 2 sent: everything in the body, the payload as text in it."""

    Id: str
    Timestamp: str
    Content: str
    CallbackName: str | None = None


_cap_2 = msgspec.json.Decoder(_Cap2)


def _as_cap_2(body: bytes) -> _Cap2 | None:
    if not body.startswith(b"{") or b'"Timestamp"' not in body:
        return None
    try:
        return _cap_2.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
