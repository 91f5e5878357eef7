"""A consumer without a group: it reads new messages only, shares no queues, and leaves no state at the broker."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.platform_driver import PlatformDriver, queue_ref, running_platform_driver
from tests.support.platforms import running_broker
from tests.support.recording_handlers import RecordingHandler, body_texts
from tests.support.wait import eventually, wait_until

from sparrow.client import Consumer as BlockingConsumer
from sparrow.client import DeadLetter, Message, RetryLater
from sparrow.client.aio import Admin, ClientSession, Consumer, Producer
from sparrow.client.aio.consume.membership import ANONYMOUS_GROUP
from sparrow.model.errors import GroupRequired
from sparrow.model.message import StoredMessage
from sparrow.nameserver.server import NameServer
from sparrow.settings import NameServerSettings
from sparrow.testing import run_platform

TEN = [f"old{number}" for number in range(10)]


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[PlatformDriver]:
    async with running_platform_driver(tmp_path) as driver:
        await driver.create_topic("T", queues=3)
        await driver.send("T", TEN)
        yield driver


async def polled(consumer: Consumer, count: int) -> list[str]:
    """Poll until this many messages came, or none in ten seconds; return them sorted."""
    found: list[str] = []
    while len(found) < count and (some := await consumer.poll(count, timeout_ms=10_000)):
        found += body_texts(some)
    return sorted(found)


# -- start offset -----------------------------------------------------------------------------------------------------


async def test_consumer_reads_only_messages_sent_after_subscribe_in_all_queues(driver):
    async with Consumer(driver.name_servers, group=None) as consumer:
        await consumer.subscribe("T")
        for queue_id in range(3):
            await driver.send("T", [f"new{queue_id}"], queue_id)
        assert await polled(consumer, 3) == ["new0", "new1", "new2"]
        assert consumer.queues == [queue_ref("T", number) for number in range(3)]


async def test_messages_between_subscribe_and_start_are_read(driver):
    handler = RecordingHandler()
    async with Consumer(driver.name_servers, group=None) as consumer:
        await consumer.subscribe("T")
        await driver.send("T", ["new"])
        await consumer.start(handler)
        await eventually(lambda: handler.texts == ["new"])


async def test_reopened_consumer_starts_at_the_new_end(driver):
    consumer = Consumer(driver.name_servers, group=None)
    async with consumer:
        await consumer.subscribe("T")
        await driver.send("T", ["seen"])
        assert await polled(consumer, 1) == ["seen"]
    await driver.send("T", ["missed"])
    async with consumer:
        handler = RecordingHandler()
        await consumer.start(handler)
        await driver.send("T", ["seen again"])
        await eventually(lambda: handler.texts == ["seen again"])


async def test_subscribing_again_starts_at_the_new_end_and_changing_the_filter_does_not(driver):
    async with Consumer(driver.name_servers, group=None) as consumer:
        await consumer.subscribe("T", "a")
        assert await consumer.poll(1, timeout_ms=1) == []
        await consumer.unsubscribe("T")
        await driver.send("T", ["missed"], tags="a")
        await consumer.subscribe("T", "a")
        await driver.send("T", ["one"], tags="a")
        assert await polled(consumer, 1) == ["one"]
        consumer.pause()
        await driver.send("T", ["two"], tags="a")
        await consumer.subscribe("T", "a || b")
        assert await polled(consumer, 1) == ["two"]


async def test_topic_created_later_is_read_from_its_first_message(driver):
    async with Consumer(driver.name_servers, group=None) as consumer:
        await consumer.subscribe("later")
        assert await consumer.poll(1, timeout_ms=1) == []
        await driver.create_topic("later", queues=2)
        await driver.send("later", ["first"], 1)
        assert await polled(consumer, 1) == ["first"]


async def test_running_consumer_keeps_its_offsets_when_its_broker_restarts(tmp_path):
    async with AsyncExitStack() as stack, NameServer(NameServerSettings(port=0)) as naming:
        names = str(naming.address)
        async with running_broker(tmp_path, name_servers=names) as broker, Producer(names) as producer:
            port = broker.address.port
            await producer.send(Message("R", "old"))
            consumer = await stack.enter_async_context(Consumer(names, group=None))
            await consumer.subscribe("R")
            await producer.send(Message("R", "new"))
            assert await polled(consumer, 1) == ["new"]
        await stack.enter_async_context(running_broker(tmp_path, name_servers=names, port=port))
        async with Producer(names) as producer:
            await producer.send(Message("R", "newer"))
        assert await polled(consumer, 1) == ["newer"]


async def test_seek_to_an_older_offset_works(driver):
    async with Consumer(driver.name_servers, group=None) as consumer:
        await consumer.subscribe("T")
        assert await consumer.poll(1, timeout_ms=1) == []
        await consumer.wait_for_assignment()
        await consumer.seek(queue_ref("T"), 7)
        assert await polled(consumer, 3) == ["old7", "old8", "old9"]


# -- state at the broker ----------------------------------------------------------------------------------------------


async def test_consumer_leaves_no_group_topic_or_offset_at_the_broker(driver):
    broker = driver.platform.broker.broker
    groups, topics = set(await broker.store.catalog.list_groups()), {topic.name for topic in broker.topics}
    async with (
        Consumer(driver.name_servers, group=None, commit_interval_ms=10) as consumer,
        Admin(driver.name_servers) as admin,
    ):
        await consumer.subscribe("T")
        await consumer.start(handler := RecordingHandler())
        await driver.send("T", ["new"] * 5)
        await eventually(lambda: consumer.positions().get(queue_ref("T")) == 15)
        await consumer.commit()
        assert len(handler.texts) == 5
        assert consumer.group is None
        assert await admin.members(ANONYMOUS_GROUP) == []
    assert set(await broker.store.catalog.list_groups()) == groups
    assert {topic.name for topic in broker.topics} == topics
    assert [await driver.committed_offset(ANONYMOUS_GROUP, "T", number) for number in range(3)] == [None] * 3


async def test_two_consumers_without_group_and_a_group_share_a_session_independently(driver):
    async with ClientSession(driver.name_servers) as session:
        one, other = Consumer(group=None, session=session), Consumer(group=None, session=session)
        member = Consumer(group="readers", session=session)
        async with one, other, member:
            inboxes = [RecordingHandler() for _ in range(3)]
            for consumer, handler in zip((one, other, member), inboxes, strict=True):
                await consumer.subscribe("T")
                await consumer.start(handler)
            await driver.send("T", ["new"], 2)
            await eventually(lambda: len(inboxes[2].texts) == 11)
            await eventually(lambda: [handler.texts for handler in inboxes[:2]] == [["new"], ["new"]])
        assert inboxes[2].texts.count("new") == 1
    assert await driver.committed_offset("readers", "T") == 10
    assert await driver.committed_offset("readers", "T", 2) == 1


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("failure", [ValueError("no"), RetryLater(1), DeadLetter()])
async def test_failed_message_is_logged_and_not_redelivered(driver, caplog, failure, orderly):
    seen: list[str] = []

    async def handler(message: StoredMessage) -> None:
        seen.append(message.body.decode())
        if message.body == b"bad":
            raise failure

    async with Consumer(driver.name_servers, group=None) as consumer:
        await consumer.subscribe("T")
        with caplog.at_level(logging.WARNING, "sparrow.client"):
            await consumer.start(handler, orderly=orderly, workers=1)
            await driver.send("T", ["bad", "good"])
            await eventually(lambda: consumer.positions().get(queue_ref("T")) == 12)
    assert seen == ["bad", "good"]
    assert len(caplog.records) == 1
    assert "%RETRY%" not in " ".join(topic.name for topic in driver.platform.broker.broker.topics)


async def test_options_that_need_a_group_are_refused_with_the_remedy(driver):
    async with Consumer(driver.name_servers, group=None) as consumer:
        await consumer.subscribe("T")
        with pytest.raises(GroupRequired, match="needs a consumer group: create the consumer with group="):
            await consumer.resend("T", queue_id=0, begin=0, end=1)
    with pytest.raises(GroupRequired):
        Consumer(driver.name_servers, group=None, offsets_path="progress.json")
    with pytest.raises(GroupRequired):
        Consumer(driver.name_servers, group=None, trace=True)


# -- filters, lanes, blocking client ---------------------------------------------------------------------------------


async def test_filters_apply(driver):
    async with Consumer(driver.name_servers, group=None) as tagged, Consumer(driver.name_servers, group=None) as chosen:
        await tagged.subscribe("T", "paid")
        await chosen.subscribe("T", "amount > 10", expression_type="SQL92")
        async with Producer(driver.name_servers) as producer:
            for tags, amount in (("paid", 5), ("open", 20)):
                await producer.send(Message("T", f"{tags} {amount}", tags=tags, properties={"amount": str(amount)}))
        assert await polled(tagged, 1) == ["paid 5"]
        assert await polled(chosen, 1) == ["open 20"]


async def test_all_lanes_are_read_high_first(driver):
    async with Admin(driver.name_servers) as admin:
        await admin.create_topic("L", 2, has_lanes=True)
    async with Consumer(driver.name_servers, group=None) as consumer, Producer(driver.name_servers) as producer:
        await producer.send(Message("L", "old", priority="high"))
        await consumer.subscribe("L")
        for word in ("low", "middle", "high"):
            for _ in range(2):
                await producer.send(Message("L", word, priority=word))
        taken = body_texts(await consumer.poll(10, timeout_ms=10_000))
        assert taken == ["high", "high", "middle", "middle", "low", "low"]


def test_blocking_client_supports_consumers_without_group(tmp_path):
    from sparrow.client import Producer

    with run_platform(tmp_path) as platform, Producer(platform.name_servers) as producer:
        producer.send(Message("T", "old"))
        with BlockingConsumer(platform.name_servers, group=None) as consumer:
            consumer.subscribe("T")
            producer.send(Message("T", "new"))
            assert next(consumer).body == b"new"
            with pytest.raises(GroupRequired):
                consumer.resend("T", queue_id=0, begin=0, end=0)
        seen: list[bytes] = []
        with BlockingConsumer(platform.name_servers, group=None) as consumer:
            assert consumer.group is None
            consumer.subscribe("T")
            consumer.start(lambda message: seen.append(message.body))
            producer.send(Message("T", "newer"))
            wait_until(lambda: seen == [b"newer"])
