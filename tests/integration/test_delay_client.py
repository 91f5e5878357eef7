"""Delayed messages of the client, and their recall."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.support.platform_driver import PlatformDriver, running_platform_driver
from tests.support.recording_handlers import RecordingHandler
from tests.support.wait import eventually

from sparrow import client
from sparrow.client.aio import Consumer, Producer
from sparrow.model.errors import Refused, SparrowError
from sparrow.model.message import Message
from sparrow.testing import RunningPlatform


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[PlatformDriver]:
    async with running_platform_driver(tmp_path) as running:
        await running.create_topic("T")
        yield running


@pytest.fixture
async def producer(driver: PlatformDriver) -> AsyncIterator[Producer]:
    async with Producer(driver.name_servers) as producer:
        yield producer


@pytest.fixture
async def handler(driver: PlatformDriver) -> AsyncIterator[RecordingHandler]:
    async with Consumer(driver.name_servers, group="readers") as consumer:
        handler = RecordingHandler()
        await consumer.subscribe("T")
        await consumer.start(handler)
        yield handler


async def test_message_is_delivered_after_its_delay_and_not_before(
    producer: Producer, handler: RecordingHandler
) -> None:
    begun = time.monotonic()
    await producer.send(Message("T", "late"), deliver_after_ms=300)
    await producer.send(Message("T", "at once"))
    await eventually(lambda: handler.texts == ["at once", "late"])
    assert time.monotonic() - begun >= 0.3


async def test_message_is_delivered_at_its_time(producer: Producer, handler: RecordingHandler) -> None:
    moment = datetime.now(UTC) + timedelta(milliseconds=300)
    await producer.send(Message("T", "late"), deliver_at=moment)
    await eventually(lambda: handler.texts == ["late"])
    assert datetime.now(UTC) >= moment
    assert handler.messages[0].store_ms >= int(moment.timestamp() * 1000)


async def test_message_with_a_time_in_the_past_is_delivered_at_once(
    producer: Producer, handler: RecordingHandler
) -> None:
    sent = await producer.send(Message("T", "old"), deliver_at=1)
    assert sent.recall_handle is None
    await eventually(lambda: handler.texts == ["old"])


async def test_message_of_delay_level_1_is_delivered_after_a_second(
    producer: Producer, handler: RecordingHandler
) -> None:
    begun = time.monotonic()
    sent = await producer.send(Message("T", "late"), delay_level=1)
    assert sent.recall_handle is None
    await eventually(lambda: handler.texts == ["late"])
    assert time.monotonic() - begun >= 1


async def test_batching_producer_delays_single_messages(driver: PlatformDriver, handler: RecordingHandler) -> None:
    async with Producer(driver.name_servers, linger_ms=1) as producer:
        late = producer.send_soon(Message("T", "late"), deliver_after_ms=300)
        soon = [producer.send_soon(Message("T", str(number))) for number in range(5)]
        await asyncio.gather(late, *soon)
        await eventually(lambda: handler.texts == [*"01234", "late"])


async def test_recalled_message_is_never_delivered(producer: Producer, handler: RecordingHandler) -> None:
    recalled = await producer.send(Message("T", "recalled"), deliver_after_ms=400)
    by_handle = await producer.send(Message("T", "recalled by its handle"), deliver_after_ms=400)
    await producer.send(Message("T", "later than both"), deliver_after_ms=500)
    assert await producer.recall(recalled) == recalled.message_id
    assert by_handle.recall_handle is not None
    assert await producer.recall(by_handle.recall_handle) == by_handle.message_id
    await eventually(lambda: handler.messages)
    assert handler.texts == ["later than both"]


async def test_delivered_message_cannot_be_recalled(producer: Producer, handler: RecordingHandler) -> None:
    sent = await producer.send(Message("T", "late"), deliver_after_ms=50)
    await eventually(lambda: handler.texts == ["late"])
    with pytest.raises(SparrowError, match="too late"):
        await producer.recall(sent)


async def test_message_without_a_delay_cannot_be_recalled(producer: Producer) -> None:
    sent = await producer.send(Message("T", "now"))
    with pytest.raises(Refused, match="no recall handle"):
        await producer.recall(sent)


def test_blocking_producer_delays_and_recalls(platform: RunningPlatform) -> None:
    with (
        client.Producer(platform.name_servers) as producer,
        client.Consumer(platform.name_servers, group="readers") as consumer,
    ):
        recalled = producer.send(Message("T", "recalled"), deliver_after_ms=300)
        soon = producer.send_soon(Message("T", "late"), deliver_after_ms=400)
        assert producer.recall(recalled) == recalled.message_id
        consumer.subscribe("T")
        assert next(consumer).body == b"late"
        assert soon.result().is_ok
