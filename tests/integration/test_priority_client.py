"""Priorities in the client: messages of three lanes are delivered high first, and no lane starves."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.platform_driver import PlatformDriver, queue_ref, running_platform_driver
from tests.support.recording_handlers import GatedHandler, RecordingHandler, body_texts
from tests.support.wait import eventually, wait_until

from sparrow import clock
from sparrow.client import Consumer as BlockingConsumer
from sparrow.client.aio import Admin, ClientSession, Consumer, Producer
from sparrow.client.aio.consume import queue_fetcher
from sparrow.client.aio.consume.pull import PullResult, pull
from sparrow.client.consume.retry import RetryLater
from sparrow.client.options import Prefetch
from sparrow.model.errors import Refused
from sparrow.model.message import Message, StoredMessage
from sparrow.model.priority import Priority
from sparrow.model.queue import Queue
from sparrow.testing import run_platform
from sparrow.wire.bodies import QueueRef

HIGH, MIDDLE, LOW = (queue_ref("T", lane) for lane in Priority)
WAITING = {"low": 9, "middle": 4, "high": 3}
IN_ORDER = [f"{word}{number}" for word in ("high", "middle", "low") for number in range(WAITING[word])]


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[PlatformDriver]:
    async with running_platform_driver(tmp_path) as driver:
        await made(driver, "T")
        yield driver


async def made(driver: PlatformDriver, topic: str, parts: int = 1) -> None:
    async with Admin(driver.name_servers) as admin:
        await admin.create_topic(topic, parts, has_lanes=True)


async def put(driver: PlatformDriver, word: str, bodies: list[str], topic: str = "T") -> None:
    async with Producer(driver.name_servers) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, priority=word))


async def put_waiting(driver: PlatformDriver) -> None:
    """Send the lowest priority first: 9 low, 4 middle, 3 high."""
    for word, count in WAITING.items():
        await put(driver, word, [f"{word}{number}" for number in range(count)])


def in_hand(consumer: Consumer) -> dict[str, int]:
    """Return the number of fetched and unsettled messages, by priority."""
    counts = {"high": 0, "middle": 0, "low": 0}
    for queue, (_, count) in consumer._membership.queue_states().items():
        if queue.topic == "T":
            counts[Priority(queue.queue_id % 3).label] += count
    return counts


# -- order ------------------------------------------------------------------------------------------------------------


async def test_poll_returns_high_then_middle_then_low(driver):
    await put_waiting(driver)
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        assert body_texts(await consumer.poll(10, timeout_ms=10_000)) == IN_ORDER[:10]
        assert body_texts(await consumer.poll(10, timeout_ms=10_000)) == IN_ORDER[10:]
        await consumer.commit()
    assert [await driver.committed_offset("readers", "T", lane) for lane in Priority] == [3, 4, 9]


async def test_batch_of_a_handler_has_high_then_middle_then_low(driver):
    await put_waiting(driver)
    batches: list[list[str]] = []

    async def handler(messages: list[StoredMessage]) -> None:
        batches.append(body_texts(messages))

    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        await consumer.start(handler, workers=1, batch=10)
        await eventually(lambda: len(batches) == 2)
    assert batches == [IN_ORDER[:10], IN_ORDER[10:]]
    assert [await driver.committed_offset("readers", "T", lane) for lane in Priority] == [3, 4, 9]


async def test_handler_of_single_messages_gets_them_by_priority(driver):
    await put_waiting(driver)
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        handler = RecordingHandler()
        await consumer.start(handler, workers=1)
        await eventually(lambda: len(handler.messages) == 16)
    assert handler.texts == IN_ORDER


async def test_high_lane_comes_first_even_if_its_pull_ends_last(driver, monkeypatch):
    await put_waiting(driver)
    others_answered = asyncio.Event()

    async def slow(session: ClientSession, queue: QueueRef, *place: Any, **how: Any) -> PullResult:
        if queue == HIGH:
            await others_answered.wait()
        answer = await pull(session, queue, *place, **how)
        if queue == LOW:
            others_answered.set()
        return answer

    monkeypatch.setattr(queue_fetcher, "pull", slow)
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        assert body_texts(await consumer.poll(10, timeout_ms=10_000)) == IN_ORDER[:10]


async def test_lanes_wait_only_briefly_for_a_lane_that_does_not_respond(driver, monkeypatch):
    await put_waiting(driver)
    never = asyncio.Event()

    async def silent(session: ClientSession, queue: QueueRef, *place: Any, **how: Any) -> PullResult:
        if queue == HIGH:
            await never.wait()
        answer = await pull(session, queue, *place, **how)
        if queue == MIDDLE:  # later than the low lane, but before the end of its wait
            await asyncio.sleep(0.3)
        return answer

    monkeypatch.setattr(queue_fetcher, "pull", silent)
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        assert body_texts(await consumer.poll(10, timeout_ms=10_000)) == IN_ORDER[3:13]


async def test_high_message_overtakes_prefetched_low_ones(driver):
    await put(driver, "low", ["l0", "l1", "l2"])
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        assert (await anext(consumer)).body == b"l0"
        await eventually(lambda: in_hand(consumer)["low"] == 3)
        await put(driver, "high", ["h0"])
        await eventually(lambda: in_hand(consumer)["high"] == 1)
        assert [(await anext(consumer)).body for _ in range(3)] == [b"h0", b"l1", b"l2"]


async def test_retried_message_keeps_its_priority(driver):
    await put(driver, "low", ["l0", "l1", "l2"])
    await put(driver, "high", ["h0"])
    gate, failed = GatedHandler(), list[str]()

    async def handler(message: StoredMessage) -> None:
        if message.body == b"h0" and not failed:
            failed.append("h0")
            raise RetryLater(1)
        await gate(message)

    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        await consumer.start(handler, workers=1)
        retry = queue_ref("%RETRY%readers")
        await eventually(lambda: consumer._membership.queue_states().get(retry, (0, 0))[1] == 1)
        gate.opened.set()
        await eventually(lambda: len(gate.finished) == 4)
    assert gate.finished == ["l0", "h0", "l1", "l2"]


async def test_orderly_consumer_keeps_the_order_of_every_lane(driver):
    await put_waiting(driver)
    handled: dict[str, list[str]] = defaultdict(list)

    async def handler(message: StoredMessage) -> None:
        handled[message.properties["PRIORITY"]].append(message.body.decode())

    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        await consumer.start(handler, orderly=True)
        await eventually(lambda: sum(map(len, handled.values())) == 16)
    assert handled == {word: [f"{word}{number}" for number in range(count)] for word, count in WAITING.items()}


async def test_seek_in_one_lane_redelivers_nothing_of_the_others(driver):
    await put(driver, "low", ["l0", "l1", "l2"])
    await put(driver, "middle", ["m0", "m1"])
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        assert body_texts(await consumer.poll(3, timeout_ms=10_000)) == ["m0", "m1", "l0"]
        assert await consumer.poll(0, timeout_ms=10) == []
        await consumer.seek(LOW, 0)
        found: list[str] = []
        while len(found) < 3 and (some := await consumer.poll(10, timeout_ms=10_000)):
            found += body_texts(some)
        assert found == ["l0", "l1", "l2"]
        assert await consumer.poll(10, timeout_ms=50) == []


async def test_batch_has_one_topic_and_topics_alternate(driver):
    await made(driver, "U")
    await put(driver, "high", ["T"] * 30)
    await put(driver, "low", ["U"] * 30, "U")
    batches: list[set[str]] = []

    async def handler(messages: list[StoredMessage]) -> None:
        batches.append({message.topic for message in messages})

    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        await consumer.subscribe("U")
        await consumer.start(handler, workers=1, batch=10)
        await eventually(lambda: len(batches) >= 6)
    assert sorted(map(sorted, batches)) == [["T"]] * 3 + [["U"]] * 3


async def test_members_of_a_group_read_every_lane_of_every_queue_once(driver):
    await made(driver, "P", parts=4)
    every = {f"{word}{number}" for word in ("high", "middle", "low") for number in range(40)}
    async with (
        Consumer(driver.name_servers, group="readers") as one,
        Consumer(driver.name_servers, group="readers") as other,
    ):
        handler = RecordingHandler()
        for consumer in (one, other):
            await consumer.subscribe("P")
            await consumer.start(handler)
        await eventually(lambda: [len([q for q in c.queues if q.topic == "P"]) for c in (one, other)] == [6, 6])
        for word in ("high", "middle", "low"):
            await put(driver, word, [f"{word}{number}" for number in range(40)], "P")
        await eventually(lambda: len(handler.messages) >= 120)
    assert sorted(handler.texts) == sorted(every)


async def test_topic_without_lanes_ignores_priorities(driver):
    await driver.create_topic("plain")
    await put(driver, "low", ["l"], "plain")
    await put(driver, "high", ["h"], "plain")
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("plain")
        assert [(await anext(consumer)).body for _ in range(2)] == [b"l", b"h"]


# -- no lane starves --------------------------------------------------------------------------------------------------


async def flooded(driver: PlatformDriver, consumer: Consumer, starvation_ms: int, handled: int) -> list[str]:
    """Return the first messages of one worker, with a low message that is old enough and hundreds of high ones."""
    await put(driver, "low", ["low"])
    stored_ms = clock.now_ms()
    async with Producer(driver.name_servers) as producer:
        for _ in range(4):
            await producer.send_batch([Message("T", "high", priority="high") for _ in range(500)])
    gate = GatedHandler()
    await consumer.subscribe("T")
    await consumer.start(gate, workers=1)
    await eventually(lambda: in_hand(consumer)["high"] > 900 and in_hand(consumer)["low"] == 1)
    await eventually(lambda: clock.now_ms() > stored_ms + starvation_ms)
    gate.opened.set()
    await eventually(lambda: len(gate.messages) >= handled)
    return gate.texts[:handled]


async def test_low_message_is_delivered_after_its_starvation_time_under_high_traffic(driver):
    async with Consumer(driver.name_servers, group="readers", starvation_ms=200) as consumer:
        seen = await flooded(driver, consumer, starvation_ms=200, handled=12)
    assert seen.count("low") == 1


async def test_low_message_waits_for_all_high_ones_without_a_starvation_time(driver):
    async with Consumer(driver.name_servers, group="readers", starvation_ms=0) as consumer:
        seen = await flooded(driver, consumer, starvation_ms=200, handled=500)
    assert "low" not in seen


async def test_full_lane_takes_no_prefetch_space_from_another(driver):
    await put(driver, "high", ["h"] * 50)
    async with Consumer(driver.name_servers, group="readers", prefetch=Prefetch(count_max=10)) as consumer:
        await consumer.subscribe("T")
        gate = GatedHandler()
        await consumer.start(gate, workers=1)
        await eventually(lambda: in_hand(consumer)["high"] == 10)
        await put(driver, "low", ["l"])
        await eventually(lambda: in_hand(consumer)["low"] == 1)
        gate.opened.set()


# -- produce ----------------------------------------------------------------------------------------------------------


async def test_lingering_messages_go_to_their_own_lanes(driver):
    async with Producer(driver.name_servers, linger_ms=20) as producer:
        sent = [
            producer.send_soon(Message("T", f"{word}{number}", priority=word))
            for number in range(5)
            for word in ("low", "high", "middle")
        ]
        sent.append(producer.send_soon(Message("T", "says nothing")))
        results = await asyncio.gather(*sent)
    assert [result.queue_id for result in results] == [2, 0, 1] * 5 + [1]
    bounds = [await driver.platform.broker.broker.store.bounds(Queue("T", lane)) for lane in Priority]
    assert [end for _, end in bounds] == [5, 6, 5]


async def test_lingering_messages_of_a_queue_without_lanes_keep_their_order(driver):
    await driver.create_topic("plain")
    queue = queue_ref("plain")
    async with Producer(driver.name_servers, linger_ms=20) as producer:
        await producer.send(Message("plain", "first"))  # from now on the route is known: no lanes
        words = ["low", "high", None, "middle"] * 5
        sent = [producer.send_soon(Message("plain", "x", priority=word), queue=queue) for word in words]
        offsets = [result.queue_offset for result in await asyncio.gather(*sent)]
    assert offsets == list(range(1, 21))


async def test_batch_of_different_priorities_is_refused(driver):
    async with Producer(driver.name_servers) as producer:
        with pytest.raises(Refused, match="one lane"):
            await producer.send_batch([Message("T", "x", priority=word) for word in ("high", "low")])


async def test_delayed_and_transactional_messages_arrive_in_their_lane(driver):
    async with Producer(driver.name_servers, group="tellers") as producer:
        await producer.send(Message("T", "later", priority="high"), deliver_after_ms=50)
        async with producer.transaction(Message("T", "sure", priority="low")):
            pass
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        found = {message.body: message.queue_id for message in [await anext(consumer) for _ in range(2)]}
    assert found == {b"later": Priority.HIGH, b"sure": Priority.LOW}


# -- blocking ---------------------------------------------------------------------------------------------------------


def test_blocking_client_delivers_high_first(tmp_path):
    from sparrow.client import Admin, Producer

    with run_platform(tmp_path) as platform:
        with Admin(platform.name_servers) as admin:
            admin.create_topic("T", 1, has_lanes=True)
        with Producer(platform.name_servers) as producer:
            for word, count in WAITING.items():
                for number in range(count):
                    producer.send(Message("T", f"{word}{number}", priority=word))
        with BlockingConsumer(platform.name_servers, group="polling") as consumer:
            consumer.subscribe("T")
            assert body_texts(consumer.poll(10, timeout_ms=10_000)) == IN_ORDER[:10]
        with BlockingConsumer(platform.name_servers, group="looping") as consumer:
            consumer.subscribe("T")
            assert body_texts([next(consumer) for _ in range(16)]) == IN_ORDER
        handled: list[str] = []
        with BlockingConsumer(platform.name_servers, group="handling") as consumer:
            consumer.subscribe("T")
            consumer.start(lambda message: handled.append(message.body.decode()), workers=1)
            wait_until(lambda: len(handled) == 16)
        assert handled == IN_ORDER


def test_blocking_iteration_buffers_few_messages_of_a_topic_with_lanes(tmp_path):
    from sparrow.client import Admin, Producer

    with run_platform(tmp_path) as platform:
        with Admin(platform.name_servers) as admin:
            admin.create_topic("T", 1, has_lanes=True)
        with (
            Producer(platform.name_servers) as producer,
            BlockingConsumer(platform.name_servers, group="g") as consumer,
        ):
            for _ in range(40):
                producer.send(Message("T", "low", priority="low"))
            consumer.subscribe("T")
            next(consumer)
            producer.send(Message("T", "high", priority="high"))
            wait_until(lambda: consumer._call(lambda: in_hand(consumer._client)["high"]) == 1)
            taken = body_texts([next(consumer) for _ in range(10)])
    assert "high" in taken
