"""Bulk sends of lists, and batches of a pull as lists, on both stores and in both flavours of the client."""

import asyncio
import queue
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.test_producer import saying, scripted_broker, stored_saying
from tests.support.platforms import running_platform

from sparrow import testing
from sparrow.cli.server.platform import Platform
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.consume.consumer import Consumer
from sparrow.client.aio.produce.producer import Producer
from sparrow.client.blocking.consumer import Consumer as BlockingConsumer
from sparrow.client.blocking.producer import Producer as BlockingProducer
from sparrow.client.consume.pulled_batch import PulledBatch
from sparrow.client.consume.retry import DeadLetter, RetryLater
from sparrow.client.options import Prefetch
from sparrow.client.produce.queue_selection import by_hash
from sparrow.model.errors import Closed, PartialSend, Refused
from sparrow.model.message import Message
from sparrow.model.queue import Queue, QueueRef
from sparrow.model.send_result import SendStatus
from sparrow.store.spi import Slice
from sparrow.wire import batch, record
from sparrow.wire.codes import ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import SendMessage


@pytest.fixture(params=["log", "sqlite"])
async def platform(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Platform]:
    store = {"store": f"sqlite:///{tmp_path}/messages.db"} if request.param == "sqlite" else {}
    async with running_platform(tmp_path, **store) as started:
        yield started


@pytest.fixture
async def log_platform(tmp_path: Path) -> AsyncIterator[Platform]:
    async with running_platform(tmp_path) as started:
        yield started


async def stored_bodies(platform: Platform, topic: str, queue_id: int) -> list[bytes]:
    found = await platform.broker.broker.store.read(Queue(topic, queue_id), 0, count_max=1 << 20, bytes_max=1 << 30)
    return [each.body for each in record.decode_all(found.tobytes())] if isinstance(found, Slice) else []


# -- sending lists ----------------------------------------------------------------------------------------------------


async def test_result_says_where_each_message_of_a_list_is_stored(platform: Platform) -> None:
    bodies = [b"%d" % number + b"." * 600 for number in range(4_000)]  # more than two requests
    async with Producer(platform.name_servers, timeout_ms=60_000) as producer:
        await producer.send(Message("orders", b"makes the topic"))
        result = await producer.send_many("orders", bodies, keys=[f"k{number}" for number in range(4_000)])
    assert (result.count, result.is_ok) == (4_000, True)
    assert len(result.ranges) > 2
    assert [index for each in result.ranges for index in each.indexes] == list(range(4_000))
    queues = {queue_id: await stored_bodies(platform, "orders", queue_id) for queue_id in range(4)}
    for index in (0, 1, 1_999, 3_999):
        queue, offset = result.locate(index)
        assert queues[queue.queue_id][offset] == bodies[index]
    with pytest.raises(IndexError, match="message 4000 is not one of the 4000"):
        result.locate(4_000)


async def test_list_for_a_queue_is_stored_there_in_order(platform: Platform) -> None:
    bodies = [b"%d" % number + b"." * 600 for number in range(4_000)]
    async with Producer(platform.name_servers, timeout_ms=60_000) as producer:
        result = await producer.send_many("orders", bodies, queue=QueueRef("orders", "sparrow", 0))
    (queue_id,) = {each.queue.queue_id for each in result.ranges}  # on a SQL store, that of the middle lane
    assert await stored_bodies(platform, "orders", queue_id) == bodies


async def test_messages_of_one_sharding_key_keep_their_order(platform: Platform) -> None:
    keys = [f"order-{number % 10}" for number in range(3_000)]
    bodies = [f"{key} {number}" + "." * 900 for number, key in enumerate(keys)]
    async with Producer(platform.name_servers, timeout_ms=60_000) as producer:
        result = await producer.send_many("orders", bodies, sharding_keys=keys)
        route = await producer.session.route("orders")
    assert sorted(index for each in result.ranges for index in each.indexes) == list(range(3_000))
    for key in set(keys):
        queue, _ = result.locate(keys.index(key))
        written = by_hash(key)(route.write_queues, Message("orders"))
        assert queue == written or len(route.read_queues) == 3 * len(route.write_queues)  # in the middle lane
        found = [
            body
            for body in await stored_bodies(platform, "orders", queue.queue_id)
            if body.startswith(key.encode() + b" ")
        ]
        assert found == [body.encode() for body, of in zip(bodies, keys, strict=True) if of == key]


async def test_empty_list_sends_nothing(log_platform: Platform) -> None:
    async with Producer(log_platform.name_servers, timeout_ms=60_000) as producer:
        result = await producer.send_many("orders", [])
    assert (result.count, result.ranges) == (0, ())


