"""New groups of Sparrow's client get the first messages of new topics, at whatever moment of their start they come."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.platform_driver import PlatformDriver, running_platform_driver
from tests.support.recording_handlers import RecordingHandler
from tests.support.sql_brokers import running_sql_platform
from tests.support.wait import eventually

from sparrow.client.aio import Consumer

TOPICS = 20
QUEUES = 2
SPREAD_S = 0.4
"""The consumers start in a part of this time on a log store, and take longer on a database."""


@pytest.fixture(params=["log", "sqlite"])
async def driver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PlatformDriver]:
    running = (
        running_platform_driver(tmp_path)
        if request.param == "log"
        else running_sql_platform(tmp_path, f"sqlite:///{tmp_path}/store.db")
    )
    async with running as started:
        yield started


async def start(stack: AsyncExitStack, driver: PlatformDriver, topic: str, handler: RecordingHandler) -> None:
    consumer = await stack.enter_async_context(Consumer(driver.name_servers, group=f"{topic}_group"))
    await consumer.subscribe(topic)
    await consumer.start(handler)


async def send(driver: PlatformDriver, topic: str, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    for queue_id in range(QUEUES):
        await driver.send(topic, [f"{topic} {queue_id}"], queue_id)


async def test_new_groups_get_the_first_messages_of_new_topics(driver):
    topics = [await driver.create_topic(f"first_{number}", QUEUES) for number in range(TOPICS)]
    handlers = {topic: RecordingHandler() for topic in topics}
    moments = random.Random(1)
    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as tasks:
            for topic, handler in handlers.items():
                tasks.create_task(start(stack, driver, topic, handler))
                tasks.create_task(send(driver, topic, moments.uniform(0, SPREAD_S)))
        await eventually(lambda: all(len(handler.messages) >= QUEUES for handler in handlers.values()), within_s=30)
        for topic, handler in handlers.items():
            assert sorted(handler.texts) == [f"{topic} {queue_id}" for queue_id in range(QUEUES)]
