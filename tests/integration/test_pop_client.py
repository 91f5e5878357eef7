"""The pop consumer of Sparrow's own client."""

import asyncio

import pytest
from tests.support.platforms import running_platform
from tests.support.wait import eventually

from sparrow.client.aio import Producer
from sparrow.client.aio.consume.pop_consumer import PopConsumer
from sparrow.model import Message
from sparrow.model.errors import Refused, SparrowError


@pytest.fixture
async def platform(tmp_path):
    async with running_platform(tmp_path) as running:
        yield running


async def filled(platform, count: int, **properties: str) -> None:
    async with Producer(platform.name_servers) as producer:
        for number in range(count):
            await producer.send(Message("orders", b"%d" % number, properties=properties))


async def test_acknowledged_message_is_not_delivered_again(platform):
    await filled(platform, 20)
    async with PopConsumer(platform.name_servers, group="g", invisible_ms=1_000) as consumer:
        seen: list[bytes] = []
        while len(seen) < 20:
            receipts = await consumer.receive("orders", count_max=8, wait_ms=2_000)
            seen += [receipt.message.body for receipt in receipts]
            await consumer.ack(receipts)
        assert sorted(map(int, seen)) == list(range(20))
        assert await consumer.receive("orders", wait_ms=1_500) == [], (
            "acknowledged messages must not return after the invisible time"
        )


async def test_unacknowledged_message_returns_after_its_invisible_time(platform):
    await filled(platform, 1)
    async with PopConsumer(platform.name_servers, group="g", invisible_ms=300) as consumer:
        (first,) = await consumer.receive("orders")
        (again,) = await consumer.receive("orders", wait_ms=10_000)
        assert (again.message.body, again.message.topic) == (b"0", "orders")
        assert (first.message.reconsume_times, again.message.reconsume_times) == (0, 1)
        with pytest.raises(SparrowError):
            await consumer.ack(first)
        await consumer.ack(again)


async def test_invisible_time_can_be_extended(platform):
    await filled(platform, 1)
    async with PopConsumer(platform.name_servers, group="g", invisible_ms=1_000) as consumer:
        (receipt,) = await consumer.receive("orders")
        kept = await consumer.change_invisible_time(receipt, 60_000)
        with pytest.raises(SparrowError):
            await consumer.ack(receipt)
        assert await consumer.receive("orders", wait_ms=1_500) == []
        await consumer.ack(kept)


async def test_several_consumers_pop_all_queues_without_duplicates(platform):
    await filled(platform, 40)
    consumers = [PopConsumer(platform.name_servers, group="g") for _ in range(4)]
    for consumer in consumers:
        await consumer.open()
    taken = await asyncio.gather(*(consumer.receive("orders", count_max=10) for consumer in consumers))
    bodies = [receipt.message.body for receipts in taken for receipt in receipts]
    assert len(bodies) == len(set(bodies))
    for consumer, receipts in zip(consumers, taken, strict=True):
        await consumer.ack(receipts)
        await consumer.close()


async def test_waiting_receive_gets_a_new_message(platform):
    await filled(platform, 1)
    async with PopConsumer(platform.name_servers, group="g") as consumer:
        await consumer.ack(await consumer.receive("orders"))
        waiting = asyncio.create_task(consumer.receive("orders", wait_ms=15_000))
        await eventually(lambda: platform.broker.broker.long_polls.count > 0)
        await filled(platform, 1)
        (receipt,) = await asyncio.wait_for(waiting, 12)
        assert receipt.message.body == b"0"


async def test_filters_apply_to_pop(platform):
    async with Producer(platform.name_servers) as producer:
        for number in range(10):
            await producer.send(Message("priced", b"%d" % number, properties={"price": str(number)}))
    async with PopConsumer(platform.name_servers, group="g") as consumer:
        found: list[bytes] = []
        while len(found) < 3:
            receipts = await consumer.receive("priced", expression="price > 6", expression_type="SQL92")
            found += [receipt.message.body for receipt in receipts]
        assert sorted(found) == [b"7", b"8", b"9"]


async def test_batch_larger_than_the_limit_of_the_broker_is_refused(platform):
    async with PopConsumer(platform.name_servers, group="g") as consumer:
        with pytest.raises(Refused, match="32"):
            await consumer.receive("orders", count_max=33)
