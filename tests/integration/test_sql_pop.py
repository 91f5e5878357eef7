"""Pops from brokers on a SQL store: ack, revive, FIFO pop, lanes, and changes of the leader."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.integration.test_broker_pop import INVISIBLE_MS, PopClient, PoppedMessage, bodies_of
from tests.support.broker_client import Clock
from tests.support.platforms import broker_settings, encode_properties, open_channel, send, send_batch, subscribe
from tests.support.sql_brokers import SqlBrokers, leadership_of, running_sql_brokers, running_sql_platform, sql_store_of
from tests.support.wait import eventually

from sparrow import clock
from sparrow.broker.pop.state import sql as state_sql
from sparrow.broker.pop.state.sql import SqlPopState
from sparrow.broker.server import BrokerServer
from sparrow.client.aio import Admin, Producer
from sparrow.client.aio.consume.pop_consumer import PopConsumer
from sparrow.model import Message
from sparrow.model.errors import SparrowError
from sparrow.model.priority import Priority
from sparrow.model.queue import Queue, QueueOffset
from sparrow.model.topic import Group, Topic
from sparrow.settings import SqlSettings
from sparrow.wire import bodies, headers
from sparrow.wire.bodies.pop import Ack, Assignments, BatchAck, QueryAssignment, SetRequestMode, encode_bitset
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import (
    CommitOffset,
    GetPollingCount,
    GetPollingCountResponse,
    NotificationRequest,
    NotificationResponse,
    PeekMessage,
    PopMessage,
    PopMessageResponse,
)

pytestmark = [pytest.mark.one_database, pytest.mark.locks]

PARTS = 2
MIDDLE = (Queue("t", 1), Queue("t", 4))
"""The queues of messages without a priority, for each write queue."""


class SqlPopClient(PopClient):
    """The same client, with lower-case topic names."""

    def pop_header(self, topic: str = "t", **how: object) -> PopMessage:
        return super().pop_header(topic, **how)

    async def try_pop(self, topic: str = "t", **how: object) -> RemotingCommand:
        return await super().try_pop(topic, **how)

    async def pop(self, topic: str = "t", **how: object) -> list[PoppedMessage]:
        return await super().pop(topic, **how)

    def read_popped(self, answer: RemotingCommand, topic: str = "t") -> list[PoppedMessage]:
        return super().read_popped(answer, topic)

    async def send_to_each_queue(self, each: int = 10, queues: int = PARTS, topic: str = "t") -> set[bytes]:
        return await super().send_to_each_queue(each, queues, topic)

    @property
    def pop_state(self) -> SqlPopState:
        assert isinstance(self.broker.pop_state, SqlPopState)
        return self.broker.pop_state

    def committed_offset(self, queue: Queue = MIDDLE[0]) -> int | None:
        """Return the committed offset, at which the next leader would continue."""
        return self.broker.store.offsets.committed_nowait(self.group, queue)

    async def commit(self, offset: int, queue: Queue = MIDDLE[0]) -> None:
        answer = await self.request(
            RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset(self.group, queue.topic, queue.id, offset)
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def send_to_lane(self, priority: Priority, count: int) -> None:
        said = encode_properties(PRIORITY=priority.label).encode()
        await send_batch(self.channel, "t", [(b"%s-%d" % (priority.label.encode(), n), said) for n in range(count)])


@asynccontextmanager
async def running_sql_pop_client(url: str, folder: Path):
    still = Clock()
    async with BrokerServer(broker_settings(store=url), folder, sql_settings=SqlSettings(), now_ms=still) as server:
        if "t" not in server.broker.topics:
            await server.broker.topics.put(Topic(name="t", read_queues=PARTS, write_queues=PARTS))
        async with open_channel(server.address) as channel:
            yield SqlPopClient(server, channel, still)


@pytest.fixture
async def pop_client(database_url, tmp_path):
    async with running_sql_pop_client(database_url, tmp_path) as pop_client:
        yield pop_client


# -- pop and ack ------------------------------------------------------------------------------------------------------


async def test_an_acknowledged_message_is_not_popped_again(pop_client):
    every = await pop_client.send_to_each_queue(each=40)
    got: list[PoppedMessage] = []
    while some := await pop_client.pop():
        got += some
    assert sorted(bodies_of(got)) == sorted(every)
    await pop_client.ack_all(*got)
    assert [pop_client.committed_offset(queue) for queue in MIDDLE] == [40, 40]
    await pop_client.advance_ms(2 * INVISIBLE_MS)
    assert await pop_client.pop() == []
    assert len(pop_client.pop_state.in_flight) == 0


async def test_the_committed_offset_stays_at_the_first_unacknowledged_message(pop_client):
    await pop_client.send_to_each_queue(each=6, queues=1)
    got = await pop_client.pop(count=4)
    assert pop_client.committed_offset() == 0
    await pop_client.ack_all(got[1], got[3])
    assert pop_client.committed_offset() == 0
    await pop_client.ack_all(got[0])
    assert pop_client.committed_offset() == 2
    rest = await pop_client.pop()
    await pop_client.ack_all(*rest)
    assert pop_client.committed_offset() == 2
    await pop_client.ack_all(got[2])
    assert pop_client.committed_offset() == 6


async def test_a_batch_ack_acknowledges_messages_of_several_queues(pop_client):
    every = await pop_client.send_to_each_queue(each=5)
    assert set(bodies_of(await pop_client.pop())) == every
    acks = [
        Ack("G", "t", "0", lot.start, lot.queue.id, 0, lot.pop_ms, lot.invisible_ms, encode_bitset(range(5)))
        for lot in pop_client.pop_state.in_flight
    ]
    answer = await pop_client.request(
        RequestCode.BATCH_ACK_MESSAGE, headers.BatchAckMessage(), bodies.write(BatchAck("sparrow", acks))
    )
    assert (answer.code, len(pop_client.pop_state.in_flight)) == (0, 0)
    assert [pop_client.committed_offset(queue) for queue in MIDDLE] == [5, 5]
    again = await pop_client.request(
        RequestCode.BATCH_ACK_MESSAGE, headers.BatchAckMessage(), bodies.write(BatchAck("sparrow", acks[:1]))
    )
    assert (again.code, "5 of 5" in again.remark) == (ResponseCode.NO_MESSAGE, True)


async def test_messages_that_are_not_cached_are_read_from_the_database(database_url, tmp_path):
    async with running_sql_pop_client(database_url, tmp_path) as pop_client:
        every = await pop_client.send_to_each_queue(each=50)
    async with running_sql_pop_client(database_url, tmp_path) as pop_client:
        assert pop_client.broker.store.read_nowait(MIDDLE[0], 0) is None
        got: list[PoppedMessage] = []
        while some := await pop_client.pop():
            got += some
        assert sorted(bodies_of(got)) == sorted(every)


async def test_concurrent_pops_get_different_messages_from_the_database(database_url, tmp_path):
    async with running_sql_pop_client(database_url, tmp_path) as pop_client:
        every = await pop_client.send_to_each_queue(each=100)
    async with running_sql_pop_client(database_url, tmp_path) as pop_client:

        async def drain() -> list[PoppedMessage]:
            mine: list[PoppedMessage] = []
            while (
                pop_client.pop_state.position("G", MIDDLE[0]) != 100
                or pop_client.pop_state.position("G", MIDDLE[1]) != 100
            ):
                mine += await pop_client.pop(count=7)
            return mine

        got = list(itertools.chain(*await asyncio.gather(*(drain() for _ in range(5)))))
        assert sorted(bodies_of(got)) == sorted(every)


async def test_messages_excluded_by_the_tags_of_a_pop_are_skipped_for_good(pop_client):
    for tag in ("a", "b", "a", "b"):
        await send(pop_client.channel, "t", tag.encode(), 0, encode_properties(TAGS=tag))
    got = await pop_client.pop(expression="a", expression_type="TAG")
    assert bodies_of(got) == [b"a", b"a"]
    await pop_client.ack_all(*got)
    assert pop_client.committed_offset() in (3, 4)
    assert await pop_client.pop(expression="a", expression_type="TAG") == []
    assert pop_client.committed_offset() == 4


# -- revive -----------------------------------------------------------------------------------------------------------


async def test_unacknowledged_message_returns_after_its_invisible_time(pop_client):
    await send(pop_client.channel, "t", b"x", 0, encode_properties(TAGS="a", KEYS="k"))
    (first,) = await pop_client.pop(invisible_ms=1000)
    await pop_client.advance_ms(999)
    assert await pop_client.pop() == []
    await pop_client.advance_ms(1)
    (again,) = await pop_client.pop_until(1)
    assert (again.body, again.message.reconsume_times, again.message.topic) == (b"x", 1, "t")
    assert (again.message.tags, again.message.keys, again.topic) == ("a", ["k"], "%RETRY%G_t")
    assert pop_client.committed_offset() == 1, "a copy is stored, so the original must be settled"
    assert pop_client.committed_offset(Queue("%RETRY%G_t", 0)) == 0
    assert (await pop_client.ack(first))[0] == ResponseCode.NO_MESSAGE
    await pop_client.ack_all(again)
    assert pop_client.committed_offset(Queue("%RETRY%G_t", 0)) == 1
    await pop_client.advance_ms(2 * INVISIBLE_MS)
    assert await pop_client.pop() == []


async def test_only_unacknowledged_messages_of_a_popped_batch_are_revived(pop_client):
    await pop_client.send_to_each_queue(each=10, queues=1)
    got = await pop_client.pop(queue_id=1)
    await pop_client.ack_all(*got[:3], *got[4:9])
    await pop_client.advance_ms(INVISIBLE_MS)
    again = await pop_client.pop_until(2)
    assert sorted(bodies_of(again)) == [b"0-3", b"0-9"]
    assert pop_client.committed_offset() == 10


async def test_a_parked_pop_receives_a_revived_message(pop_client):
    await send(pop_client.channel, "t", b"x")
    await pop_client.pop(invisible_ms=1000)
    waiting = asyncio.create_task(pop_client.try_pop(poll_ms=8_000))
    await eventually(lambda: pop_client.broker.long_polls.count == 1)
    await pop_client.advance_ms(1000)
    assert bodies_of(pop_client.read_popped(await waiting)) == [b"x"]


async def test_a_message_with_its_retries_used_up_becomes_a_dead_letter(pop_client):
    await pop_client.broker.groups.put(Group(name="G", retries_max=1))
    await send(pop_client.channel, "t", b"x", 0)
    await pop_client.pop(invisible_ms=10)
    await pop_client.advance_ms(10)
    (again,) = await pop_client.pop_until(1, invisible_ms=10)
    assert again.message.reconsume_times == 1
    await pop_client.advance_ms(10)
    await eventually(lambda: pop_client.broker.store.bounds_nowait(Queue("%DLQ%G", 0)).end == 1)
    (dead,) = await pop_client.read_stored("%DLQ%G")
    assert (dead.body, dead.properties["RETRY_TOPIC"], dead.properties["DLQ_ATTEMPT"]) == (b"x", "t", "2")
    await eventually(lambda: pop_client.committed_offset(Queue("%RETRY%G_t", 0)) == 1)
    assert await pop_client.pop() == []


async def test_changing_the_invisible_time_returns_a_new_receipt_handle(pop_client):
    await pop_client.send_to_each_queue(each=2, queues=1)
    first, second = await pop_client.pop(invisible_ms=1000)
    code, handle = await pop_client.change_invisible_time(first, 5000)
    assert code == 0
    assert (await pop_client.ack(first))[0] == ResponseCode.NO_MESSAGE
    await pop_client.ack_all(second)
    assert pop_client.committed_offset() == 0, "the other message must still be in flight"
    await pop_client.advance_ms(4999)
    assert await pop_client.pop() == []
    assert await pop_client.ack(first, handle) == (0, None)
    assert pop_client.committed_offset() == 2
    await pop_client.advance_ms(INVISIBLE_MS)
    assert await pop_client.pop() == []


async def test_an_invisible_time_of_0_revives_the_message_at_once(pop_client):
    await send(pop_client.channel, "t", b"x")
    (first,) = await pop_client.pop()
    assert (await pop_client.change_invisible_time(first, 0))[0] == 0
    await pop_client.advance_ms(1)
    (again,) = await pop_client.pop_until(1)
    assert (again.body, again.message.reconsume_times) == (b"x", 1)


async def test_a_message_whose_revive_fails_stays_in_flight(pop_client, monkeypatch):
    await send(pop_client.channel, "t", b"x")
    (first,) = await pop_client.pop(invisible_ms=10)
    store = sql_store_of(pop_client.server)
    asked: list[Queue] = []

    def away(queue: Queue, *_: object, **__: object) -> None:
        asked.append(queue)
        raise SparrowError("the database is away")

    monkeypatch.setattr(store, "append_nowait", away)
    await pop_client.advance_ms(10)
    await eventually(lambda: asked)
    await eventually(lambda: len(pop_client.pop_state.in_flight) == 1)
    assert pop_client.committed_offset() == 0
    monkeypatch.undo()
    assert await pop_client.ack(first) == (0, None)
    assert pop_client.committed_offset() == 1


# -- FIFO pop ---------------------------------------------------------------------------------------------------------


async def test_fifo_pop_blocks_a_queue_until_the_whole_batch_is_acknowledged(pop_client):
    await pop_client.send_to_each_queue(each=6, queues=1)
    how = {"queue_id": 1, "in_order": True, "count": 3}
    got = await pop_client.pop(**how)
    assert bodies_of(got) == [b"0-0", b"0-1", b"0-2"]
    assert await pop_client.pop(**how) == []
    await pop_client.ack_all(got[0], got[2])
    assert (pop_client.committed_offset(), await pop_client.pop(**how)) == (1, [])
    await pop_client.ack_all(got[1])
    assert bodies_of(await pop_client.pop(**how)) == [b"0-3", b"0-4", b"0-5"]
    assert pop_client.committed_offset() == 3


async def test_fifo_pop_redelivers_the_rest_after_the_invisible_time(pop_client):
    await pop_client.send_to_each_queue(each=3, queues=1)
    how = {"queue_id": 1, "in_order": True, "invisible_ms": 1000}
    first = await pop_client.pop(**how)
    await pop_client.ack_all(first[0])
    await pop_client.advance_ms(1000)
    answer = await pop_client.try_pop(**how)
    assert bodies_of(pop_client.read_popped(answer)) == [b"0-1", b"0-2"]
    assert headers.read(PopMessageResponse, answer.ext).order_counts == "0 1 1;0 qo1%1 1;0 qo1%2 1"


# -- lanes ------------------------------------------------------------------------------------------------------------

TEN = [*(b"high-%d" % n for n in range(3)), *(b"middle-%d" % n for n in range(4)), *(b"low-%d" % n for n in range(3))]


async def fill_lanes(pop_client: SqlPopClient) -> None:
    for priority, count in ((Priority.LOW, 9), (Priority.MIDDLE, 4), (Priority.HIGH, 3)):
        await pop_client.send_to_lane(priority, count)


async def test_a_pop_fills_its_batch_with_high_then_middle_then_low(pop_client):
    await fill_lanes(pop_client)
    assert bodies_of(await pop_client.pop(count=10)) == TEN


async def test_a_pop_from_the_database_fills_its_batch_in_the_same_order(database_url, tmp_path):
    async with running_sql_pop_client(database_url, tmp_path) as pop_client:
        await fill_lanes(pop_client)
    async with running_sql_pop_client(database_url, tmp_path) as pop_client:
        assert bodies_of(await pop_client.pop(count=10)) == TEN
        assert bodies_of(await pop_client.pop(count=10)) == [b"low-%d" % n for n in range(3, 9)]


async def test_a_starved_lane_gets_its_share(pop_client):
    await pop_client.send_to_lane(Priority.LOW, 5)
    pop_client.clock.now_ms += pop_client.broker.settings.lane_starvation_ms + 1
    await pop_client.send_to_lane(Priority.HIGH, 100)
    got = [body.split(b"-")[0] for body in bodies_of(await pop_client.pop(count=10))]
    assert (got.count(b"high"), got.count(b"low")) == (9, 1)


# -- offset resets ----------------------------------------------------------------------------------------------------


async def test_resetting_the_offset_backwards_delivers_messages_again(pop_client):
    await pop_client.send_to_each_queue(each=4, queues=1)
    await pop_client.ack_all(*await pop_client.pop())
    assert pop_client.committed_offset() == 4
    await pop_client.commit(1)
    got = await pop_client.pop()
    assert bodies_of(got) == [b"0-1", b"0-2", b"0-3"]
    await pop_client.ack_all(*got)
    assert pop_client.committed_offset() == 4


async def test_resetting_the_offset_forwards_ignores_older_messages_in_flight(pop_client):
    await pop_client.send_to_each_queue(each=10, queues=1)
    old = await pop_client.pop(count=3)
    await pop_client.commit(8)
    got = await pop_client.pop()
    assert bodies_of(got) == [b"0-8", b"0-9"]
    await pop_client.ack_all(*got)
    assert pop_client.committed_offset() == 10
    await pop_client.ack_all(old[0])
    assert pop_client.committed_offset() == 10


async def test_an_ack_does_not_undo_an_offset_reset_forwards(pop_client):
    await pop_client.send_to_each_queue(each=10, queues=1)
    old = await pop_client.pop(count=3)
    await pop_client.commit(8)
    await pop_client.ack_all(old[0])
    assert pop_client.committed_offset() == 8
    assert bodies_of(await pop_client.pop()) == [b"0-8", b"0-9"]


async def test_a_stale_offset_read_during_a_commit_does_not_reset_the_group(pop_client, monkeypatch):
    await pop_client.send_to_each_queue(each=10, queues=1)
    got = await pop_client.pop(count=4)
    committing, may_save = sql_store_of(pop_client.server).offsets, asyncio.Event()
    await committing.flush()
    save = committing._save

    async def slow(*args: object, **named: object) -> bool:
        await may_save.wait()
        return await save(*args, **named)

    monkeypatch.setattr(committing, "_save", slow)
    await pop_client.ack_all(got[0])
    flushing = asyncio.create_task(committing.flush())
    await eventually(lambda: not committing._unsaved)
    committing._known["G", MIDDLE[0]] = QueueOffset(0)  # as read from the database
    popped = asyncio.create_task(pop_client.pop())
    await eventually(lambda: pop_client.pop_state._loading)
    may_save.set()
    assert bodies_of(await popped) == [b"0-%d" % number for number in range(4, 10)], (
        "messages in flight must not be returned"
    )
    await flushing
    await pop_client.ack_all(*got[1:])
    assert pop_client.committed_offset() == 4


async def test_a_recreated_topic_is_popped_from_its_start(pop_client):
    await pop_client.send_to_each_queue(each=5, queues=1)
    await pop_client.ack_all(*await pop_client.pop())
    await pop_client.broker.topics.delete("t")
    await pop_client.broker.topics.put(Topic(name="t", read_queues=1, write_queues=1))
    await send(pop_client.channel, "t", b"new")
    assert bodies_of(await pop_client.pop()) == [b"new"]


async def test_pops_stop_at_a_maximum_distance_from_the_ack_floor(pop_client, monkeypatch):
    monkeypatch.setattr(state_sql, "AHEAD_OF_ACK_FLOOR_MAX", 5)
    await pop_client.send_to_each_queue(each=20, queues=1)
    first = await pop_client.pop(count=3)
    second = await pop_client.pop(count=3)
    assert await pop_client.pop() == []
    waiting = asyncio.create_task(pop_client.try_pop(poll_ms=8_000, count=1))
    await eventually(lambda: pop_client.broker.long_polls.count == 1)
    await pop_client.ack_all(*second)
    assert not waiting.done()
    await pop_client.ack_all(*first[:2])
    assert pop_client.read_popped(await waiting)[0].body == b"0-6"


# -- peek and long polling --------------------------------------------------------------------------------------------


async def test_a_peek_returns_the_next_messages_without_popping_them(pop_client):
    await pop_client.send_to_each_queue(each=3, queues=1)
    await pop_client.pop(count=1)
    answer = await pop_client.request(RequestCode.PEEK_MESSAGE, PeekMessage("G", "t", -1, 10))
    assert answer.code == ResponseCode.SUCCESS
    assert b"0-1" in bytes(answer.body)
    assert b"0-0" not in bytes(answer.body)
    assert len(await pop_client.pop()) == 2


async def test_a_notification_reports_messages_and_waits_for_them(pop_client):
    await pop_client.pop()

    async def notified(poll_ms: int) -> bool:
        header = NotificationRequest("G", "t", -1, poll_ms, pop_client.clock())
        answer = await pop_client.request(RequestCode.NOTIFICATION, header, long_poll_ms=poll_ms)
        return headers.read(NotificationResponse, answer.ext).has_message

    assert await notified(0) is False
    waiting = asyncio.create_task(notified(8_000))
    await eventually(lambda: pop_client.broker.long_polls.count == 1)
    await send(pop_client.channel, "t", b"x")
    assert await waiting is True


async def test_a_pop_of_one_queue_is_parked_even_after_a_read_from_the_database(pop_client):
    await send(pop_client.channel, "t", b"x")
    await pop_client.ack_all(*await pop_client.pop(queue_id=1))
    store = sql_store_of(pop_client.server)
    store._views.by_number[store.catalog.lane(MIDDLE[0]).number].forget()
    assert store.read_nowait(MIDDLE[0], 1) is None
    waiting = asyncio.create_task(pop_client.try_pop(queue_id=1, poll_ms=8_000))
    await eventually(lambda: pop_client.broker.long_polls.count == 1)
    await send(pop_client.channel, "t", b"y")
    assert bodies_of(pop_client.read_popped(await waiting)) == [b"y"]


async def test_a_pop_consumer_is_assigned_all_queues_of_a_broker(pop_client):
    await subscribe(pop_client.channel, "G", t="*")
    await pop_client.request(
        RequestCode.SET_MESSAGE_REQUEST_MODE, headers.EmptyHeader(), bodies.write(SetRequestMode("t", "G", mode="POP"))
    )
    asked = QueryAssignment("t", "G", f"client@{pop_client.channel.address}")
    answer = await pop_client.request(RequestCode.QUERY_ASSIGNMENT, headers.EmptyHeader(), bodies.write(asked))
    (assignment,) = bodies.read(Assignments, bytes(answer.body)).message_queue_assignments or ()
    assert (assignment.message_queue.queue_id, assignment.mode) == (-1, "POP")


async def test_polling_info_counts_parked_pops(pop_client):
    waiting = asyncio.create_task(pop_client.try_pop(poll_ms=8_000))
    await eventually(lambda: pop_client.broker.long_polls.count == 1)
    answer = await pop_client.request(RequestCode.POLLING_INFO, GetPollingCount("G", "t", -1))
    assert headers.read(GetPollingCountResponse, answer.ext).count == 1
    await send(pop_client.channel, "t", b"x")
    assert bodies_of(pop_client.read_popped(await waiting)) == [b"x"]


# -- Sparrow's client -------------------------------------------------------------------------------------------------


async def test_several_pop_consumers_share_queues_without_duplicates(database_url, tmp_path):
    async with running_sql_platform(tmp_path, database_url) as driver:
        topic = await driver.create_topic("orders", 3)
        every = await driver.send_to_each_queue(topic, 3, 60)
        consumers = [PopConsumer(driver.name_servers, group="g", invisible_ms=30_000) for _ in range(4)]
        seen: list[str] = []

        async def work(consumer: PopConsumer) -> None:
            async with consumer:
                while len(seen) < len(every):
                    receipts = await consumer.receive(topic, count_max=7, wait_ms=200)
                    seen.extend(receipt.message.body.decode() for receipt in receipts)
                    await consumer.ack(receipts)

        await asyncio.gather(*map(work, consumers))
        assert sorted(seen) == sorted(every)
        for queue_id in (1, 4, 7):
            await driver.wait_for_commit(60, "g", topic, queue_id)


async def test_unacknowledged_message_is_redelivered_to_another_consumer(database_url, tmp_path):
    async with running_sql_platform(tmp_path, database_url) as driver:
        await driver.send("t", ["x"])
        async with (
            PopConsumer(driver.name_servers, group="g", invisible_ms=300) as first,
            PopConsumer(driver.name_servers, group="g") as second,
        ):
            (taken,) = await first.receive("t")
            (again,) = await second.receive("t", wait_ms=10_000)
            assert (again.message.body, again.message.reconsume_times) == (b"x", 1)
            with pytest.raises(SparrowError):
                await first.ack(taken)
            kept = await second.change_invisible_time(again, 60_000)
            with pytest.raises(SparrowError):
                await second.ack(again)
            await second.ack(kept)
            await driver.wait_for_commit(1, "g", "%RETRY%g_t")


# -- several brokers --------------------------------------------------------------------------------------------------


@pytest.fixture
async def two(tmp_path, database_url):
    async with running_sql_brokers(tmp_path, database_url, 2) as running:
        async with Admin(running.name_servers) as admin:
            await admin.create_topic("t", 1)
        await eventually(lambda: all("t" in server.broker.topics for server in running.brokers))
        yield running


class RealTime(Clock):
    def __call__(self) -> int:
        return clock.now_ms()


def connect_pop_clients(running: SqlBrokers) -> list[SqlPopClient]:
    return [
        SqlPopClient(server, channel, RealTime())
        for server, channel in zip(running.brokers, running.channels, strict=True)
    ]


async def take_lease(running: SqlBrokers, of: int) -> None:
    """Expire the lease of the leader and let the other broker acquire it."""
    heir = running.brokers[1 - of]
    await sql_store_of(heir).database.execute("UPDATE hermes_lease SET expires_at = 0 WHERE name = 'leader'")
    await leadership_of(heir)._renew()
    await leadership_of(running.brokers[of])._renew()


async def wait_until_leader(pop_client: SqlPopClient) -> None:
    await eventually(lambda: pop_client.broker.broker_id == 0 and pop_client.pop_state._leads)


async def test_pop_requests_to_a_broker_that_is_not_the_leader_are_refused(two):
    leader, other = connect_pop_clients(two)
    await send(leader.channel, "t", b"x")
    (got,) = await leader.pop()
    message = got.message
    for answer in (
        await other.try_pop(),
        await other.request(RequestCode.ACK_MESSAGE, headers.AckMessage("G", "t", 1, got.handle, message.queue_offset)),
        await other.request(RequestCode.BATCH_ACK_MESSAGE, headers.BatchAckMessage(), bodies.write(BatchAck("db", []))),
        await other.request(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            headers.ChangeInvisibleTime("G", "t", 1, got.handle, message.queue_offset, 9),
        ),
        await other.request(RequestCode.NOTIFICATION, NotificationRequest("G", "t", -1, 0, other.clock())),
        await other.request(RequestCode.PEEK_MESSAGE, PeekMessage("G", "t", -1, 1)),
    ):
        assert (answer.code, "is not the leader" in (answer.remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
    await leader.ack_all(got)


async def test_a_new_leader_delivers_only_unacknowledged_messages(two):
    first, second = connect_pop_clients(two)
    await send_batch(first.channel, "t", [(b"%d" % n, b"") for n in range(10)])
    got = await first.pop()
    assert len(got) == 10
    await first.ack_all(*got[:6])
    await two.brokers[0].stop()
    await wait_until_leader(second)
    again = await second.pop()
    assert bodies_of(again) == [b"6", b"7", b"8", b"9"]
    code, _ = await second.ack(got[6])
    assert code == ResponseCode.NO_MESSAGE, "handles of another leader must be invalid"
    await second.ack_all(*again)
    assert second.committed_offset(Queue("t", 1)) == 10
    assert await second.pop() == []


async def test_a_new_leader_delivers_revived_messages_with_their_counts(two):
    first, second = connect_pop_clients(two)
    await send(first.channel, "t", b"x")
    await first.pop(invisible_ms=1)
    (again,) = await first.pop_until(1)
    assert again.message.reconsume_times == 1
    await two.brokers[0].stop()
    await wait_until_leader(second)
    (once_more,) = await second.pop()
    assert (once_more.body, once_more.message.reconsume_times) == (b"x", 1)
    await second.ack_all(once_more)
    assert await second.pop() == []


async def test_fifo_pop_a_new_leader_continues_at_the_first_unacknowledged_message(two):
    first, second = connect_pop_clients(two)
    await send_batch(first.channel, "t", [(b"%d" % n, b"") for n in range(5)])
    got = await first.pop(queue_id=1, in_order=True, count=3)
    await first.ack_all(got[0])
    await two.brokers[0].stop()
    await wait_until_leader(second)
    assert bodies_of(await second.pop(queue_id=1, in_order=True, count=3)) == [b"1", b"2", b"3"]


async def test_a_parked_pop_is_refused_when_its_broker_loses_leadership(two):
    first, second = connect_pop_clients(two)
    waiting = asyncio.create_task(first.try_pop(poll_ms=8_000))
    await eventually(lambda: first.broker.long_polls.count == 1)
    await take_lease(two, 0)
    assert (await waiting).code == ResponseCode.SERVICE_NOT_AVAILABLE
    await wait_until_leader(second)
    await send(first.channel, "t", b"x")
    got = (await second.try_pop(poll_ms=8_000)).code
    assert got == ResponseCode.SUCCESS


async def test_a_parked_pop_is_woken_by_a_send_to_another_broker(two):
    leader, other = connect_pop_clients(two)
    waiting = asyncio.create_task(leader.try_pop(poll_ms=8_000))
    await eventually(lambda: leader.broker.long_polls.count == 1)
    await send(other.channel, "t", b"x")
    assert bodies_of(leader.read_popped(await waiting)) == [b"x"]


async def test_a_topic_recreated_by_another_broker_is_popped_from_its_start(two):
    leader, other = connect_pop_clients(two)
    await send_batch(leader.channel, "t", [(b"%d" % number, b"") for number in range(5)])
    await leader.ack_all(*await leader.pop())
    await sql_store_of(two.brokers[0]).offsets.flush()
    await other.broker.topics.put(Topic(name="u", read_queues=1, write_queues=1))  # SQLite reuses the last numbers
    await other.broker.topics.delete("t")
    await other.broker.topics.put(Topic(name="t", read_queues=1, write_queues=1))
    await send(other.channel, "t", b"new")
    lane = sql_store_of(two.brokers[1]).catalog.lane(Queue("t", 1))
    catalog = sql_store_of(two.brokers[0]).catalog
    await eventually(lambda: catalog.lanes.get(Queue("t", 1)) == lane and "t" in leader.broker.topics)
    assert bodies_of(await leader.pop()) == [b"new"]


async def test_a_pop_consumer_continues_at_the_new_leader(two):
    async with Producer(two.name_servers) as producer:
        for number in range(8):
            await producer.send(Message("t", b"%d" % number))
    async with PopConsumer(two.name_servers, group="g") as consumer:
        receipts = await consumer.receive("t")
        assert len(receipts) == 8
        await consumer.ack(receipts[:5])
        await two.brokers[0].stop()
        again: list[bytes] = []
        async with asyncio.timeout(30):
            while len(again) < 3:
                try:
                    again += [receipt.message.body for receipt in await consumer.receive("t", wait_ms=500)]
                except SparrowError:  # not the leader: refresh the route
                    await consumer.session.refresh(["t"])
                    await asyncio.sleep(0.01)
        assert again == [b"5", b"6", b"7"]


async def test_no_message_is_lost_while_leaders_change(two):
    """A new leader redelivers the messages that its predecessor had in flight; in the end all are acknowledged."""
    every = {b"%d" % number for number in range(300)}
    pair = connect_pop_clients(two)
    await send_batch(pair[0].channel, "t", [(body, b"") for body in sorted(every)])
    acknowledged: set[bytes] = set()
    turn = itertools.count()

    async def work() -> None:
        while acknowledged != every:
            for pop_client in pair:
                answer = await pop_client.try_pop(count=8, invisible_ms=300)
                for got in pop_client.read_popped(answer) if answer.code == ResponseCode.SUCCESS else ():
                    if next(turn) % 5 and (await pop_client.ack(got))[0] == 0:
                        acknowledged.add(got.body)
            await asyncio.sleep(0)

    async def change_leaders() -> None:
        for changes in range(4):
            enough = min(len(every), (changes + 1) * 60)
            await eventually(lambda enough=enough: len(acknowledged) >= enough, within_s=30)
            of = two.broker_ids.index(0)
            await take_lease(two, of)

    async with asyncio.timeout(60):
        await asyncio.gather(change_leaders(), *(work() for _ in range(3)))
        leader = pair[two.broker_ids.index(0)]
        retries = Queue("%RETRY%G_t", 0)
        while leader.committed_offset(Queue("t", 1)) != len(every) or (
            (leader.committed_offset(retries) or 0)
            != leader.broker.store.bounds_nowait(retries).end  # there may be no retries
        ):
            await leader.ack_all(*await leader.pop())
            await asyncio.sleep(0.001)


async def test_after_a_database_restart_unacknowledged_messages_are_delivered_again(pop_client):
    await pop_client.send_to_each_queue(each=4, queues=1)
    got = await pop_client.pop()
    await pop_client.ack_all(*got[:2])
    await sql_store_of(pop_client.server)._handle_server_restart()
    assert len(pop_client.pop_state.in_flight) == 0
    assert bodies_of(await pop_client.pop()) == [b"0-2", b"0-3"]
