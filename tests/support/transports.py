"""Sending events through a transport of the bus, and receiving them, without a bus."""

import asyncio
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime

from sparrow.bus.codec import headers as h
from sparrow.bus.transports.spi import BrokerDelivery, Envelope, Transport, TransportConsumer

WAIT_S = 30.0
_numbers = itertools.count(1)


def event(name: str, body: bytes = b"{}", **headers: str | None) -> Envelope:
    """Return an event with an id that no other event of this process has."""
    number = str(next(_numbers))
    return Envelope(name=name, headers={h.ID: number, h.NAME: name, **headers}, body=body, added=datetime.now(UTC))


async def send(transport: Transport, *envelopes: Envelope) -> None:
    """Send events, all of which must be accepted."""
    assert await transport.send(envelopes) == [None] * len(envelopes)


async def receive(consumer: TransportConsumer, count: int = 1) -> list[BrokerDelivery]:
    """Receive exactly this many deliveries, in any number of calls."""
    found: list[BrokerDelivery] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await consumer.receive(count - len(found))
    return found


def ids(deliveries: Sequence[BrokerDelivery | Envelope]) -> list[str | None]:
    """Return the ids of events, in their order."""
    return [each.headers[h.ID] for each in deliveries]
