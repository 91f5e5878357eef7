"""Resends: by offsets, time or key, to one group or all, without copying the messages."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.broker_client import BrokerClient, Clock, running_broker_client
from tests.support.platform_driver import PlatformDriver, queue_ref, running_platform_driver
from tests.support.platforms import open_channel, read_send_response, running_broker, try_send
from tests.support.recording_handlers import RecordingHandler
from tests.support.wait import eventually

from sparrow.client.aio import Admin, Consumer, PopConsumer, Producer
from sparrow.client.aio.admin.resend import ResendResult
from sparrow.client.consume.retry import RetryLater
from sparrow.model import Message
from sparrow.model.errors import Refused, UnknownTopic
from sparrow.model.message import Draft, StoredMessage
from sparrow.model.priority import LANES_SYS_FLAG, Priority, read_queue_id
from sparrow.model.queue import Queue
from sparrow.model.topic import Group, Topic
from sparrow.store.spi import Slice
from sparrow.wire import bodies, headers, record
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import ResendMessages
from sparrow.wire.message_ids import format_offset_id

T, RETRY, DEAD = Queue("T", 0), Queue("%RETRY%g", 0), Queue("%DLQ%g", 0)


class ResendClient(BrokerClient):
    """A client that resends messages."""

    clock: Clock

    async def send_all(self, *bodies: bytes, queue: Queue = T, step_ms: int = 1_000, **named: str) -> None:
        for body in bodies:
            await self.send(queue, body, **named)
            self.clock.now_ms += step_ms

    async def resend(self, **fields: object) -> headers.ResendMessagesResponse:
        return await self.request_ok(RequestCode.RESEND_MESSAGES, ResendMessages("T", **{"group": "g", **fields}))

    async def assert_resend_refused(self, **fields: object) -> str:
        """Assert that a resend is refused and stores nothing; return the remark."""
        before = self.broker.store.bounds_nowait(RETRY)
        _, why = await self.request_refused(
            RequestCode.RESEND_MESSAGES, ResendMessages(**{"topic": "T", "group": "g", **fields})
        )
        assert self.broker.store.bounds_nowait(RETRY) == before
        return why

    async def read_stored(self, queue: Queue) -> list[StoredMessage]:
        """Return the messages of a queue as stored."""
        found = await self.broker.store.read(queue, self.broker.store.bounds_nowait(queue).first, count_max=1000)
        return record.decode_all(found.tobytes()) if isinstance(found, Slice) else []

    async def pull_all(self, queue: Queue = RETRY, *, group: str = "g", expression: str = "*") -> list[StoredMessage]:
        """Return all messages that a client pulls from a queue."""
        at, found = 0, []
        while at < self.broker.store.bounds_nowait(queue).end:
            header = headers.PullMessage(
                group, queue.topic, queue.id, at, 32, headers.pull.SUBSCRIPTION_FLAG, 0, 0, 0, subscription=expression
            )
            answer = await self.request(RequestCode.PULL_MESSAGE, header)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
            found += record.decode_all(answer.body)
            at = headers.read(headers.PullMessageResponse, answer.ext).next_offset
        return found

    async def pull_bodies(self, queue: Queue = RETRY, *, group: str = "g") -> list[bytes]:
        return [message.body for message in await self.pull_all(queue, group=group)]


@asynccontextmanager
async def running_resend_client(path: Path) -> AsyncIterator[ResendClient]:
    clock = Clock()
    async with running_broker_client(path, clock) as client:
        resend_client = ResendClient(client.server, client.channel)
        resend_client.clock = clock
        yield resend_client


@pytest.fixture
async def resend_client(tmp_path: Path) -> AsyncIterator[ResendClient]:
    """T has one queue with ten messages, and group g has read them all."""
    async with running_resend_client(tmp_path / "store") as resend_client:
        await resend_client.broker.topics.put(Topic(name="T", read_queues=1, write_queues=1))
        await resend_client.broker.groups.put(Group(name="g"))
        await resend_client.send_all(*(b"%d" % number for number in range(10)))
        await resend_client.commit("g", T, 10)
        yield resend_client


# -- selection of messages --------------------------------------------------------------------------------------------


async def test_a_range_of_offsets_is_resent_in_order_to_one_group_only(resend_client):
    await resend_client.broker.groups.put(Group(name="h"))
    await resend_client.commit("h", T, 10)
    assert await resend_client.resend(begin=1, end=5) == headers.ResendMessagesResponse(5, 0, "g")
    assert await resend_client.pull_bodies() == [b"1", b"2", b"3", b"4", b"5"]
    assert "%RETRY%h" not in resend_client.broker.topics


async def test_a_range_of_offsets_includes_both_ends(resend_client):
    assert (await resend_client.resend(begin=7, end=7)).count == 1
    assert await resend_client.pull_bodies() == [b"7"]


async def test_a_resent_message_equals_the_original_except_for_its_position(resend_client):
    await resend_client.send(T, b"paid", TAGS="paid", KEYS="k", colour="red")
    await resend_client.commit("g", T, 11)
    await resend_client.resend(begin=10, end=10)
    (original,), (again,) = (await resend_client.read_stored(T))[10:], await resend_client.pull_all()
    assert (again.topic, again.queue_id, again.queue_offset, again.reconsume_times) == ("%RETRY%g", 0, 0, 0)
    added = again.properties.keys() - original.properties.keys()
    assert added == {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RESENT"}
    assert {name: again.properties[name] for name in original.properties} == original.properties
    assert (again.body, again.born_ms, again.unique_key) == (b"paid", original.born_ms, original.unique_key)


async def test_a_resend_does_not_copy_bodies(resend_client):
    await resend_client.send_all(*[b"x" * 100_000] * 5)
    await resend_client.commit("g", T, 15)
    before = resend_client.broker.store.written
    await resend_client.resend(begin=10, end=14)
    assert resend_client.broker.store.written - before < 5_000
    assert [len(body) for body in await resend_client.pull_bodies()] == [100_000] * 5


async def test_a_time_range_covers_all_queues_and_excludes_its_end(resend_client):
    await resend_client.broker.topics.put(Topic(name="T", read_queues=2, write_queues=2))
    begun_ms = resend_client.clock.now_ms
    for number in range(4):
        await resend_client.send_all(b"a%d" % number, step_ms=0)
        await resend_client.send_all(b"b%d" % number, queue=Queue("T", 1))
    for queue_id, end in ((0, 14), (1, 4)):
        await resend_client.commit("g", Queue("T", queue_id), end)
    answer = await resend_client.resend(from_ms=begun_ms + 1_000, to_ms=begun_ms + 3_000)
    assert answer.count == 4
    assert await resend_client.pull_bodies() == [b"a1", b"a2", b"b1", b"b2"]


async def test_messages_selected_by_keys_are_resent_once_each(resend_client):
    await resend_client.send_all(b"both", KEYS="order-1 order-2")
    await resend_client.send_all(b"one", KEYS="order-1")
    late_ms = resend_client.clock.now_ms
    await resend_client.send_all(b"late", KEYS="order-1")
    await resend_client.commit("g", T, 13)
    assert (await resend_client.resend(keys="order-1 order-2", to_ms=late_ms)).count == 2
    assert await resend_client.pull_bodies() == [b"both", b"one"]
    assert (await resend_client.resend(keys="unheard-of")).count == 0


async def test_a_priority_selects_only_its_queues(resend_client):
    await resend_client.broker.topics.put(Topic(name="T", read_queues=6, write_queues=2, sys_flag=LANES_SYS_FLAG))
    for part in (0, 1):
        for priority in Priority:
            queue = Queue("T", read_queue_id(part, priority))
            bodies = [f"{part} {priority.label} {number}".encode() for number in range(3)]
            await resend_client.broker.store.append(queue, [Draft(body=body) for body in bodies])
            await resend_client.commit("g", queue, resend_client.broker.store.bounds_nowait(queue).end)
    assert (await resend_client.resend(begin=1, end=2, priority="low")).count == 4
    assert await resend_client.pull_bodies() == [b"0 low 1", b"0 low 2", b"1 low 1", b"1 low 2"]
    assert "high, middle or low" in await resend_client.assert_resend_refused(begin=0, end=1, priority="urgent")
    refusal = await resend_client.assert_resend_refused(begin=0, end=1, queue_id=1, priority="low")
    assert "queue 1 has the priority middle, not low" in refusal


async def test_trimmed_messages_are_skipped_and_counted(tmp_path):
    async with running_resend_client(tmp_path / "store") as resend_client:
        await resend_client.broker.topics.put(Topic(name="T", read_queues=1, write_queues=1))
        await resend_client.broker.groups.put(Group(name="g"))
        store = resend_client.broker.store
        await resend_client.send_all(*[b"x" * 300_000] * 3)
        await resend_client.send_all(*[b"y" * 300_000] * 3)  # in the next segment
        resend_client.clock.now_ms += 80 * 3_600_000
        await resend_client.send_all(b"z", b"z")
        await resend_client.commit("g", T, 8)
        # Resent while all messages exist, read after some are deleted.
        assert await resend_client.resend(begin=0, end=7) == headers.ResendMessagesResponse(8, 0, "g")
        await store.trim()
        first = store.bounds_nowait(T).first
        assert first == 3
        assert [body[:1] for body in await resend_client.pull_bodies()] == [b"y", b"y", b"y", b"z", b"z"]
        # Resent after some are deleted.
        assert await resend_client.resend(begin=0, end=7) == headers.ResendMessagesResponse(8 - first, first, "g")
        assert (await resend_client.resend(begin=0, end=0)).missing == 1


# -- target groups ----------------------------------------------------------------------------------------------------


async def test_without_a_group_all_groups_with_offsets_get_the_messages(resend_client):
    for name in ("h", "never"):
        await resend_client.broker.groups.put(Group(name=name))
    await resend_client.commit("h", T, 10)
    assert await resend_client.resend(group=None, begin=0, end=1) == headers.ResendMessagesResponse(2, 0, "g,h")
    for name in ("g", "h"):
        assert await resend_client.pull_bodies(Queue(f"%RETRY%{name}", 0), group=name) == [b"0", b"1"]
    assert "%RETRY%never" not in resend_client.broker.topics


async def test_groups_that_cannot_consume_are_skipped_or_refused(resend_client):
    await resend_client.broker.groups.put(Group(name="forbidden", may_consume=False))
    await resend_client.commit("forbidden", T, 10)
    assert (await resend_client.resend(group=None, begin=0, end=1)).groups == "g"
    assert "forbids consuming" in await resend_client.assert_resend_refused(group="forbidden", begin=0, end=1)
    screens = bodies.ConsumerData("screens", message_model="BROADCASTING")
    beat = bodies.HeartbeatData("client@1", [], [screens])
    await resend_client.request_ok(RequestCode.HEART_BEAT, headers.Heartbeat(), bodies.write(beat))
    assert "it broadcasts" in await resend_client.assert_resend_refused(group="screens", begin=0, end=1, is_forced=True)


async def test_a_resend_to_a_group_that_lags_behind_the_range_is_refused_unless_forced(resend_client):
    await resend_client.commit("g", T, 4)
    assert "is at offset 4" in await resend_client.assert_resend_refused(begin=2, end=5)
    assert (await resend_client.resend(begin=2, end=3)).count == 2
    assert (await resend_client.resend(begin=2, end=5, is_forced=True)).count == 4
    await resend_client.broker.groups.put(Group(name="new"))
    assert "has read nothing" in await resend_client.assert_resend_refused(begin=2, end=5, group="new")


async def test_one_lagging_group_refuses_a_resend_to_all(resend_client):
    await resend_client.broker.groups.put(Group(name="h"))
    await resend_client.commit("h", T, 3)
    assert "'h' is at offset 3" in await resend_client.assert_resend_refused(group=None, begin=0, end=5)


async def test_an_online_group_gets_only_messages_of_its_subscription(resend_client):
    await resend_client.send_all(b"paid", TAGS="paid")
    await resend_client.send_all(b"lost", TAGS="lost")
    await resend_client.subscribe("g", T="paid || refunded")
    await resend_client.commit("g", T, 12)
    assert (await resend_client.resend(begin=8, end=11)).count == 1
    assert await resend_client.pull_bodies() == [b"paid"]


async def test_a_dry_run_counts_and_stores_nothing(resend_client):
    before = resend_client.broker.store.written
    assert await resend_client.resend(begin=2, end=8, is_dry_run=True) == headers.ResendMessagesResponse(7, 0, "g")
    assert resend_client.broker.store.written == before
    assert RETRY.topic not in resend_client.broker.topics


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, "no messages selected"),
        ({"begin": 5, "end": 4}, "not a range"),
        ({"begin": -1, "end": 4}, "not a range"),
        ({"begin": 5}, "both begin and end"),
        ({"begin": 10, "end": 12}, "does not exist yet"),
        ({"begin": 0, "end": 1, "keys": "k"}, "not both"),
        ({"begin": 0, "end": 1, "from_ms": 0}, "offsets or times, not both"),
        ({"from_ms": 5, "to_ms": 4}, "before it begins"),
        ({"from_ms": 0, "queue_id": 0}, "only be given with offsets"),
        ({"begin": 0, "end": 1, "queue_id": 7}, "no queue 7"),
        ({"begin": 0, "end": 1, "priority": "low"}, "no priorities"),
        ({"keys": "  "}, "list of keys is empty"),
        ({"begin": 0, "end": 1, "topic": "nowhere"}, "topic 'nowhere' does not exist"),
        ({"begin": 0, "end": 1, "group": "nobody"}, "group 'nobody' does not exist"),
        ({"begin": 0, "end": 1, "topic": "SCHEDULE_TOPIC_XXXX"}, "cannot be resent"),
    ],
)
async def test_an_invalid_resend_is_refused_with_a_remark(resend_client, fields, word):
    assert word in await resend_client.assert_resend_refused(**fields)


async def test_a_resend_of_a_retry_topic_or_of_dead_letters_is_refused(resend_client):
    await resend_client.resend(begin=0, end=0)
    assert "cannot be resent" in await resend_client.assert_resend_refused(topic=RETRY.topic, begin=0, end=0)
    await resend_client.broker.topics.put(Topic(name=DEAD.topic))
    assert "redrive" in await resend_client.assert_resend_refused(topic=DEAD.topic, begin=0, end=0)


# -- processing of resent messages ------------------------------------------------------------------------------------


async def test_a_resent_message_that_fails_is_retried_as_a_full_message(resend_client):
    await resend_client.resend(begin=3, end=3)
    (again,) = await resend_client.pull_all()
    await resend_client.request_ok(
        RequestCode.CONSUMER_SEND_MSG_BACK, headers.SendMessageBack(again.physical_offset, "g", 1)
    )
    resend_client.clock.now_ms += 1_000
    resend_client.broker.delay.wake()
    await eventually(lambda: resend_client.broker.store.bounds_nowait(RETRY).end == 2)
    _, retried = await resend_client.read_stored(RETRY)
    assert (retried.body, retried.reconsume_times, retried.properties["RETRY_TOPIC"]) == (b"3", 1, "T")
    assert "__REF" not in retried.properties
    assert retried.unique_key == again.unique_key


async def test_a_dead_lettered_resent_message_contains_its_body(resend_client):
    await resend_client.resend(begin=3, end=3)
    (again,) = await resend_client.pull_all()
    await resend_client.request_ok(
        RequestCode.CONSUMER_SEND_MSG_BACK, headers.SendMessageBack(again.physical_offset, "g", -1)
    )
    (dead,) = await resend_client.read_stored(DEAD)
    assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"3", "T")


async def test_a_resent_message_is_found_by_id_and_key_with_its_body(resend_client):
    await resend_client.resend(begin=3, end=3)
    (again,) = await resend_client.pull_all()
    answer = await resend_client.request(RequestCode.VIEW_MESSAGE_BY_ID, headers.ViewMessage(again.physical_offset))
    assert record.decode(answer.body) == again
    key = again.unique_key or ""
    query = headers.QueryMessage(RETRY.topic, key, 32, 0, (1 << 62), by_unique_key=True)
    answer = await resend_client.request(RequestCode.QUERY_MESSAGE, query)
    assert record.decode_all(answer.body) == [again]


async def test_references_survive_a_restart(tmp_path):
    async with running_resend_client(tmp_path / "store") as resend_client:
        await resend_client.broker.topics.put(Topic(name="T", read_queues=1, write_queues=1))
        await resend_client.broker.groups.put(Group(name="g"))
        await resend_client.send_all(b"a", b"b")
        await resend_client.commit("g", T, 2)
        await resend_client.resend(begin=0, end=1)
    async with running_resend_client(tmp_path / "store") as resend_client:
        assert await resend_client.pull_bodies() == [b"a", b"b"]


async def test_other_requests_are_served_during_a_large_resend(resend_client):
    await resend_client.broker.store.append(T, [Draft(body=b"x") for _ in range(5_000)])
    await resend_client.commit("g", T, 5_010)
    resending = asyncio.create_task(
        resend_client.request(RequestCode.RESEND_MESSAGES, ResendMessages("T", "g", begin=0, end=5_009))
    )
    seen = []
    while not resending.done():
        await resend_client.request(RequestCode.GET_MAX_OFFSET, headers.QueueRequest("T", 0))
        seen.append(int(resend_client.broker.store.bounds_nowait(RETRY).end))
    assert (await resending).code == ResponseCode.SUCCESS
    assert any(0 < at < 5_010 for at in seen), "other requests must be answered during the resend"
    assert len(await resend_client.pull_bodies()) == 5_010


# -- clients ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[PlatformDriver]:
    async with running_platform_driver(tmp_path) as running:
        await running.create_topic("T")
        yield running


def reader(driver: PlatformDriver) -> Consumer:
    return Consumer(driver.name_servers, group="readers", commit_interval_ms=10)


async def handled(driver: PlatformDriver, handler: RecordingHandler, count: int, group: str = "readers") -> None:
    await eventually(lambda: len(handler.messages) == count)
    await driver.wait_for_commit(count, group, "T")


async def test_an_online_consumer_receives_resent_messages(driver):
    async with (
        Admin(driver.name_servers) as admin,
        Consumer(driver.name_servers, group="readers", commit_interval_ms=10) as consumer,
    ):
        await driver.send("T", ["a", "b", "c"])
        handler = RecordingHandler()
        await consumer.subscribe("T")
        await consumer.start(handler)
        await handled(driver, handler, 3)
        assert await admin.resend("T", group="readers", begin=1, end=2) == ResendResult(2, 0, ("readers",))
        await eventually(lambda: len(handler.messages) == 5)
        assert sorted(handler.texts[3:]) == ["b", "c"]
        assert {message.topic for message in handler.messages} == {"T"}
        assert [message.properties.get("RESENT") for message in handler.messages[3:]] == ["true", "true"]
        await driver.wait_for_commit(2, "readers", "%RETRY%readers")


async def test_a_consumer_can_retry_a_resent_message_later(driver):
    class Hesitant(RecordingHandler):
        async def __call__(self, message: StoredMessage) -> None:
            await super().__call__(message)
            if "RESENT" in message.properties and not message.reconsume_times:
                raise RetryLater(1)

    async with (
        Admin(driver.name_servers) as admin,
        Consumer(driver.name_servers, group="readers", commit_interval_ms=10) as consumer,
    ):
        await driver.send("T", ["a"])
        handler = Hesitant()
        await consumer.subscribe("T")
        await consumer.start(handler)
        await handled(driver, handler, 1)
        await admin.resend("T", group="readers", from_ms=0)
        await eventually(lambda: len(handler.messages) == 3)
        assert handler.texts == ["a", "a", "a"]
        assert [message.reconsume_times for message in handler.messages] == [0, 0, 1]


async def test_a_resent_message_can_be_consumed_directly(driver):
    async with (
        Admin(driver.name_servers) as admin,
        Consumer(driver.name_servers, group="readers", commit_interval_ms=10) as consumer,
    ):
        await driver.send("T", ["a"])
        handler = RecordingHandler()
        await consumer.subscribe("T")
        await consumer.start(handler)
        await handled(driver, handler, 1)
        await admin.resend("T", group="readers", from_ms=0)
        await eventually(lambda: len(handler.messages) == 2)
        again = handler.messages[1]
        place = format_offset_id(again.store_host, again.physical_offset)
        assert (await admin.find_by_id(place)).body == b"a"
        done = await admin.consume_directly("readers", place)
        assert done.consume_result == "CR_SUCCESS"
        assert handler.texts == ["a", "a", "a"]


async def test_a_pop_consumer_gets_resent_messages_until_acknowledged(driver):
    async with (
        Admin(driver.name_servers) as admin,
        Producer(driver.name_servers) as producer,
        PopConsumer(driver.name_servers, group="poppers", invisible_ms=300) as consumer,
    ):
        for number in range(3):
            await producer.send(Message("T", f"m{number}"))
        seen: list[str] = []
        while len(seen) < 3:
            receipts = await consumer.receive("T")
            seen += [receipt.message.body.decode() for receipt in receipts]
            await consumer.ack(receipts)
        assert await admin.resend("T", group="poppers", begin=1, end=2) == ResendResult(2, 0, ("poppers",))
        again = await consumer.receive("T", wait_ms=10_000)
        assert [receipt.message.body for receipt in again] == [b"m1", b"m2"]
        assert {receipt.message.topic for receipt in again} == {"T"}
        assert [receipt.message.reconsume_times for receipt in again] == [0, 0]
        await consumer.ack(again[1])
        (third,) = await consumer.receive("T", wait_ms=10_000)
        assert (third.message.body, third.message.reconsume_times) == (b"m1", 1)
        await consumer.ack(third)
        assert await consumer.receive("T", wait_ms=500) == []


async def test_a_parked_pop_receives_resent_messages(driver):
    async with (
        Admin(driver.name_servers) as admin,
        Producer(driver.name_servers) as producer,
        PopConsumer(driver.name_servers, group="poppers") as consumer,
    ):
        await producer.send(Message("T", "m"))
        await consumer.ack(await consumer.receive("T"))
        waiting = asyncio.create_task(consumer.receive("T", wait_ms=15_000))
        await eventually(lambda: driver.platform.broker.broker.long_polls.count > 0)
        await admin.resend("T", group="poppers", begin=0, end=0)
        (again,) = await waiting
        assert again.message.body == b"m"


async def test_the_client_raises_errors_for_refused_resends(driver):
    async with Admin(driver.name_servers) as admin:
        with pytest.raises(UnknownTopic):
            await admin.resend("nowhere", group="g", begin=0, end=0)
        await driver.send("T", ["a"])
        with pytest.raises(Refused, match="'g' does not exist"):
            await admin.resend("T", group="g", begin=0, end=0)
        with pytest.raises(Refused, match="name the group to resend to"):
            await admin.resend("T", begin=0, end=0)
        with pytest.raises(Refused, match="no master 'elsewhere'"):
            await admin.resend("T", begin=0, end=0, broker="elsewhere")
        with pytest.raises(Refused, match="name is empty"):
            await admin.resend("T", group="", begin=0, end=0)


async def test_several_brokers_all_resend_or_none_does(tmp_path):
    async with (
        running_platform_driver(tmp_path / "a") as driver,
        running_broker(tmp_path / "b", name="other", name_servers=driver.name_servers) as other,
        Admin(driver.name_servers) as admin,
        open_channel(other.address) as channel,
    ):
        await admin.create_topic("T", 1)
        await admin.create_group(Group(name="g"))
        stores = [driver.platform.broker.broker.store, other.broker.store]
        await driver.send("T", ["a", "b"])
        read_send_response(await try_send(channel, "T", b"c"))
        await admin.reset_queue("g", queue_ref("T"), 2)

        with pytest.raises(Refused, match="has read nothing"):
            await admin.resend("T", group="g", from_ms=0)
        assert [store.bounds_nowait(RETRY).end for store in stores] == [0, 0], (
            "a refused resend must store nothing on any broker"
        )
        with pytest.raises(Refused, match="on other, sparrow"):
            await admin.resend("T", group="g", begin=0, end=0)
        assert await admin.resend("T", group="g", begin=0, end=0, broker="sparrow") == ResendResult(1, 0, ("g",))

        await admin.reset_offsets("g", "T", "last")
        assert await admin.resend("T", from_ms=0, dry_run=True) == ResendResult(3, 0, ("g",))
        assert await admin.resend("T", from_ms=0) == ResendResult(3, 0, ("g",))
        assert [store.bounds_nowait(RETRY).end for store in stores] == [3, 1]


# -- the command line -------------------------------------------------------------------------------------------------


async def run(driver: PlatformDriver, *words: str, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sparrow", "resend", *words, "--name-servers", driver.name_servers]
    return await asyncio.to_thread(
        subprocess.run, command, input=said, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.thorough
async def test_the_command_resends_and_asks_before_resending_to_all_groups(driver):
    async with Admin(driver.name_servers) as admin:
        await driver.send("T", ["a", "b", "c"])
        for name in ("g", "h"):
            await admin.create_group(Group(name=name))
            await admin.reset_offsets(name, "T", "last")
    store = driver.platform.broker.broker.store
    done = await run(driver, "T", "--group", "g", "--offsets", "0", "1", "--dry-run")
    assert done.stdout == "2 messages would be resent to g.\n", done.stderr
    done = await run(driver, "T", "--group", "g", "--offsets", "0", "1")
    assert done.stdout == "2 messages resent to g.\n", done.stderr
    assert store.bounds_nowait(Queue("%RETRY%g", 0)).end == 2

    done = await run(driver, "T", "--time", "2020-01-01", "2100-01-01T10:00+02:00", said="n\n")
    assert "3 messages would be resent to g, h. Continue?" in done.stderr
    assert done.returncode == 1
    assert store.bounds_nowait(Queue("%RETRY%h", 0)).end == 0
    done = await run(driver, "T", "--time", "0", "99999999999999", "--yes")
    assert done.stdout == "3 messages resent to g, h.\n", done.stderr

    done = await run(driver, "T", "--group", "g", "--offsets", "1", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert "not a range of offsets" in done.stderr
    done = await run(driver, "T", "--group", "g", "--time", "yesterday", "today")
    assert "'yesterday' is not a time" in done.stderr
    assert "Examples" in (await run(driver, "--help")).stdout