async def test_partly_sent_list_names_the_messages_that_are_missing(log_platform: Platform) -> None:
    taken: list[list[bytes]] = []

    def refuse_the_second(header: SendMessage, command: RemotingCommand) -> RemotingCommand:
        taken.append([member.body for member in batch.decode(command.body)])
        return (saying(ResponseCode.MESSAGE_ILLEGAL) if len(taken) == 2 else stored_saying(0))(header, command)

    bodies = [b"%d" % number + b"." * 10_000 for number in range(500)]
    async with (
        scripted_broker(log_platform, "orders", refuse_the_second),
        Producer(log_platform.name_servers, retries=0) as producer,
    ):
        with pytest.raises(PartialSend, match=r"as told.*`missing` has the positions") as caught:
            await producer.send_many("orders", bodies, queue=QueueRef("orders", "scripted", 0))
    assert len(taken) == 2  # nothing overtakes what was refused
    assert [bodies[index] for index in caught.value.missing] == bodies[len(taken[0]) :]
    (only,) = caught.value.stored
    assert (only.status, only.queue_offset, only.indexes) == (SendStatus.OK, 5, range(len(taken[0])))
    assert caught.value.acknowledged == len(taken[0])


async def test_message_that_cannot_be_encoded_is_named_and_the_others_are_not_sent_twice(
    log_platform: Platform,
) -> None:
    bodies = [b"." * 9_000] * 1_000  # more than is encoded at a time
    keys = ["fine"] * 999 + ["two\x02parts"]
    async with Producer(log_platform.name_servers, timeout_ms=60_000) as producer:
        with pytest.raises(PartialSend, match="message 999 of 1000 cannot be sent: property 'KEYS'") as caught:
            await producer.send_many("orders", bodies, keys=keys)
        with pytest.raises(Refused, match="message 1 of 2 cannot be sent"):
            await producer.send_many("orders", [b"x", b"y"], keys=keys[-2:])
    stored = sum([len(await stored_bodies(log_platform, "orders", queue_id)) for queue_id in range(4)])
    assert stored == caught.value.acknowledged == 1_000 - len(caught.value.missing)
    assert caught.value.missing[-1] == 999


async def test_bulk_send_needs_an_open_producer_that_may_send_batches(log_platform: Platform) -> None:
    with pytest.raises(Closed):
        await Producer(log_platform.name_servers).send_many("orders", [b"x"])
    async with Producer(log_platform.name_servers, idempotent=True) as producer:
        with pytest.raises(Refused, match="sends no batches"):
            await producer.send_many("orders", [b"x"])
    async with Producer(log_platform.name_servers, timeout_ms=60_000) as producer:
        with pytest.raises(Refused, match="in_flight is 0"):
            await producer.send_many("orders", [b"x"], in_flight=0)


async def test_cancelled_bulk_send_releases_its_memory(log_platform: Platform) -> None:
    async with (
        scripted_broker(log_platform, "orders", lambda *_: None) as asked,
        Producer(log_platform.name_servers, timeout_ms=60_000) as producer,
    ):
        sending = asyncio.create_task(producer.send_many("orders", [b"." * 1000] * 5_000))
        while not asked:
            await asyncio.sleep(0.01)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        while producer._budget.used_bytes:
            await asyncio.sleep(0.01)


# -- taking batches ---------------------------------------------------------------------------------------------------


async def fill(platform: Platform, count: int, **given: object) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    async with Producer(platform.name_servers, timeout_ms=60_000) as producer:
        await producer.send_many("orders", bodies, queue=QueueRef("orders", "sparrow", 0), **given)
    return bodies


async def test_batches_are_polled_in_order_and_count_as_consumed_at_the_next_poll(platform: Platform) -> None:
    keys = [f"k{number}" if number % 3 else None for number in range(500)]
    bodies = await fill(platform, 500, keys=keys, tags="paid", properties={"city": "Oslo"})
    async with Consumer(platform.name_servers, group="g", prefetch=Prefetch(pull_count_max=200)) as consumer:
        await consumer.subscribe("orders")
        batches = [await next_batch(consumer) for _ in range(3)]
        assert [len(batch) for batch in batches] == [200, 200, 100]
        assert [body for batch in batches for body in batch.bodies] == bodies
        assert [key for batch in batches for key in batch.keys] == keys
        first = batches[0]
        assert (first.queue.topic, first.queue.broker_name, first.topic) == ("orders", "sparrow", "orders")
        assert (first.tags[7], first.properties[7]["city"], first.queue_offsets[7]) == ("paid", "Oslo", 7)
        assert (first[7].body, first[7].keys, first[7].queue_offset) == (b"7", ["k7"], 7)
        assert consumer.positions("orders")[first.queue] == 400  # the last one is still in progress
        await consumer.commit()
        assert consumer.positions("orders")[first.queue] == 500
        with pytest.raises(Refused, match="either messages or batches"):
            await consumer.poll()


