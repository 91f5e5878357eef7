"""The interface between the bus and a message broker.

1. `send` returns when the broker has acknowledged each envelope, or an error for each; it raises only if it could not
   try at all. Envelopes with the same key are sent in the given order.
2. A group receives every event of its names, and its consumers share them. A delivery belongs to a consumer until it is
   acknowledged or released; if the consumer crashes, it is delivered again.
3. If it is unknown whether an envelope arrived, it is sent again with the same id: receivers drop duplicates by id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from sparrow.bus.codec import headers as h


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """An event to be sent to a broker."""

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
        """The id of the message."""
        return self.headers[h.ID] or ""


class BrokerDelivery(msgspec.Struct, kw_only=True):
    """An event received from a broker."""

    name: str
    """Its name on the broker: the routing key, topic, stream or subject."""
    headers: dict[str, str | None]
    body: bytes
    ack_handle: Any = None
    """What the transport needs to acknowledge it."""


HeaderBuilder = Callable[[BrokerDelivery], dict[str, str | None]]
"""Creates the headers of a message that no CAP service sent. They need an id; the name has a default."""


class TransportConsumer(Protocol):
    """A consumer of one group for some event names."""

    async def receive(self, count_max: int) -> Sequence[BrokerDelivery]:
        """Wait for deliveries, and return at least one and at most `count_max`.

        Raises `Unavailable` if the broker went away: the caller then closes this consumer and opens a new one.
        """
        ...

    async def acknowledge(self, deliveries: Sequence[BrokerDelivery]) -> None:
        """Acknowledge deliveries that are stored."""
        ...

    async def release(self, deliveries: Sequence[BrokerDelivery]) -> None:
        """Release deliveries that could not be stored, for redelivery."""
        ...

    async def close(self) -> None:
        """Leave the group; other consumers receive what is neither acknowledged nor released."""
        ...


class Transport(Protocol):
    """A connection to a message broker."""

    def check_name(self, name: str) -> None:
        """Raise `IllegalName` for a name the broker would refuse. Called before anything is written."""
        ...

    async def open(self) -> None:
        """Connect; raise `Unavailable` if the broker cannot be reached. May be called again."""
        ...

    async def send(self, envelopes: Sequence[Envelope]) -> Sequence[Exception | None]:
        """Send envelopes; return None for each acknowledged one, or its error."""
        ...

    async def listen(self, group: str, names: Sequence[str], *, prefetch: int) -> TransportConsumer:
        """Join a group. Names may contain AMQP wildcards: `*` for one word, `#` for any number of words."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def with_foreign_headers(
    delivery: BrokerDelivery, fallback_id: str, build: HeaderBuilder | None = None
) -> BrokerDelivery:
    """Add missing headers to a delivery: from CAP 2's envelope, from `build`, or from the broker."""
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
    """The envelope of CAP 2: everything in the body, with the payload as text."""

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
