"""Delivery at most once: a message is committed before it is delivered, and never delivered again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.platform_driver import PlatformDriver, running_platform_driver
from tests.support.recording_handlers import RecordingHandler
from tests.support.wait import eventually

import sparrow
from sparrow import DeadLetter, RetryLater, StoredMessage
from sparrow.client.aio import Admin, Consumer
from sparrow.model.queue import Queue

QUEUES = 2


@pytest.fixture(params=["log", "sqlite"])
async def driver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PlatformDriver]:
    store = {"store": f"sqlite:///{tmp_path}/messages.db"} if request.param == "sqlite" else {}
    async with running_platform_driver(tmp_path, topic_queues=QUEUES, **store) as running:
        await running.create_topic("t", QUEUES)
        yield running


async def send_each(driver: PlatformDriver, each: int, prefix: str = "") -> set[str]:
    return await driver.send_to_each_queue("t", QUEUES, each, prefix=prefix)


class CommitCheck(RecordingHandler):
    """A handler that records messages which are not committed when they are delivered."""

    def __init__(self, driver: PlatformDriver) -> None:
        super().__init__()
        self._driver = driver
        self.early: list[str] = []

    async def __call__(self, given: StoredMessage | list[StoredMessage]) -> None:
        for message in given if isinstance(given, list) else [given]:
            committed = await self._driver.committed_offset("g", "t", message.queue_id)
            if committed is None or committed <= message.queue_offset:
                self.early.append(message.body.decode())
            self.messages.append(message)


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("orderly", [False, True])
async def test_handlers_get_committed_messages_only(driver: PlatformDriver, orderly: bool, batch: int | None) -> None:
    every = await send_each(driver, 50)
    handler = CommitCheck(driver)
    async with Consumer(driver.name_servers, group="g", at_most_once=True, commit_interval_ms=50) as consumer:
        await consumer.subscribe("t")
        await consumer.start(handler, orderly=orderly, batch=batch)
        await eventually(lambda: set(handler.texts) == every)
    assert handler.early == []
    assert Counter(handler.texts) == Counter(every)


async def test_polls_and_iteration_get_committed_messages_only(driver: PlatformDriver) -> None:
    every = await send_each(driver, 20)
    check = CommitCheck(driver)
    async with Consumer(driver.name_servers, group="g", at_most_once=True) as consumer:
        await consumer.subscribe("t")
        await check(await consumer.poll(7, timeout_ms=5_000))
        for _ in range(5):
            await check(await anext(consumer))
        while len(check.messages) < len(every):
            await check(await consumer.poll(1000, timeout_ms=0))
    assert check.early == []
    assert Counter(check.texts) == Counter(every)


async def test_the_blocking_consumer_loses_nothing_when_it_is_closed(driver: PlatformDriver) -> None:
    every = await send_each(driver, 20)

    def read(count: int, way: str) -> list[str]:
        with sparrow.Consumer(driver.name_servers, group="g", at_most_once=True) as consumer:
            consumer.subscribe("t")
            if way == "iterate":
                return [next(consumer).body.decode() for _ in range(count)]
            found: list[str] = []
            while len(found) < count:
                found += [message.body.decode() for message in consumer.poll(count - len(found), timeout_ms=5_000)]
            return found

    found = [*await asyncio.to_thread(read, 3, "iterate"), *await asyncio.to_thread(read, 4, "poll")]
    found += await asyncio.to_thread(read, len(every) - 7, "poll")
    assert Counter(found) == Counter(every)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_failed_message_is_not_delivered_again_unless_as_a_dead_letter(
    driver: PlatformDriver, orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    failures: dict[str, Exception] = {
        "0-0": RuntimeError("broken"),
        "0-1": RetryLater(1),
        "0-2": DeadLetter("no such customer"),
    }
    every = await send_each(driver, 5)
    handler = RecordingHandler()

    async def handle(message: StoredMessage) -> None:
        await handler(message)
        if (failure := failures.get(message.body.decode())) is not None:
            raise failure

    async with (
        Consumer(driver.name_servers, group="g", at_most_once=True) as consumer,
        Admin(driver.name_servers) as admin,
    ):
        await consumer.subscribe("t")
        await consumer.start(handle, orderly=orderly)
        await eventually(lambda: set(handler.texts) >= every)
        letters: list[StoredMessage] = []
        async with asyncio.timeout(30):
            while not letters:
                letters = await admin.dead_letters("g")
    assert [letter.body for letter in letters] == [b"0-2"]
    assert Counter(handler.texts) == Counter(every)
    assert "RetryLater(1); it is delivered at most once" in caplog.text


async def test_of_members_that_read_the_same_queues_one_gets_each_message(driver: PlatformDriver) -> None:
    handlers = [RecordingHandler() for _ in range(3)]

    def everything(group: str, client_id: str, queues: Any, client_ids: Any) -> list[sparrow.QueueRef]:
        return list(queues)  # members never agree

    async with AsyncExitStack() as stack:
        for handler in handlers:
            consumer = Consumer(driver.name_servers, group="g", at_most_once=True, strategy=everything)
            await stack.enter_async_context(consumer)
            await consumer.subscribe("t")
            await consumer.start(handler)
        every = set[str]()
        for round_ in range(5):
            every |= await send_each(driver, 20, f"{round_}/")
            await eventually(
                partial(lambda sent: {text for handler in handlers for text in handler.texts} == sent, set(every)),
                within_s=20,
            )
    assert Counter(text for handler in handlers for text in handler.texts) == Counter(every)


async def test_members_join_and_leave_without_loss_or_repetition(driver: PlatformDriver) -> None:
    handler = RecordingHandler()
    every = set[str]()
    async with AsyncExitStack() as stack:
        for round_ in range(4):
            member = Consumer(driver.name_servers, group="g", at_most_once=True)
            await (stack if round_ == 0 else AsyncExitStack()).enter_async_context(member)
            await member.subscribe("t")
            await member.start(handler)
            every |= await send_each(driver, 30, f"{round_}/")
            if round_:
                await member.close()
        await eventually(lambda: set(handler.texts) == every)
    assert Counter(handler.texts) == Counter(every)


async def test_an_operator_can_have_messages_delivered_again(driver: PlatformDriver) -> None:
    every = await send_each(driver, 5)
    handler = RecordingHandler()
    async with (
        Consumer(driver.name_servers, group="g", at_most_once=True) as consumer,
        Admin(driver.name_servers) as admin,
    ):
        await consumer.subscribe("t")
        await consumer.start(handler)
        await eventually(lambda: Counter(handler.texts) == Counter(every))
        await admin.reset_offsets("g", "t", "first")
        await eventually(lambda: Counter(handler.texts) == Counter([*every, *every]))
        for queue in [queue for queue in consumer.queues if queue.topic == "t"]:
            await consumer.seek(queue, 0)
        await eventually(lambda: Counter(handler.texts) == Counter([*every, *every, *every]))


async def test_after_a_reset_in_the_broker_messages_are_committed_again_before_they_are_delivered(
    driver: PlatformDriver,
) -> None:
    every = await send_each(driver, 5)
    handler = CommitCheck(driver)
    broker = driver.platform.broker.broker
    async with Consumer(driver.name_servers, group="g", at_most_once=True) as consumer:
        await consumer.subscribe("t")
        await consumer.start(handler)
        await eventually(lambda: Counter(handler.texts) == Counter(every))
        for queue_id in range(broker.topics["t"].read_queues):  # as brokers do for members of RocketMQ 5
            queue = Queue("t", queue_id)
            broker.positions.reset("g", queue, 0)
            await broker.store.offsets.commit("g", queue, 0)
            broker.long_polls.wake(queue)
        await eventually(lambda: Counter(handler.texts) == Counter([*every, *every]))
    assert handler.early == []


async def test_a_broadcast_consumer_keeps_its_commits_in_its_file(driver: PlatformDriver, tmp_path: Path) -> None:
    every = await send_each(driver, 5)
    path = tmp_path / "offsets.json"
    found: list[str] = []
    for _ in range(3):
        async with Consumer(
            driver.name_servers, group="g", mode="broadcast", offsets_path=path, at_most_once=True
        ) as consumer:
            await consumer.subscribe("t")
            found += [message.body.decode() for message in await consumer.poll(4, timeout_ms=2_000)]
            # not consumed by a further poll, and committed nevertheless
    while len(found) < len(every):
        async with Consumer(
            driver.name_servers, group="g", mode="broadcast", offsets_path=path, at_most_once=True
        ) as consumer:
            await consumer.subscribe("t")
            found += [message.body.decode() for message in await consumer.poll(100, timeout_ms=2_000)]
    assert Counter(found) == Counter(every)
