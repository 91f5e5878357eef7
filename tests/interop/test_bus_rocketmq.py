"""The bus on Apache's brokers: both message forms are preserved, keys keep order, wildcards skip system topics."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from tests.interop.fresh_topic import TIMEOUT_S
from tests.interop.platforms import Platform

from sparrow.bus.codec import headers as h
from sparrow.bus.transports.sparrow.consumer import SparrowGroupConsumer
from sparrow.bus.transports.sparrow.message_format import MessageForm
from sparrow.bus.transports.sparrow.transport import SparrowTransport
from sparrow.bus.transports.spi import BrokerDelivery, Envelope

COUNT = 1200


def event(number: int, name: str, *, key: str | None = None, body: bytes | None = None) -> Envelope:
    return Envelope(
        name=name,
        headers={h.ID: str(10**17 + number), h.NAME: name, h.CALLBACK: None, "colour": "蓝"},
        body=b"%d" % number if body is None else body,
        added=datetime(2026, 1, 1, tzinfo=UTC),
        key=key,
    )


@pytest.fixture
def name() -> str:
    """Return the name of an event that was never published."""
    return f"order.{uuid4().hex[:8]}.created"


@pytest.fixture
async def transport(apache_broker: Platform) -> AsyncIterator[SparrowTransport]:
    transport = SparrowTransport(apache_broker.name_server, timeout_ms=10_000, scan_interval_s=0.5)
    await transport.open()
    yield transport
    await transport.close()


async def received(listening: SparrowGroupConsumer, count: int) -> list[BrokerDelivery]:
    found: list[BrokerDelivery] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(found) < count:
            found += await listening.receive(count - len(found))
    return found


def numbers(deliveries: Sequence[BrokerDelivery]) -> list[int]:
    return [int(delivery.body) for delivery in deliveries]


@pytest.mark.parametrize("form", ["document", "cap"])
async def test_events_are_received_with_body_and_headers(apache_broker: Platform, name: str, form: MessageForm) -> None:
    transport = SparrowTransport(apache_broker.name_server, form=form, timeout_ms=10_000)
    await transport.open()
    sent = [event(1, name, body=b""), event(2, name, body='{"a":"é"}'.encode()), event(3, name, key="k", body=b"[]")]
    assert await transport.send(sent) == [None, None, None]
    listening = await transport.listen(f"group.of.{name}", [name], prefetch=10)
    found = sorted(await received(listening, 3), key=lambda delivery: delivery.headers[h.ID] or "")
    await transport.close()
    assert [(delivery.name, delivery.body) for delivery in found] == [(name, envelope.body) for envelope in sent]
    for delivery, envelope in zip(found, sent, strict=True):
        said = {header: value for header, value in envelope.headers.items() if value or form == "document"}
        assert delivery.headers == said


async def test_keys_keep_their_order_and_unacknowledged_events_are_delivered_again(
    transport: SparrowTransport, name: str
) -> None:
    events = [event(number, name, key=f"k{number % 7}") for number in range(COUNT)]
    assert not any(await transport.send(events[:700]))
    assert not any(await transport.send(events[700:]))
    first = await transport.listen("orders.v1", [name], prefetch=COUNT)
    found = await received(first, COUNT)
    for place in range(7):
        of_key = [number for number in numbers(found) if number % 7 == place]
        assert of_key == sorted(of_key)
    assert sorted(numbers(found)) == list(range(COUNT))
    await first.acknowledge([delivery for delivery in found if int(delivery.body) != COUNT - 1])
    await first.close()
    second = await transport.listen("orders.v1", [name], prefetch=COUNT)
    assert numbers(await received(second, 1)) == [COUNT - 1]


async def test_a_wildcard_finds_a_new_topic_and_no_system_topic(transport: SparrowTransport, name: str) -> None:
    listening = await transport.listen(f"everything.{name}", ["#.created"], prefetch=10)
    assert await transport.send([event(1, name)]) == [None]
    async with asyncio.timeout(TIMEOUT_S):
        while name not in {delivery.name for delivery in await listening.receive(100)}:
            pass
    everything = await transport.listen(f"all.of.{name}", ["#"], prefetch=10)
    topics = everything.topics
    assert name.replace(".", "|") in topics
    assert not [topic for topic in topics if "SYS" in topic.upper() or "%" in topic or topic in OF_THE_BROKER]


OF_THE_BROKER = ("TBW102", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "BenchmarkTest", "DefaultCluster")
