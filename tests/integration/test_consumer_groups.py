"""Consumers of one group on a real platform: rebalance, queue locks, broadcast, and requests of operators."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path

import pytest
from tests.support.platform_driver import PlatformDriver, queue_ref, running_platform_driver
from tests.support.recording_handlers import RecordingHandler, body_texts
from tests.support.wait import eventually

from sparrow.client.aio.consume import broker_requests, handler_delivery, membership
from sparrow.client.aio.consume.consumer import Consumer
from sparrow.model.message import StoredMessage
from sparrow.net import Channel
from sparrow.wire import bodies, headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import ConsumeMessageDirectly, GetConsumerRunningInfo, GetConsumerStatus, ResetOffset
from sparrow.wire.message_ids import format_offset_id

QUEUES = 8


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[PlatformDriver]:
    async with running_platform_driver(tmp_path) as running:
        yield running


def queue_ids(consumer: Consumer, topic: str = "T") -> list[int]:
    return [queue.queue_id for queue in consumer.queues if queue.topic == topic]


async def joined(
    stack: AsyncExitStack, driver: PlatformDriver, handler: RecordingHandler, **options: object
) -> Consumer:
    """Add a member with a handler."""
    orderly = bool(options.pop("orderly", False))
    consumer = await stack.enter_async_context(Consumer(driver.name_servers, group="readers", **options))  # type: ignore[arg-type]
    await consumer.subscribe("T")
    await consumer.start(handler, orderly=orderly)
    return consumer


async def even(*consumers: Consumer) -> None:
    """Wait until every queue has exactly one reader and the queues are shared evenly.

    Members that get no notice rebalance after 20 s: this does not wait as long.
    """

    def is_even() -> bool:
        shares = [queue_ids(consumer) for consumer in consumers]
        sizes = [len(share) for share in shares]
        return sorted(chain(*shares)) == list(range(QUEUES)) and max(sizes) - min(sizes) <= 1

    await eventually(is_even)


# -- rebalance --------------------------------------------------------------------------------------------------------


async def test_members_share_the_queues_evenly_and_each_message_is_delivered_once(driver):
    await driver.create_topic("T", QUEUES)
    inboxes = [RecordingHandler() for _ in range(3)]
    async with AsyncExitStack() as stack:
        members = [await joined(stack, driver, handler) for handler in inboxes]
        await even(*members)
        every = await driver.send_to_each_queue("T", QUEUES, each=50)
        await eventually(lambda: sum(len(handler.messages) for handler in inboxes) >= len(every))
        found = [text for handler in inboxes for text in handler.texts]
        assert sorted(found) == sorted(every)
        assert all(handler.messages for handler in inboxes)


async def test_leaving_member_hands_over_its_queues_at_once_without_duplicates(driver):
    await driver.create_topic("T", QUEUES)
    inboxes = [RecordingHandler(), RecordingHandler()]
    async with AsyncExitStack() as stack:
        one, two = [await joined(stack, driver, handler) for handler in inboxes]
        await even(one, two)
        early = await driver.send_to_each_queue("T", QUEUES, each=20, prefix="early")
        await eventually(lambda: sum(len(handler.messages) for handler in inboxes) >= len(early))
        await two.close()
        await even(one)
        late = await driver.send_to_each_queue("T", QUEUES, each=20, prefix="late")
        await eventually(lambda: late <= set(inboxes[0].texts))
        counts = Counter(text for handler in inboxes for text in handler.texts)
        assert counts == dict.fromkeys(early | late, 1)


async def test_joining_member_gets_its_share_at_once(driver):
    await driver.create_topic("T", QUEUES)
    async with AsyncExitStack() as stack:
        one = await joined(stack, driver, RecordingHandler())
        await even(one)
        two = await joined(stack, driver, RecordingHandler())
        await even(one, two)


async def test_no_message_is_lost_when_members_join_and_leave_during_consumption(driver):
    await driver.create_topic("T", QUEUES)
    inboxes = [RecordingHandler() for _ in range(4)]
    async with AsyncExitStack() as stack:
        first = await joined(stack, driver, inboxes[0])
        await even(first)
        every: set[str] = set()
        for round_, handler in enumerate(inboxes[1:]):
            member = await joined(stack, driver, handler)
            every |= await driver.send_to_each_queue("T", QUEUES, each=30, prefix=f"{round_}/")
            await member.close()
        await eventually(lambda: {text for handler in inboxes for text in handler.texts} == every)


class Overlaps:
    """A slow handler, shared by several members, that records when two of them handle one queue at once."""

    def __init__(self) -> None:
        self.in_hand: Counter[int] = Counter()
        self.most = 0
        self.order: dict[int, list[int]] = defaultdict(list)
        self.step_s = 0.02

    async def __call__(self, message: StoredMessage) -> None:
        self.in_hand[message.queue_id] += 1
        self.most = max(self.most, self.in_hand[message.queue_id])
        await asyncio.sleep(self.step_s)
        self.order[message.queue_id].append(message.queue_offset)
        self.in_hand[message.queue_id] -= 1

    @property
    def count(self) -> int:
        return sum(map(len, self.order.values()))


async def test_moved_queue_of_orderly_consumers_is_read_by_one_member_at_a_time_in_order(driver):
    await driver.create_topic("T", QUEUES)
    await driver.send_to_each_queue("T", QUEUES, each=30)
    handler = Overlaps()
    async with AsyncExitStack() as stack:
        for number in range(3):
            await joined(stack, driver, handler, orderly=True)
            await eventually(lambda soon=20 * (number + 1): handler.count >= soon)
        await eventually(lambda: handler.count >= 30 * QUEUES)
    assert handler.most == 1
    assert handler.order == {queue_id: list(range(30)) for queue_id in range(QUEUES)}, (
        "every message must arrive once, in order"
    )


async def test_queue_of_orderly_consumers_moves_only_after_its_slow_handler_has_finished(driver, monkeypatch):
    monkeypatch.setattr(handler_delivery, "RELEASE_WAIT_S", 0.02)
    monkeypatch.setattr(membership, "RETRY_S_MAX", 0.1)
    await driver.create_topic("T", QUEUES)
    handler = Overlaps()
    handler.step_s = 0.5  # longer than a rebalance waits
    async with AsyncExitStack() as stack:
        one = await joined(stack, driver, handler, orderly=True)
        await even(one)
        await driver.send_to_each_queue("T", QUEUES, each=1)
        await eventually(lambda: sum(handler.in_hand.values()) == QUEUES)
        two = await joined(stack, driver, handler, orderly=True)
        await even(one, two)
        await driver.send_to_each_queue("T", QUEUES, each=1, prefix="more")
        handler.step_s = 0
        await eventually(lambda: handler.count == 2 * QUEUES)
    assert handler.most == 1
    assert handler.order == {queue_id: [0, 1] for queue_id in range(QUEUES)}


# -- broadcast --------------------------------------------------------------------------------------------------------


async def test_broadcast_member_gets_all_messages_and_continues_at_its_stored_offsets(driver, tmp_path):
    await driver.create_topic("T", QUEUES)
    early = await driver.send_to_each_queue("T", QUEUES, each=5, prefix="early")
    paths = [tmp_path / "one" / "offsets.json", None]
    late: set[str] = set()
    for round_ in range(2):
        inboxes = [RecordingHandler(), RecordingHandler()]
        async with AsyncExitStack() as stack:
            for handler, path in zip(inboxes, paths, strict=True):
                await joined(stack, driver, handler, mode="broadcast", offsets_path=path)
            if round_:
                late = await driver.send_to_each_queue("T", QUEUES, each=5, prefix="late")
            expected = [late if round_ else early, early | late]
            await eventually(lambda: [set(handler.texts) for handler in inboxes] == expected)  # noqa: B023
        assert [len(handler.messages) for handler in inboxes] == [len(some) for some in expected], (
            "every message must arrive once"
        )
    assert json.loads(paths[0].read_text()) == {f"T@sparrow@{queue_id}": 10 for queue_id in range(QUEUES)}
    assert await driver.committed_offset("readers", "T") is None, "the broker must have no offset of a broadcast group"


# -- operators --------------------------------------------------------------------------------------------------------


async def done(channel: Channel, code: int, header: headers.Header) -> RemotingCommand:
    answer = await channel.request(code, header, timeout_ms=10_000)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


@pytest.mark.parametrize("orderly", [False, True])
async def test_group_reads_again_after_an_operator_reset_its_offsets(driver, orderly):
    await driver.create_topic("T", QUEUES)
    every = await driver.send_to_each_queue("T", QUEUES, each=5)
    inboxes = [RecordingHandler(), RecordingHandler()]
    async with AsyncExitStack() as stack:
        members = [await joined(stack, driver, handler, orderly=orderly, commit_interval_ms=10) for handler in inboxes]
        await even(*members)
        await eventually(lambda: {text for handler in inboxes for text in handler.texts} == every)
        for queue_id in range(QUEUES):
            await driver.wait_for_commit(5, "readers", "T", queue_id)
        for handler in inboxes:
            handler.messages.clear()
        await done(driver.channel, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffset("T", "readers", 0, True))
        await eventually(lambda: sum(len(handler.messages) for handler in inboxes) >= len(every))
        assert sorted(text for handler in inboxes for text in handler.texts) == sorted(every)
        for queue_id in range(QUEUES):
            await driver.wait_for_commit(5, "readers", "T", queue_id)


async def test_consumer_reports_its_offsets_and_its_running_info(driver):
    await driver.create_topic("T", QUEUES)
    await driver.send_to_each_queue("T", QUEUES, each=5)
    handler = RecordingHandler()
    async with AsyncExitStack() as stack:
        consumer = await joined(stack, driver, handler)
        await eventually(lambda: len(handler.messages) == 5 * QUEUES)
        client_id = consumer.session.client_id

        asked = GetConsumerStatus("T", "readers")
        answer = await done(driver.channel, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, asked)
        table = bodies.read(bodies.ConsumerStatus, answer.body).consumer_table
        assert table == {client_id: {queue_ref("T", queue_id): 5 for queue_id in range(QUEUES)}}

        answer = await done(
            driver.channel, RequestCode.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfo("readers", client_id)
        )
        said = bodies.read(broker_requests._Running, answer.body)
        assert said.properties["PROP_CONSUME_ORDERLY"] == "false"
        assert said.properties["PROP_CONSUMER_START_TIMESTAMP"] == str(consumer._membership.started_ms)
        assert {one.topic for one in said.subscription_set} == {"T", "%RETRY%readers"}
        assert {queue_ref("T", queue_id) for queue_id in range(QUEUES)} <= said.mq_table.keys()
        assert said.mq_table[queue_ref("T")].commit_offset == 5


async def test_consumer_handles_a_message_directly_and_reports_the_result(driver):
    await driver.create_topic("T", QUEUES)
    await driver.send("T", ["good"])
    await driver.send("T", ["bad"], queue_id=1)
    handled: list[str] = []

    async def handler(message: StoredMessage) -> None:
        handled.append(message.body.decode())
        if handled[-1] == "bad" and handled.count("bad") > 1:
            raise ValueError("bad")

    async with Consumer(driver.name_servers, group="finders") as reader:
        await reader.subscribe("T")
        found = {message.body.decode(): message for message in [await anext(reader), await anext(reader)]}
    async with AsyncExitStack() as stack:
        consumer = await joined(stack, driver, handler)
        await eventually(lambda: "bad" in handled)
        results = {}
        for text, message in found.items():
            asked = ConsumeMessageDirectly(
                "readers",
                consumer.session.client_id,
                format_offset_id(message.store_host, message.physical_offset),
                topic="T",
            )
            answer = await done(driver.channel, RequestCode.CONSUME_MESSAGE_DIRECTLY, asked)
            results[text] = bodies.read(bodies.ConsumeDirectlyResult, answer.body)
    assert results["good"].consume_result == "CR_SUCCESS"
    assert results["bad"].consume_result == "CR_THROW_EXCEPTION"
    assert "ValueError" in (results["bad"].remark or "")
    assert handled.count("bad") == 2


async def test_consumer_without_a_handler_refuses_to_consume_directly(driver):
    await driver.create_topic("T")
    await driver.send("T", ["x"])
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        [message] = await consumer.poll(timeout_ms=10_000)
        assert body_texts([message]) == ["x"]
        asked = ConsumeMessageDirectly(
            "readers", None, format_offset_id(message.store_host, message.physical_offset), topic="T"
        )
        answer = await done(driver.channel, RequestCode.CONSUME_MESSAGE_DIRECTLY, asked)
        assert bodies.read(bodies.ConsumeDirectlyResult, answer.body).consume_result == "CR_THROW_EXCEPTION"