async def next_batch(consumer: Consumer) -> PulledBatch:
    batch = None
    while batch is None:
        batch = await consumer.poll_batch(timeout_ms=30_000)
    return batch


async def test_tags_that_only_share_a_hash_are_left_out_of_batches(platform: Platform) -> None:
    await fill(platform, 4, tags=["Aa", "BB", "Aa", "BB"])  # Java's hash of both is the same
    async with Consumer(platform.name_servers, group="g") as consumer:
        await consumer.subscribe("orders", "Aa")
        batch = await next_batch(consumer)
        assert (batch.bodies, batch.tags, batch.queue_offsets) == ([b"0", b"2"], ["Aa", "Aa"], [0, 2])
        assert [message.body for message in batch] == [b"0", b"2"]


async def test_compressed_bodies_are_expanded(log_platform: Platform) -> None:
    async with Producer(log_platform.name_servers, timeout_ms=60_000) as producer:
        for body in (b"x" * 10_000, b"short"):
            await producer.send(Message("orders", body, keys="k"), queue=QueueRef("orders", "sparrow", 0))
    async with Consumer(log_platform.name_servers, group="g") as consumer:
        await consumer.subscribe("orders")
        batch = await next_batch(consumer)
        assert (batch.bodies, batch.keys) == ([b"x" * 10_000, b"short"], ["k", "k"])
        assert batch.message_ids == [message.unique_key for message in batch]


async def test_failed_batch_is_delivered_again_by_its_messages(platform: Platform) -> None:
    bodies = await fill(platform, 40)
    seen: list[tuple[str, int, list[bytes]]] = []
    again = asyncio.Event()

    async def fail_first(batch: PulledBatch) -> None:
        seen.append((batch.topic, batch.reconsume_times, batch.bodies))
        if batch.reconsume_times == 0:
            raise RetryLater(1)
        if sum(len(found) for _, times, found in seen if times) == len(bodies):
            again.set()

    async with Consumer(platform.name_servers, group="g") as consumer:
        await consumer.subscribe("orders")
        await consumer.start_batches(fail_first)
        await asyncio.wait_for(again.wait(), 120)
    assert seen[0] == ("orders", 0, bodies)
    assert sorted(body for topic, times, found in seen if times == 1 for body in found) == sorted(bodies)
    assert {topic for topic, _, _ in seen} == {"orders"}


async def test_orderly_batch_is_retried_in_place_and_then_given_up(log_platform: Platform) -> None:
    bodies = await fill(log_platform, 30)
    seen: list[tuple[int, list[bytes]]] = []
    done = asyncio.Event()

    async def fail(batch: PulledBatch) -> None:
        seen.append((batch.reconsume_times, batch.bodies))
        if b"0" not in batch.bodies:
            done.set()
        elif batch.reconsume_times:
            raise DeadLetter
        else:
            raise RetryLater(1)

    prefetch = Prefetch(pull_count_max=20)
    async with (
        Consumer(log_platform.name_servers, group="g", prefetch=prefetch) as consumer,
        Admin(log_platform.name_servers) as admin,
    ):
        await consumer.subscribe("orders")
        await consumer.start_batches(fail, orderly=True)
        await asyncio.wait_for(done.wait(), 120)
        assert seen == [(0, bodies[:20]), (1, bodies[:20]), (0, bodies[20:])]
        dead = await admin.dead_letters("g")
    assert sorted(message.body for message in dead) == sorted(bodies[:20])


def test_blocking_consumer_takes_batches(tmp_path: Path) -> None:
    with testing.run_platform() as platform, BlockingProducer(platform.name_servers) as producer:
        result = producer.send_many("orders", [b"a", "b"], tags=["x", None], properties={"city": "Oslo"})
        assert result.count == 2
        with pytest.raises(TypeError, match=r"bodies\[1\]"):
            producer.send_many("orders", [b"a", 7])  # type: ignore[list-item]
        with BlockingConsumer(platform.name_servers, group="polling") as consumer:
            consumer.subscribe("orders")
            batch = consumer.poll_batch(timeout_ms=60_000)
            assert batch is not None
            assert (batch.bodies, batch.tags) == ([b"a", b"b"], ["x", None])
            consumer.commit()
            assert consumer.poll_batch(timeout_ms=0) is None
        arrived: queue.Queue[list[bytes]] = queue.Queue()
        with BlockingConsumer(platform.name_servers, group="handling") as consumer:
            consumer.subscribe("orders")
            consumer.start_batches(lambda batch: arrived.put(batch.bodies))
            assert arrived.get(timeout=60) == [b"a", b"b"]
