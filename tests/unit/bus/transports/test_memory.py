"""The broker in memory: the contract of every transport, and its ways to simulate failures."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from tests.support.wait import eventually, wait_until

from sparrow.bus.codec import headers as h
from sparrow.bus.transports.memory import MemoryBroker, MemoryConsumer, MemoryTransport
from sparrow.bus.transports.spi import BrokerDelivery, Envelope
from sparrow.model.errors import Closed, ConnectionLost, IllegalName, Refused

ADDED = datetime(2026, 1, 1, tzinfo=UTC)


def event(number: int, name: str = "order.created", key: str | None = None) -> Envelope:
    headers = {h.ID: str(number), h.NAME: name, h.CALLBACK: None}
    return Envelope(name=name, headers=headers, body=b"%d" % number, added=ADDED, key=key)


def numbers(deliveries: Sequence[BrokerDelivery]) -> list[int]:
    return [int(delivery.body) for delivery in deliveries]


async def send(transport: MemoryTransport, *which: int, name: str = "order.created") -> None:
    assert await transport.send([event(number, name) for number in which]) == [None] * len(which)


async def nothing_comes(listening: MemoryConsumer) -> bool:
    """Return whether no delivery is available; a delivery is available at once or never."""
    receiving = asyncio.create_task(listening.receive(1))
    for _ in range(10):
        await asyncio.sleep(0)
    receiving.cancel()
    with suppress(asyncio.CancelledError):
        await receiving
    return receiving.cancelled()


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


# -- groups and members -----------------------------------------------------------------------------------------------


async def test_an_event_arrives_with_all_headers_including_nulls(transport):
    listening = await transport.listen("g", ["order.created"], prefetch=10)
    await send(transport, 1)
    (delivery,) = await listening.receive(10)
    assert (delivery.name, delivery.body, delivery.headers) == ("order.created", b"1", event(1).headers)


async def test_every_group_gets_every_event_and_its_members_share_them(transport):
    first, second = [await transport.listen("shared", ["order.created"], prefetch=2) for _ in range(2)]
    alone = await transport.listen("alone", ["order.created"], prefetch=10)
    await send(transport, 1, 2, 3, 4)
    assert numbers(await alone.receive(10)) == [1, 2, 3, 4]
    assert numbers(await first.receive(10)) + numbers(await second.receive(10)) == [1, 2, 3, 4]


async def test_a_new_group_gets_the_retained_events():
    transport = MemoryTransport(MemoryBroker(retained_max=2))
    await send(transport, 1, 2, 3)
    assert numbers(await (await transport.listen("late", ["#"], prefetch=10)).receive(10)) == [2, 3]


async def test_a_waiting_receive_gets_an_event_that_is_sent_later(transport):
    listening = await transport.listen("g", ["order.created"], prefetch=10)
    receiving = asyncio.create_task(listening.receive(10))
    await asyncio.sleep(0)
    await send(transport, 1)
    assert numbers(await receiving) == [1]


async def test_wildcards_match_existing_and_new_names(transport):
    await send(transport, 1, name="order.created")
    listening = await transport.listen("g", ["order.*"], prefetch=10)
    await send(transport, 2, name="order.cancelled")
    await send(transport, 3, name="order.line.added")
    await send(transport, 4, name="order.created")
    assert numbers(await listening.receive(10)) == [1, 2, 4]


async def test_members_get_only_the_names_they_subscribed_to(transport):
    orders = await transport.listen("g", ["order.created"], prefetch=10)
    bills = await transport.listen("g", ["bill.paid"], prefetch=10)
    await send(transport, 1, name="order.created")
    await send(transport, 2, name="bill.paid")
    assert numbers(await orders.receive(10)) == [1]
    assert numbers(await bills.receive(10)) == [2]


async def test_at_most_prefetch_deliveries_are_unacknowledged(transport):
    listening = await transport.listen("g", ["order.created"], prefetch=2)
    await send(transport, 1, 2, 3)
    deliveries = await listening.receive(10)
    assert numbers(deliveries) == [1, 2]
    assert await nothing_comes(listening)
    await listening.acknowledge(deliveries[:1])
    assert numbers(await listening.receive(10)) == [3]


# -- redelivery -------------------------------------------------------------------------------------------------------


async def test_an_unacknowledged_event_goes_to_another_member_in_its_original_order(transport):
    dying = await transport.listen("g", ["order.created"], prefetch=10)
    other = await transport.listen("g", ["order.created"], prefetch=10)
    await send(transport, 1, 2, 3)
    deliveries = await dying.receive(3)
    await dying.acknowledge([deliveries[1]])
    await send(transport, 4)
    await dying.close()
    assert numbers(await other.receive(10)) == [1, 3, 4]


async def test_an_acknowledged_event_is_not_redelivered(transport):
    listening = await transport.listen("g", ["order.created"], prefetch=10)
    await send(transport, 1)
    await listening.acknowledge(await listening.receive(1))
    await listening.close()
    assert await nothing_comes(await transport.listen("g", ["order.created"], prefetch=10))


async def test_released_events_are_redelivered_first(transport):
    listening = await transport.listen("g", ["order.created"], prefetch=10)
    await send(transport, 1, 2, 3)
    await listening.release(await listening.receive(2))
    assert numbers(await listening.receive(10)) == [1, 2, 3]


async def test_a_cancelled_receive_loses_no_event(transport):
    listening = await transport.listen("g", ["order.created"], prefetch=10)
    assert await nothing_comes(listening)
    await send(transport, 1)
    assert numbers(await listening.receive(10)) == [1]


async def test_closing_ends_a_waiting_receive(transport):
    listening = await transport.listen("g", ["order.created"], prefetch=10)
    receiving = asyncio.create_task(listening.receive(10))
    await asyncio.sleep(0)
    await listening.close()
    with pytest.raises(Closed):
        await receiving


# -- simulated failures -----------------------------------------------------------------------------------------------


async def test_a_broker_that_is_down_refuses_every_call_and_keeps_its_events(transport):
    listening = await transport.listen("g", ["order.created"], prefetch=10)
    await send(transport, 1, 2)
    (delivery,) = await listening.receive(1)
    transport.broker.down = True
    for work in (
        transport.open(),
        transport.send([event(3)]),
        transport.listen("g", ["order.created"], prefetch=1),
        listening.receive(1),
        listening.acknowledge([delivery]),
    ):
        with pytest.raises(ConnectionLost):
            await work
    await listening.close()
    transport.broker.down = False
    await transport.open()
    again = await transport.listen("g", ["order.created"], prefetch=10)
    assert numbers(await again.receive(10)) == [1, 2]


async def test_a_waiting_receive_fails_when_the_broker_goes_down(transport):
    listening = await transport.listen("g", ["order.created"], prefetch=10)
    receiving = asyncio.create_task(listening.receive(1))
    await asyncio.sleep(0)
    transport.broker.down = True
    with pytest.raises(ConnectionLost):
        await receiving


async def test_withheld_acks_block_the_sender_and_not_the_receivers(transport):
    listening = await transport.listen("g", ["order.created"], prefetch=10)
    transport.broker.withhold_acknowledgements = True
    sending = asyncio.create_task(transport.send([event(1)]))
    assert numbers(await listening.receive(1)) == [1]
    assert not sending.done()
    assert transport.broker.sent == []
    transport.broker.withhold_acknowledgements = False
    assert await sending == [None]
    assert transport.broker.sent == [event(1)]


async def test_a_sender_may_stop_waiting_for_acks(transport):
    transport.broker.withhold_acknowledgements = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await transport.send([event(1)])
    assert transport.broker.sent == []


async def test_single_envelopes_can_be_refused(transport):
    refused = Refused("not this one")
    transport.broker.refusal = lambda envelope: refused if envelope.id == "2" else None
    assert await transport.send([event(1), event(2), event(3)]) == [None, refused, None]
    assert [envelope.id for envelope in transport.broker.sent] == ["1", "3"]


def test_an_event_needs_a_name(transport):
    transport.check_name("anything.goes-here")
    with pytest.raises(IllegalName):
        transport.check_name("")


# -- shared brokers ---------------------------------------------------------------------------------------------------


def test_transports_with_the_same_name_share_a_broker():
    assert MemoryTransport.at("a").broker is MemoryTransport.at("a").broker
    assert MemoryTransport.at("a").broker is not MemoryTransport.at("b").broker
    assert MemoryTransport.at("").broker is not MemoryTransport.at("").broker


async def test_a_receiver_in_another_thread_is_woken(transport):
    got: list[int] = []
    listens = threading.Event()

    async def receive_two() -> None:
        listening = await MemoryTransport(transport.broker).listen("g", ["order.created"], prefetch=10)
        listens.set()
        while len(got) < 2:
            deliveries = await listening.receive(1)
            got.extend(numbers(deliveries))
            await listening.acknowledge(deliveries)
        await listening.close()

    thread = threading.Thread(target=asyncio.run, args=(receive_two(),))
    thread.start()
    try:
        wait_until(listens.is_set)
        await send(transport, 1)
        await eventually(lambda: got == [1])
        await send(transport, 2)
        await eventually(lambda: got == [1, 2])
    finally:
        if got != [1, 2]:
            transport.broker.down = True  # ends the waiting receive in the thread
        thread.join()
