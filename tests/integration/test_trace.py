"""Traces of a producer and of a consumer, as an operator finds them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.platform_driver import PlatformDriver, running_platform_driver
from tests.support.recording_handlers import RecordingHandler
from tests.support.wait import eventually, wait_until

from sparrow import client
from sparrow.client import trace_records
from sparrow.client.aio import Admin, Consumer, Producer
from sparrow.client.consume.retry import RetryLater
from sparrow.client.trace_records import (
    ConsumeEndTrace,
    ConsumeReturnType,
    ConsumeStartTrace,
    PublishTrace,
    TracedMessageType,
    TraceRecord,
    TransactionEndTrace,
)
from sparrow.model.errors import UnknownTopic
from sparrow.model.message import Message, StoredMessage
from sparrow.model.protocol import PERM_READ, TRACE_TOPIC
from sparrow.testing import RunningPlatform

QUICK_MS = 10
"""The commit interval. It is short because the tests wait for commits."""


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[PlatformDriver]:
    async with running_platform_driver(tmp_path) as running:
        await running.create_topic("T")
        yield running


async def traces(driver: PlatformDriver, key: str) -> list[TraceRecord]:
    """Return the records that `queryMsgTraceById` would find."""
    async with Admin(driver.name_servers) as admin:
        found = await admin.find_by_key(TRACE_TOPIC, key)
    return [each for message in found for each in trace_records.decode(message.body)]


async def test_trace_of_a_send_is_found_by_id_and_by_key(driver: PlatformDriver) -> None:
    async with Producer(driver.name_servers, group="shop", trace=True) as producer:
        sent = await producer.send(Message("T", "a book", tags="paid", keys="order-7"))
        late = await producer.send(Message("T", "later"), delay_level=1)
    (found,) = [each for each in await traces(driver, sent.message_id) if each.message_id == sent.message_id]
    assert isinstance(found, PublishTrace)
    assert (found.group, found.topic, found.tags, found.keys) == ("shop", "T", "paid", "order-7")
    assert (found.body_bytes, found.offset_id, found.is_success, found.kind) == (
        6,
        sent.offset_id,
        True,
        TracedMessageType.NORMAL,
    )
    assert found.store_host == str(driver.platform.address)
    assert found in await traces(driver, "order-7")
    (delayed,) = [each for each in await traces(driver, late.message_id) if each.message_id == late.message_id]
    assert isinstance(delayed, PublishTrace)
    assert delayed.kind is TracedMessageType.DELAYED


async def test_every_kind_of_send_is_traced(driver: PlatformDriver) -> None:
    async with Producer(driver.name_servers, group="shop", linger_ms=1, trace=True) as producer:
        results = await producer.send_batch([Message("T", "1"), Message("T", "2")])
        results.append(await producer.send(Message("T", "3")))
        results.append(await producer.send_soon(Message("T", "4")))
    for result in results:
        assert result.message_id in {each.message_id for each in await traces(driver, result.message_id)}


async def test_failed_send_is_traced(driver: PlatformDriver) -> None:
    async with Admin(driver.name_servers) as admin:
        await admin.create_topic("closed", 1, permission=PERM_READ)
        (queue,) = (await admin.route("closed")).read_queues
    async with Producer(driver.name_servers, group="shop", trace=True, retries=0) as producer:
        message = Message("closed", "no", keys="order-8")
        with pytest.raises(Exception, match="closed"):
            await producer.send(message, queue=queue)
    (found,) = await traces(driver, "order-8")
    assert isinstance(found, PublishTrace)
    assert not found.is_success


async def test_transaction_has_two_traces(driver: PlatformDriver) -> None:
    async with Producer(driver.name_servers, group="shop", trace=True) as producer:
        async with producer.transaction(Message("T", "paid", keys="order-9")) as sent:
            pass
    half, ended = await traces(driver, "order-9")
    assert isinstance(half, PublishTrace)
    assert half.kind is TracedMessageType.HALF
    assert isinstance(ended, TransactionEndTrace)
    assert (ended.transaction_id, ended.state, ended.from_check) == (sent.message_id, "COMMIT_MESSAGE", False)


async def test_consumer_traces_the_outcomes_of_its_handler(driver: PlatformDriver) -> None:
    handler = RecordingHandler()

    async def handle(message: StoredMessage) -> None:
        await handler(message)
        if message.body == b"bad":
            raise ValueError("oh")
        if message.body == b"later":
            raise RetryLater(1)

    async with Producer(driver.name_servers) as producer:
        sent = [await producer.send(Message("T", body, keys="k")) for body in ("good", "bad", "later")]
    async with Consumer(driver.name_servers, group="readers", trace=True, commit_interval_ms=QUICK_MS) as consumer:
        await consumer.subscribe("T")
        await consumer.start(handle, workers=1)
        await eventually(lambda: len(handler.messages) >= 3)
        await driver.wait_for_commit(3, "readers", "T")
    for result, code in zip(
        sent, (ConsumeReturnType.SUCCESS, ConsumeReturnType.RAISED, ConsumeReturnType.FAILED), strict=True
    ):
        found = [each for each in await traces(driver, result.message_id) if each.message_id == result.message_id]
        begun, ended = found[:2]
        assert isinstance(begun, ConsumeStartTrace)
        assert isinstance(ended, ConsumeEndTrace)
        assert begun.request_id == ended.request_id
        assert (begun.group, ended.group) == ("readers", "readers")
        assert (ended.code, ended.is_success, ended.keys) == (code, code is ConsumeReturnType.SUCCESS, "k")


async def test_unsendable_traces_do_not_affect_the_send(tmp_path: Path) -> None:
    async with running_platform_driver(tmp_path, auto_create_topics=False) as driver:
        await driver.create_topic("T")
        async with Producer(driver.name_servers, trace=True) as producer:
            assert (await producer.send(Message("T", "a book"))).is_ok
        with pytest.raises(UnknownTopic):
            await traces(driver, "anything")
        assert producer._single.tracer is not None
        assert producer._single.tracer.dropped == 1


async def test_no_traces_are_sent_without_the_option(driver: PlatformDriver) -> None:
    async with Producer(driver.name_servers) as producer:
        sent = await producer.send(Message("T", "a book"))
    with pytest.raises(UnknownTopic):
        await traces(driver, sent.message_id)


def test_blocking_clients_are_traced(platform: RunningPlatform) -> None:
    seen: list[bytes] = []
    with client.Consumer(platform.name_servers, group="readers", trace=True) as consumer:
        consumer.subscribe("T")
        consumer.start(lambda message: seen.append(message.body))
        with client.Producer(platform.name_servers, trace=True) as producer:
            sent = producer.send(Message("T", "a book"))
        wait_until(lambda: seen == [b"a book"])
    with client.Admin(platform.name_servers) as admin:
        found = admin.find_by_key(TRACE_TOPIC, sent.message_id)
    kinds = [type(each) for message in found for each in trace_records.decode(message.body)]
    assert kinds == [PublishTrace, ConsumeStartTrace, ConsumeEndTrace]
