"""Pops from a real broker: ack, revive, invisible times, FIFO pop, long polling, restarts, and assignments."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from tests.support.broker_client import LOG, Clock
from tests.support.log_stores import copy_as_crashed
from tests.support.platforms import TIMEOUT_MS, encode_properties, running_platform, send, send_batch, subscribe
from tests.support.raw_connection import open_raw_connection
from tests.support.wait import eventually

from sparrow.broker.pop import receipt_handles
from sparrow.broker.pop.state import log as state_log
from sparrow.broker.pop.state.log import JOURNAL_START_MARK
from sparrow.broker.server import BrokerServer
from sparrow.model.message import StoredMessage
from sparrow.model.queue import Queue
from sparrow.model.topic import Group, Topic
from sparrow.net import Channel, connect
from sparrow.settings import BrokerSettings
from sparrow.store.spi import Slice
from sparrow.wire import bodies, headers, record
from sparrow.wire.bodies.pop import Ack, BatchAck, encode_bitset
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand, Serialization
from sparrow.wire.headers import (
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    NotificationRequest,
    PopMessage,
    PopMessageResponse,
)

QUEUES = 4
INVISIBLE_MS = 60_000


class PoppedMessage(NamedTuple):
    """A popped message with its receipt handle, as a client builds it or receives it."""

    message: StoredMessage
    handle: str
    topic: str
    """The topic it was popped from."""

    @property
    def body(self) -> bytes:
        return self.message.body


class PopClient:
    """A client that pops as a member of one group."""

    def __init__(self, server: BrokerServer, channel: Channel, clock: Clock, group: str = "G") -> None:
        self.server, self.broker, self.channel, self.clock, self.group = server, server.broker, channel, clock, group

    async def request(
        self, code: int, header: headers.Header, body: bytes = b"", long_poll_ms: int = 0
    ) -> RemotingCommand:
        return await self.channel.request(code, header, body, timeout_ms=TIMEOUT_MS + long_poll_ms)

    def pop_header(
        self,
        topic: str = "T",
        *,
        queue_id: int = -1,
        count: int = 32,
        invisible_ms: int = INVISIBLE_MS,
        poll_ms: int = 0,
        **others: object,
    ) -> PopMessage:
        return PopMessage(
            self.group, topic, queue_id, count, invisible_ms, poll_ms, self.clock(), **({"init_mode": 0} | others)
        )

    async def try_pop(self, topic: str = "T", **how: object) -> RemotingCommand:
        header = self.pop_header(topic, **how)
        return await self.request(RequestCode.POP_MESSAGE, header, long_poll_ms=header.poll_ms)

    async def pop(self, topic: str = "T", **how: object) -> list[PoppedMessage]:
        """Pop, and return the messages; the list may be empty."""
        answer = await self.try_pop(topic, **how)
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT), answer.remark
        return self.read_popped(answer, topic) if answer.code == ResponseCode.SUCCESS else []

    def read_popped(self, answer: RemotingCommand, topic: str = "T") -> list[PoppedMessage]:
        """Build receipt handles from the offset lists as Java's client does, unless a message carries one."""
        said = headers.read(PopMessageResponse, answer.ext)
        starts = {tuple(entry.split(" ")[:2]): int(entry.split(" ")[2]) for entry in said.start_offsets.split(";")}
        taken = {
            tuple(entry.split(" ")[:2]): list(map(int, entry.split(" ")[2].split(",")))
            for entry in said.message_offsets.split(";")
        }
        got: list[PoppedMessage] = []
        for message in record.decode_all(bytes(answer.body)):
            assert message.topic == topic
            handle = message.properties.get("POP_CK")
            if handle is None:
                key = ("0", str(message.queue_id))
                assert message.queue_offset in taken[key]
                handle = receipt_handles.format_handle(
                    start=starts[key],
                    pop_ms=said.pop_ms,
                    invisible_ms=said.invisible_ms,
                    revive_queue=said.revive_queue,
                    retry="0",
                    broker=self.broker.name,
                    queue_id=message.queue_id,
                    offset=message.queue_offset,
                )
            is_retry = handle.split(" ")[4] == "1"
            got.append(PoppedMessage(message, handle, f"%RETRY%{self.group}_{topic}" if is_retry else topic))
        assert len(got) == sum(map(len, taken.values()))
        return got

    async def ack(self, got: PoppedMessage, handle: str | None = None) -> tuple[int, str | None]:
        header = AckMessage(self.group, got.topic, got.message.queue_id, handle or got.handle, got.message.queue_offset)
        answer = await self.request(RequestCode.ACK_MESSAGE, header)
        return answer.code, answer.remark

    async def ack_all(self, *got: PoppedMessage) -> None:
        for each in got:
            assert await self.ack(each) == (0, None)

    async def change_invisible_time(self, got: PoppedMessage, invisible_ms: int) -> tuple[int, str | None]:
        """Change the invisible time; return the response code and the new handle."""
        message = got.message
        header = ChangeInvisibleTime(
            self.group, got.topic, message.queue_id, got.handle, message.queue_offset, invisible_ms
        )
        answer = await self.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        if answer.code:
            return answer.code, answer.remark
        said = headers.read(ChangeInvisibleTimeResponse, answer.ext)
        retry = got.handle.split(" ")[4]
        offset = message.queue_offset
        return 0, (
            f"{offset} {said.pop_ms} {said.invisible_ms} {said.revive_queue} {retry} "
            f"{self.broker.name} {message.queue_id} {offset}"
        )

    async def advance_ms(self, ms: int) -> None:
        """Advance the clock and wake the revive task."""
        self.clock.now_ms += ms
        self.broker.pop_state.earlier_due.set()

    async def pop_until(self, count: int, **how: object) -> list[PoppedMessage]:
        """Pop until this many messages are received."""
        got: list[PoppedMessage] = []
        async with asyncio.timeout(30):
            while len(got) < count:
                self.broker.pop_state.earlier_due.set()
                got += await self.pop(**how)
                await asyncio.sleep(0.001)
        return got

    async def send_to_each_queue(self, each: int = 10, queues: int = QUEUES, topic: str = "T") -> set[bytes]:
        every = {b"%d-%d" % (queue, number) for queue in range(queues) for number in range(each)}
        for queue in range(queues):
            await send_batch(self.channel, topic, [(b"%d-%d" % (queue, n), b"") for n in range(each)], queue)
        return every

    async def read_stored(self, topic: str) -> list[StoredMessage]:
        found = await self.broker.store.read(Queue(topic, 0), 0, count_max=1000)
        return record.decode_all(found.tobytes()) if isinstance(found, Slice) else []


def bodies_of(got: list[PoppedMessage]) -> list[bytes]:
    return [each.body for each in got]


@asynccontextmanager
async def running_pop_client(path: Path, clock: Clock | None = None, **settings: object):
    clock = clock or Clock()
    fields = {"port": 0, **settings}
    async with BrokerServer(BrokerSettings.model_validate(fields), path, LOG, now_ms=clock) as server:
        if "T" not in server.broker.topics:
            await server.broker.topics.put(Topic(name="T", read_queues=QUEUES, write_queues=QUEUES))
        channel = await connect(server.address)
        yield PopClient(server, channel, clock)
        channel.close()


@pytest.fixture
async def pop_client(tmp_path):
    async with running_pop_client(tmp_path / "store") as pop_client:
        yield pop_client


# -- pop and ack ------------------------------------------------------------------------------------------------------


async def test_an_acknowledged_message_is_not_popped_again(pop_client):
    every = await pop_client.send_to_each_queue()
    got: list[PoppedMessage] = []
    while some := await pop_client.pop():
        assert len(some) <= 32
        got += some
    assert set(bodies_of(got)) == every
    assert len(got) == len(every)
    await pop_client.ack_all(*got)
    await pop_client.advance_ms(2 * INVISIBLE_MS)
    assert await pop_client.pop() == []
    assert len(pop_client.broker.pop_state.in_flight) == 0


async def test_a_pop_response_contains_the_fields_of_receipt_handles(pop_client):
    for _ in range(3):
        await send(pop_client.channel, "T", b"x", 2)
    answer = await pop_client.try_pop(queue_id=2, count=2)
    said = headers.read(PopMessageResponse, answer.ext)
    assert (said.pop_ms, said.invisible_ms, said.revive_queue, said.rest) == (pop_client.clock(), INVISIBLE_MS, 0, 1)
    assert (said.start_offsets, said.message_offsets, said.order_counts) == ("0 2 0", "0 2 0,1", None)


async def test_a_popped_message_equals_the_stored_one(pop_client):
    await send(pop_client.channel, "T", b"body", 1, encode_properties(TAGS="a", KEYS="k"))
    (got,) = await pop_client.pop()
    (stored,) = record.decode_all((await pop_client.broker.store.read(Queue("T", 1), 0)).tobytes())
    assert got.message == stored


async def test_a_binary_pop_and_a_binary_ack_get_binary_responses(pop_client):
    await pop_client.send_to_each_queue(each=1, queues=1)
    async with open_raw_connection(pop_client.server.address) as wire:
        ext = headers.write(pop_client.pop_header())
        answer = await wire.request(
            RemotingCommand(RequestCode.POP_MESSAGE, 1, ext=ext, serialization=Serialization.BINARY)
        )
        (got,) = pop_client.read_popped(answer)
        ext = headers.write(AckMessage("G", "T", 0, got.handle, 0))
        acked = await wire.request(
            RemotingCommand(RequestCode.ACK_MESSAGE, 2, ext=ext, serialization=Serialization.BINARY)
        )
        assert (answer.serialization, acked.serialization, acked.code) == (Serialization.BINARY,) * 2 + (0,)
    assert len(pop_client.broker.pop_state.in_flight) == 0


async def test_a_batch_ack_acknowledges_messages_of_several_queues(pop_client):
    every = await pop_client.send_to_each_queue(each=5)
    got = await pop_client.pop()
    assert set(bodies_of(got)) == every
    lots = {lot.queue.id: lot for lot in pop_client.broker.pop_state.in_flight}
    acks = [
        Ack("G", "T", "0", lot.start, lot.queue.id, 0, lot.pop_ms, lot.invisible_ms, encode_bitset(range(5)))
        for lot in lots.values()
    ]
    answer = await pop_client.request(
        RequestCode.BATCH_ACK_MESSAGE, headers.BatchAckMessage(), bodies.write(BatchAck("sparrow", acks))
    )
    assert (answer.code, len(pop_client.broker.pop_state.in_flight)) == (0, 0)
    again = await pop_client.request(
        RequestCode.BATCH_ACK_MESSAGE, headers.BatchAckMessage(), bodies.write(BatchAck("sparrow", acks[:1]))
    )
    assert (again.code, "5 of 5" in again.remark) == (ResponseCode.NO_MESSAGE, True)


async def test_concurrent_acks_share_journal_records(pop_client):
    await pop_client.send_to_each_queue(each=30, queues=1)
    got = await pop_client.pop()
    revive = Queue("rmq_sys_REVIVE_LOG_DefaultCluster", 0)
    before = pop_client.broker.store.bounds_nowait(revive).end
    await asyncio.gather(*(pop_client.ack(each) for each in got))
    assert pop_client.broker.store.bounds_nowait(revive).end - before <= 3
    assert len(pop_client.broker.pop_state.in_flight) == 0


async def test_no_message_is_popped_by_two_consumers_of_a_group(pop_client):
    every = await pop_client.send_to_each_queue(each=100)
    channels = [await connect(pop_client.server.address) for _ in range(5)]
    poppers = [PopClient(pop_client.server, channel, pop_client.clock) for channel in channels]

    async def drain(one: PopClient) -> list[bytes]:
        seen: list[bytes] = []
        while some := await one.pop(count=7):
            seen += bodies_of(some)
        return seen

    seen = [body for some in await asyncio.gather(*map(drain, poppers)) for body in some]
    assert sorted(seen) == sorted(every)
    for channel in channels:
        channel.close()


async def test_each_group_pops_every_message(pop_client):
    every = await pop_client.send_to_each_queue(each=5)
    other = PopClient(pop_client.server, pop_client.channel, pop_client.clock, "H")
    got = await pop_client.pop()
    await pop_client.ack_all(*got)
    assert set(bodies_of(await other.pop())) == every


async def test_messages_excluded_by_the_tags_of_a_pop_are_skipped_for_good(pop_client):
    for tag in ("a", "b", "a", "c"):
        await send(pop_client.channel, "T", tag.encode(), 0, encode_properties(TAGS=tag))
    got = await pop_client.pop(expression="a || c", expression_type="TAG")
    assert bodies_of(got) == [b"a", b"a", b"c"]
    await pop_client.ack_all(*got)
    assert await pop_client.pop() == []


async def test_one_pop_skips_thousands_of_messages_that_do_not_match(pop_client):
    for _ in range(3):
        await send_batch(pop_client.channel, "T", [(b"no", b"TAGS\x01b\x02")] * 1000, 0)
    await send(pop_client.channel, "T", b"yes", 0, encode_properties(TAGS="a"))
    assert bodies_of(await pop_client.pop(queue_id=0, expression="a")) == [b"yes"]


async def test_a_new_group_starts_at_the_beginning_of_a_young_topic_in_either_init_mode(tmp_path):
    async with running_pop_client(tmp_path) as pop_client:
        await pop_client.send_to_each_queue(each=3, queues=1)
        newest = PopClient(pop_client.server, pop_client.channel, pop_client.clock, "N")
        assert len(await newest.pop(queue_id=0, init_mode=1)) == 3  # a young topic is read from its beginning
        assert len(await pop_client.pop(queue_id=0)) == 3


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"count": 33}, 29),
        ({"count": 0}, 29),
        ({"invisible_ms": 0}, 29),
        ({"invisible_ms": 1 << 62}, 29),
        ({"queue_id": QUEUES}, 29),
        ({"queue_id": -2}, 29),
        ({"topic": "nobody's"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"expression": "a > 1", "expression_type": "CLASS"}, 1),
    ],
)
async def test_an_invalid_pop_is_refused_with_a_remark(pop_client, how, code):
    answer = await pop_client.try_pop(**how)
    assert answer.code == code
    assert answer.remark


async def test_a_group_without_consume_permission_cannot_pop(pop_client):
    await pop_client.broker.groups.put(Group(name="G", may_consume=False))
    assert (await pop_client.try_pop()).code == ResponseCode.NO_PERMISSION


async def test_a_pop_that_arrives_after_its_poll_time_pops_nothing(pop_client):
    await pop_client.send_to_each_queue(each=1, queues=1)
    header = pop_client.pop_header(poll_ms=100)
    pop_client.clock.now_ms += 601
    assert (await pop_client.request(RequestCode.POP_MESSAGE, header)).code == ResponseCode.POLLING_TIMEOUT
    assert len(await pop_client.pop()) == 1


async def test_a_one_way_pop_pops_nothing(pop_client):
    await pop_client.send_to_each_queue(each=1, queues=1)
    pop_client.channel.send_one_way(RequestCode.POP_MESSAGE, pop_client.pop_header())
    assert len(await pop_client.pop()) == 1


async def test_sending_to_the_revive_topic_is_refused(pop_client):
    header = headers.SendMessageV2("p", "rmq_sys_REVIVE_LOG_DefaultCluster", "TBW102", 4, 0, 0, 1, 0, "")
    assert (await pop_client.request(RequestCode.SEND_MESSAGE_V2, header, b"x")).code == ResponseCode.NO_PERMISSION


async def test_a_pop_beyond_the_in_flight_limit_is_refused_as_busy_and_loses_nothing(pop_client, monkeypatch):
    monkeypatch.setattr(state_log, "IN_FLIGHT_BATCHES_MAX", 1)
    await pop_client.send_to_each_queue(each=2, queues=1)
    (first,) = await pop_client.pop(count=1)
    assert (await pop_client.try_pop()).code == ResponseCode.SYSTEM_BUSY
    await pop_client.ack_all(first)
    assert bodies_of(await pop_client.pop()) == [b"0-1"]


async def test_a_stale_or_invalid_receipt_handle_is_refused(pop_client):
    await pop_client.send_to_each_queue(each=2, queues=1)
    first, second = await pop_client.pop(queue_id=0)
    await pop_client.ack_all(first)
    code, remark = await pop_client.ack(first)
    assert (code, "is not valid any more" in remark) == (ResponseCode.NO_MESSAGE, True)
    assert (await pop_client.ack(second, "no handle at all"))[0] == ResponseCode.SYSTEM_ERROR
    forged = second.handle.replace(str(pop_client.clock()), "17")
    assert (await pop_client.ack(second, forged))[0] == ResponseCode.NO_MESSAGE
    assert (await pop_client.change_invisible_time(first, 1000))[0] == ResponseCode.NO_MESSAGE
    await pop_client.ack_all(second)


@pytest.mark.parametrize(
    ("topic", "queue_id", "offset", "code"),
    [
        ("T", 99, 0, ResponseCode.MESSAGE_ILLEGAL),
        ("T", 0, 99, ResponseCode.NO_MESSAGE),
        ("U", 0, 0, ResponseCode.TOPIC_NOT_EXIST),
    ],
)
async def test_an_ack_of_an_unknown_topic_queue_or_offset_is_refused(pop_client, topic, queue_id, offset, code):
    answer = await pop_client.request(
        RequestCode.ACK_MESSAGE, AckMessage("G", topic, queue_id, "0 1 1 0 0 sparrow 0 0", offset)
    )
    assert answer.code == code


# -- revive -----------------------------------------------------------------------------------------------------------


async def test_unacknowledged_message_returns_after_its_invisible_time(pop_client):
    await send(pop_client.channel, "T", b"x", 0, encode_properties(TAGS="a", KEYS="k"))
    (first,) = await pop_client.pop(invisible_ms=1000)
    await pop_client.advance_ms(999)
    assert await pop_client.pop() == []
    await pop_client.advance_ms(1)
    (again,) = await pop_client.pop_until(1)
    assert (again.body, again.message.reconsume_times, again.message.topic) == (b"x", 1, "T")
    assert (again.message.tags, again.message.keys) == ("a", ["k"])
    assert again.topic == "%RETRY%G_T"
    assert int(again.message.properties["1ST_POP_TIME"]) == int(first.handle.split(" ")[1])
    assert (await pop_client.ack(first))[0] == ResponseCode.NO_MESSAGE
    await pop_client.ack_all(again)
    await pop_client.advance_ms(2 * INVISIBLE_MS)
    assert await pop_client.pop() == []


async def test_only_unacknowledged_messages_of_a_popped_batch_are_revived(pop_client):
    await pop_client.send_to_each_queue(each=10, queues=1)
    got = await pop_client.pop(queue_id=0)
    await pop_client.ack_all(*got[:3], *got[4:9])
    await pop_client.advance_ms(INVISIBLE_MS)
    again = await pop_client.pop_until(2)
    assert sorted(bodies_of(again)) == [b"0-3", b"0-9"]


async def test_a_pop_of_one_queue_also_returns_retries(pop_client):
    await pop_client.send_to_each_queue(each=1, queues=1)
    await pop_client.pop(invisible_ms=10)
    await pop_client.advance_ms(10)
    assert bodies_of(await pop_client.pop_until(1, queue_id=3)) == [b"0-0"]


async def test_a_batch_ack_names_retries_by_their_original_topic(pop_client):
    await pop_client.send_to_each_queue(each=2, queues=1)
    await pop_client.pop(invisible_ms=10)
    await pop_client.advance_ms(10)
    await eventually(lambda: pop_client.broker.store.bounds_nowait(Queue("%RETRY%G_T", 0)).end == 2)
    got = await pop_client.pop()
    start, pop_ms = map(int, got[0].handle.split(" ")[:2])
    ack = Ack("G", "T", "1", start, 0, 0, pop_ms, INVISIBLE_MS, encode_bitset([0, 1]))
    answer = await pop_client.request(
        RequestCode.BATCH_ACK_MESSAGE, headers.BatchAckMessage(), bodies.write(BatchAck("sparrow", [ack]))
    )
    assert (answer.code, len(pop_client.broker.pop_state.in_flight)) == (0, 0)


async def test_a_message_with_its_retries_used_up_becomes_a_dead_letter(pop_client):
    await pop_client.broker.groups.put(Group(name="G", retries_max=2))
    await send(pop_client.channel, "T", b"x", 0)
    await pop_client.pop(invisible_ms=10)
    for times in (1, 2):
        await pop_client.advance_ms(10)
        (again,) = await pop_client.pop_until(1, invisible_ms=10)
        assert again.message.reconsume_times == times
    await pop_client.advance_ms(10)
    await eventually(lambda: pop_client.broker.store.bounds_nowait(Queue("%DLQ%G", 0)).end == 1)
    (dead,) = await pop_client.read_stored("%DLQ%G")
    assert (dead.body, dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (b"x", 3, "T")
    assert dead.properties["DLQ_ATTEMPT"] == "3"
    assert "invisible time" in dead.properties["DLQ_REASON"]
    assert await pop_client.pop() == []


async def test_groups_with_the_same_retry_topic_name_pop_only_their_own_retries(pop_client):
    """Group a on topic b_c and group a_b on topic c share the retry topic %RETRY%a_b_c."""
    one = PopClient(pop_client.server, pop_client.channel, pop_client.clock, "a")
    two = PopClient(pop_client.server, pop_client.channel, pop_client.clock, "a_b")
    for topic in ("b_c", "c"):
        await pop_client.broker.topics.put(Topic(name=topic, read_queues=1, write_queues=1))
        await send(pop_client.channel, topic, topic.encode())
    await one.pop("b_c", invisible_ms=10)
    await two.pop("c", invisible_ms=10)
    await pop_client.advance_ms(10)
    await eventually(lambda: pop_client.broker.store.bounds_nowait(Queue("%RETRY%a_b_c", 0)).end == 2)
    assert bodies_of(await one.pop("b_c")) == [b"b_c"]
    assert bodies_of(await two.pop("c")) == [b"c"]


async def test_retries_work_with_long_topic_and_group_names(pop_client):
    topic, group = "t" * 100, "g" * 100
    long = PopClient(pop_client.server, pop_client.channel, pop_client.clock, group)
    await pop_client.broker.topics.put(Topic(name=topic, read_queues=1, write_queues=1))
    await send(pop_client.channel, topic, b"x")
    await long.pop(topic, invisible_ms=10)
    await pop_client.advance_ms(10)
    await eventually(lambda: pop_client.broker.pop_state.in_flight.next_due_ms() is None)
    (again,) = await long.pop(topic)
    await long.ack_all(again)
    assert len(pop_client.broker.pop_state.in_flight) == 0


async def test_deleting_a_topic_drops_its_messages_in_flight(pop_client):
    await pop_client.send_to_each_queue(each=1, queues=1)
    await pop_client.pop(invisible_ms=10)
    await pop_client.broker.topics.delete("T")
    await pop_client.advance_ms(10)
    await eventually(lambda: len(pop_client.broker.pop_state.in_flight) == 0)


# -- changing the invisible time --------------------------------------------------------------------------------------


async def test_a_longer_invisible_time_postpones_the_revive(pop_client):
    await pop_client.send_to_each_queue(each=2, queues=1)
    first, second = await pop_client.pop(invisible_ms=1000)
    code, handle = await pop_client.change_invisible_time(first, 5000)
    assert code == 0
    assert (await pop_client.ack(first))[0] == ResponseCode.NO_MESSAGE, "the old handle is stale"
    await pop_client.advance_ms(1000)
    assert bodies_of(await pop_client.pop_until(1)) == [second.body]
    await pop_client.advance_ms(3999)
    assert await pop_client.pop() == []
    assert await pop_client.ack(first, handle) == (0, None)
    await pop_client.advance_ms(INVISIBLE_MS)
    assert first.body not in bodies_of(await pop_client.pop_until(1))


async def test_a_shorter_invisible_time_revives_the_message_earlier(pop_client):
    await pop_client.send_to_each_queue(each=1, queues=1)
    (got,) = await pop_client.pop()
    assert (await pop_client.change_invisible_time(got, 0))[0] == 0
    await pop_client.advance_ms(1)
    (again,) = await pop_client.pop_until(1)
    assert (again.body, again.message.reconsume_times) == (got.body, 1)
    code, handle = await pop_client.change_invisible_time(again, 100)  # the invisible time of a retry can change too
    assert code == 0
    await pop_client.advance_ms(200)
    (third,) = await pop_client.pop_until(1)
    assert third.message.reconsume_times == 2
    assert (await pop_client.ack(again, handle))[0] == ResponseCode.NO_MESSAGE


# -- long polling -----------------------------------------------------------------------------------------------------


async def test_a_parked_pop_is_woken_by_any_queue(pop_client):
    for queue in (3, 0):
        waiting = asyncio.create_task(pop_client.pop(poll_ms=20_000))
        await eventually(lambda: pop_client.broker.long_polls.count == 1)
        await send(pop_client.channel, "T", b"x", queue)
        (got,) = await waiting
        assert got.message.queue_id == queue
        assert pop_client.broker.long_polls.count == 0


async def test_a_parked_pop_receives_a_revived_message(pop_client):
    await pop_client.send_to_each_queue(each=1, queues=1)
    await pop_client.pop(invisible_ms=1000)
    waiting = asyncio.create_task(pop_client.pop(poll_ms=20_000))
    await eventually(lambda: pop_client.broker.long_polls.count == 1)
    await pop_client.advance_ms(1000)
    assert [each.message.reconsume_times for each in await waiting] == [1]


async def test_a_parked_pop_with_tags_ignores_other_tags(pop_client):
    waiting = asyncio.create_task(pop_client.pop(poll_ms=20_000, expression="a"))
    await eventually(lambda: pop_client.broker.long_polls.count == 1)
    await send(pop_client.channel, "T", b"no", 1, encode_properties(TAGS="b"))
    await send(pop_client.channel, "T", b"yes", 1, encode_properties(TAGS="a"))
    assert bodies_of(await waiting) == [b"yes"]


async def test_a_parked_pop_times_out_with_polling_timeout(pop_client):
    answer = await pop_client.try_pop(poll_ms=151)
    assert (answer.code, pop_client.broker.long_polls.count) == (ResponseCode.POLLING_TIMEOUT, 0)


async def test_a_pop_without_a_birth_time_finds_messages_and_is_parked(pop_client):
    await pop_client.send_to_each_queue(each=1, queues=1)
    header = msgspec.structs.replace(pop_client.pop_header(poll_ms=8_000), born_ms=0)
    fields = {name: value for name, value in headers.write(header).items() if name != "bornTime"}
    assert headers.read(PopMessage, fields).born_ms == 0
    assert (await pop_client.request(RequestCode.POP_MESSAGE, header)).code == ResponseCode.SUCCESS
    waiting = asyncio.create_task(pop_client.request(RequestCode.POP_MESSAGE, header, long_poll_ms=8_000))
    await eventually(lambda: pop_client.broker.long_polls.count == 1)
    await send(pop_client.channel, "T", b"later")
    assert bodies_of(pop_client.read_popped(await waiting)) == [b"later"]


async def test_each_message_goes_to_one_of_many_parked_pops(pop_client):
    waiting = [asyncio.create_task(pop_client.pop(poll_ms=20_000, count=1)) for _ in range(10)]
    await eventually(lambda: pop_client.broker.long_polls.count == 10)
    every = await pop_client.send_to_each_queue(each=5, queues=2)
    got = await asyncio.gather(*waiting)
    assert sorted(body for some in got for body in bodies_of(some)) == sorted(every)


async def test_a_pop_beyond_the_long_poll_limit_is_answered_with_polling_full(tmp_path):
    async with running_pop_client(tmp_path, long_polls_max=1) as pop_client:
        waiting = asyncio.create_task(pop_client.pop(poll_ms=20_000))
        await eventually(lambda: pop_client.broker.long_polls.count == 1)
        assert (await pop_client.try_pop(poll_ms=20_000)).code == ResponseCode.POLLING_FULL
        await send(pop_client.channel, "T", b"x", 0)
        assert len(await waiting) == 1


async def test_a_notification_reports_messages_without_popping_them(pop_client):
    def asked(poll_ms: int, queue_id: int = -1) -> asyncio.Task[RemotingCommand]:
        header = NotificationRequest("G", "T", queue_id, poll_ms, pop_client.clock())
        return asyncio.create_task(pop_client.request(RequestCode.NOTIFICATION, header, long_poll_ms=poll_ms))

    def said(answer: RemotingCommand) -> bool:
        return headers.read(headers.NotificationResponse, answer.ext).has_message

    assert not said(await asked(0))
    waiting = asked(20_000)
    await eventually(lambda: pop_client.broker.long_polls.count == 1)
    await send(pop_client.channel, "T", b"x", 2)
    assert said(await waiting)
    assert said(await asked(0, 2))
    assert not said(await asked(0, 1))
    assert len(await pop_client.pop()) == 1
    assert not said(await asked(0))


async def test_polling_info_counts_parked_pops(pop_client):
    waiting = [
        asyncio.create_task(pop_client.pop(poll_ms=20_000)),
        asyncio.create_task(pop_client.pop(poll_ms=20_000)),
        asyncio.create_task(pop_client.pop(poll_ms=20_000, queue_id=1)),
    ]
    await eventually(lambda: pop_client.broker.long_polls.count == 3)

    async def polling(queue_id: int, group: str = "G") -> int:
        answer = await pop_client.request(RequestCode.POLLING_INFO, headers.GetPollingCount(group, "T", queue_id))
        return headers.read(headers.GetPollingCountResponse, answer.ext).count

    assert (await polling(-1), await polling(1), await polling(0), await polling(-1, "H")) == (2, 1, 0, 0)
    pop_client.broker.long_polls.release_all()
    await asyncio.gather(*waiting)


async def test_a_peek_returns_the_next_messages_without_popping_them(pop_client):
    header = headers.PeekMessage("G", "T", -1, 32)
    assert (await pop_client.request(RequestCode.PEEK_MESSAGE, header)).code == ResponseCode.PULL_NOT_FOUND
    every = await pop_client.send_to_each_queue(each=3)
    answer = await pop_client.request(RequestCode.PEEK_MESSAGE, header)
    assert {message.body for message in record.decode_all(bytes(answer.body))} == every
    assert set(bodies_of(await pop_client.pop())) == every
    assert (await pop_client.request(RequestCode.PEEK_MESSAGE, header)).code == ResponseCode.PULL_NOT_FOUND


# -- FIFO pop ---------------------------------------------------------------------------------------------------------


async def test_fifo_pop_blocks_a_queue_until_the_whole_batch_is_acknowledged(pop_client):
    await pop_client.send_to_each_queue(each=4, queues=1)
    first, second = await pop_client.pop(in_order=True, count=2)
    assert first.handle.split(" ")[3] == "999"
    assert await pop_client.pop(in_order=True) == []
    await pop_client.ack_all(first)
    assert await pop_client.pop(in_order=True) == []
    assert await pop_client.broker.store.offsets.committed("G", Queue("T", 0)) == 1
    await pop_client.ack_all(second)
    assert bodies_of(await pop_client.pop(in_order=True)) == [b"0-2", b"0-3"]


async def test_fifo_pop_redelivers_the_rest_with_its_delivery_counts(pop_client):
    await pop_client.send_to_each_queue(each=3, queues=1)
    got = await pop_client.pop(in_order=True, count=2)
    await pop_client.ack_all(got[0])
    await pop_client.advance_ms(INVISIBLE_MS)
    answer = await pop_client.try_pop(in_order=True)
    said = headers.read(PopMessageResponse, answer.ext)
    again = pop_client.read_popped(answer)
    assert bodies_of(again) == [b"0-1", b"0-2"]
    assert said.order_counts == "0 0 0;0 qo0%1 1;0 qo0%2 0"
    assert (await pop_client.ack(got[1]))[0] == ResponseCode.NO_MESSAGE, "the earlier handle is stale"
    await pop_client.ack_all(*again)
    assert pop_client.broker.topics.get("%RETRY%G_T") is None


async def test_fifo_pop_an_ack_wakes_a_parked_pop(pop_client):
    await pop_client.send_to_each_queue(each=2, queues=1)
    (first,) = await pop_client.pop(in_order=True, count=1)
    waiting = asyncio.create_task(pop_client.pop(in_order=True, poll_ms=20_000))
    await eventually(lambda: pop_client.broker.long_polls.count == 1)
    await pop_client.ack_all(first)
    assert bodies_of(await waiting) == [b"0-1"]


async def test_fifo_pop_the_end_of_the_invisible_time_wakes_a_parked_pop(pop_client):
    await pop_client.send_to_each_queue(each=1, queues=1)
    await pop_client.pop(in_order=True)
    waiting = asyncio.create_task(pop_client.pop(in_order=True, poll_ms=20_000))
    await eventually(lambda: pop_client.broker.long_polls.count == 1)
    await pop_client.advance_ms(INVISIBLE_MS)
    assert bodies_of(await waiting) == [b"0-0"]


async def test_fifo_pop_returns_the_same_batch_to_the_same_attempt_id(pop_client):
    await pop_client.send_to_each_queue(each=2, queues=1)
    first = await pop_client.pop(in_order=True, count=1, attempt_id="one")
    assert await pop_client.pop(in_order=True, count=1, attempt_id="two") == []
    again = await pop_client.pop(in_order=True, count=1, attempt_id="one")
    assert bodies_of(again) == bodies_of(first)


async def test_fifo_pop_continues_at_a_reset_offset(pop_client):
    await pop_client.send_to_each_queue(each=3, queues=1)
    await pop_client.ack_all(*await pop_client.pop(in_order=True, count=2))
    (third,) = await pop_client.pop(in_order=True)
    await pop_client.broker.store.offsets.commit("G", Queue("T", 0), 0)
    await pop_client.ack_all(third)
    assert await pop_client.broker.store.offsets.committed("G", Queue("T", 0)) == 0
    assert bodies_of(await pop_client.pop(in_order=True, count=1)) == [b"0-0"]
    await pop_client.broker.store.offsets.commit("G", Queue("T", 0), 1)
    assert bodies_of(await pop_client.pop(in_order=True, count=1)) == [b"0-1"]


async def test_fifo_pop_a_longer_invisible_time_blocks_the_queue_longer(pop_client):
    await pop_client.send_to_each_queue(each=2, queues=1)
    (got,) = await pop_client.pop(in_order=True, count=1, invisible_ms=1000)
    code, handle = await pop_client.change_invisible_time(got, 5000)
    assert code == 0
    await pop_client.advance_ms(1000)
    assert await pop_client.pop(in_order=True) == []
    assert await pop_client.ack(got, handle) == (0, None)
    assert bodies_of(await pop_client.pop(in_order=True)) == [b"0-1"]


# -- restarts ---------------------------------------------------------------------------------------------------------


async def test_after_a_restart_handles_stay_valid_and_unacknowledged_messages_return(tmp_path):
    clock = Clock()
    async with running_pop_client(tmp_path, clock) as pop_client:
        await pop_client.send_to_each_queue(each=8, queues=1)
        got = await pop_client.pop(count=6)
        await pop_client.ack_all(*got[:2])
        _, moved = await pop_client.change_invisible_time(got[2], 2 * INVISIBLE_MS)
    async with running_pop_client(tmp_path, clock) as pop_client:
        assert bodies_of(await pop_client.pop()) == [b"0-6", b"0-7"]
        await pop_client.ack_all(got[3])
        await pop_client.advance_ms(INVISIBLE_MS)
        again = await pop_client.pop_until(4, queue_id=0)
        assert sorted(bodies_of(again)) == [b"0-4", b"0-5", b"0-6", b"0-7"]
        await pop_client.ack_all(*again)
        assert await pop_client.ack(got[2], moved) == (0, None)
        await pop_client.advance_ms(5 * INVISIBLE_MS)
        assert await pop_client.pop() == []


async def test_messages_due_while_the_broker_is_down_are_revived_at_the_start(tmp_path):
    clock = Clock()
    async with running_pop_client(tmp_path, clock) as pop_client:
        await pop_client.send_to_each_queue(each=3, queues=1)
        await pop_client.pop()
    clock.now_ms += INVISIBLE_MS
    async with running_pop_client(tmp_path, clock) as pop_client:
        assert len(await pop_client.pop_until(3)) == 3


async def test_a_crash_may_repeat_messages_and_loses_none(tmp_path):
    clock = Clock()
    async with running_pop_client(tmp_path / "first", clock) as pop_client:
        every = await pop_client.send_to_each_queue(each=40, queues=2)
        got = [each for _ in range(2) for each in await pop_client.pop(count=20)]
        await pop_client.ack_all(*got[:10])
        copy_as_crashed(pop_client.broker.store, tmp_path / "second")
    acknowledged = set(bodies_of(got[:10]))
    async with running_pop_client(tmp_path / "second", clock) as pop_client:
        seen: set[bytes] = set()
        for _ in range(3):
            while some := await pop_client.pop():
                await pop_client.ack_all(*some)
                seen |= set(bodies_of(some))
            await pop_client.advance_ms(INVISIBLE_MS)
            await eventually(lambda: len(pop_client.broker.pop_state.in_flight) == 0)
    assert seen >= every - acknowledged


async def test_fifo_pop_a_restart_keeps_the_queue_blocked_and_the_counts(tmp_path):
    clock = Clock()
    async with running_pop_client(tmp_path, clock) as pop_client:
        await pop_client.send_to_each_queue(each=2, queues=1)
        await pop_client.pop(in_order=True, count=1)
        await pop_client.advance_ms(INVISIBLE_MS)
        (got,) = await pop_client.pop(in_order=True, count=1)
    async with running_pop_client(tmp_path, clock) as pop_client:
        assert await pop_client.pop(in_order=True) == []
        await pop_client.advance_ms(INVISIBLE_MS)
        said = headers.read(PopMessageResponse, (await pop_client.try_pop(in_order=True, count=1)).ext)
        assert said.order_counts == "0 0 2;0 qo0%0 2"
        assert (await pop_client.ack(got))[0] == ResponseCode.NO_MESSAGE


async def test_a_start_reads_the_journal_from_the_oldest_batch_in_flight(tmp_path):
    async with running_pop_client(tmp_path) as pop_client:
        await pop_client.send_to_each_queue(each=20, queues=1)
        for _ in range(10):
            await pop_client.ack_all(*await pop_client.pop(count=1))
        (kept,) = await pop_client.pop(count=1)
        await pop_client.ack_all(*await pop_client.pop(count=1))
        pop_client.broker.pop_state.save()
        (lot,) = pop_client.broker.pop_state.in_flight
        assert await pop_client.broker.store.marks.get(JOURNAL_START_MARK) == lot.number
        assert lot.offsets() == [kept.message.queue_offset]


@pytest.mark.usefixtures("no_page_cache")
async def test_messages_on_disk_are_popped_once(tmp_path):
    async with running_pop_client(tmp_path) as pop_client:
        every = await pop_client.send_to_each_queue(each=30, queues=2)
    clock = Clock()
    cold = LOG.model_copy(update={"hot_bytes": 0})
    async with BrokerServer(BrokerSettings(port=0), tmp_path, cold, now_ms=clock) as server:
        channels = [await connect(server.address) for _ in range(4)]
        poppers = [PopClient(server, channel, clock) for channel in channels]
        seen: list[bytes] = []

        async def drain(one: PopClient) -> None:
            async with asyncio.timeout(30):
                while len(seen) < len(every):
                    seen.extend(bodies_of(await one.pop(count=3)))

        await asyncio.gather(*map(drain, poppers))
        assert sorted(seen) == sorted(every)
        for channel in channels:
            channel.close()


# -- assignments ------------------------------------------------------------------------------------------------------


async def assignments(channel: Channel, topic: str, client: str, **how: str) -> bodies.Assignments:
    asked = bodies.QueryAssignment(topic, "G", client, **how)
    answer = await channel.request(RequestCode.QUERY_ASSIGNMENT, None, bodies.write(asked), timeout_ms=TIMEOUT_MS)
    assert answer.code == 0, answer.remark
    return bodies.read(bodies.Assignments, answer.body)


async def set_mode(channel: Channel, mode: str, topic: str = "T", share_with: int = -1) -> RemotingCommand:
    said = bodies.SetRequestMode(topic, "G", mode, share_with)
    return await channel.request(RequestCode.SET_MESSAGE_REQUEST_MODE, None, bodies.write(said), timeout_ms=TIMEOUT_MS)


async def test_queues_are_assigned_for_pull_unless_the_mode_is_pop(tmp_path):
    async with running_platform(tmp_path) as platform:
        channel = await connect(platform.address)
        await platform.broker.broker.topics.put(Topic(name="T", read_queues=3, write_queues=3))
        client = f"client@{channel.address}"
        assert (await assignments(channel, "T", client)).message_queue_assignments is None, "no member yet"
        await subscribe(channel, "G", T="*")
        found = (await assignments(channel, "T", client)).message_queue_assignments
        assert [(each.message_queue.queue_id, each.mode) for each in found] == [(0, "PULL"), (1, "PULL"), (2, "PULL")]
        assert (await set_mode(channel, "POP")).code == 0
        (popped,) = (await assignments(channel, "T", client)).message_queue_assignments
        assert (popped.message_queue, popped.mode) == (bodies.QueueRef("T", "sparrow", -1), "POP")
        assert (await set_mode(channel, "PULL")).code == 0
        assert (
            len((await assignments(channel, "T", client, strategy_name="AVG_BY_CIRCLE")).message_queue_assignments) == 3
        )
        assert (await set_mode(channel, "POP", "%RETRY%G")).code == ResponseCode.NO_PERMISSION
        assert (await set_mode(channel, "PUSH")).code == 29
        assert (await set_mode(channel, "POP", "nobody's")).code == ResponseCode.TOPIC_NOT_EXIST
        channel.close()


async def test_assignments_include_queues_of_other_brokers(tmp_path):
    async with running_platform(tmp_path / "one") as platform:
        settings = BrokerSettings(port=0, name="other", name_servers=platform.name_servers)
        async with BrokerServer(settings, tmp_path / "two", LOG) as other:
            for broker in (platform.broker.broker, other.broker):
                await broker.topics.put(Topic(name="T", read_queues=2, write_queues=2))
            channel = await connect(platform.address)
            await subscribe(channel, "G", T="*")
            client = f"client@{channel.address}"
            pulled = (await assignments(channel, "T", client)).message_queue_assignments
            assert [(each.message_queue.broker_name, each.message_queue.queue_id) for each in pulled] == [
                ("other", 0),
                ("other", 1),
                ("sparrow", 0),
                ("sparrow", 1),
            ]
            await set_mode(channel, "POP")
            popped = (await assignments(channel, "T", client)).message_queue_assignments
            assert [each.message_queue for each in popped] == [
                bodies.QueueRef("T", "other", -1),
                bodies.QueueRef("T", "sparrow", -1),
            ]
            channel.close()


async def test_the_request_mode_of_a_group_survives_a_restart(tmp_path):
    for is_first in (True, False):
        async with running_pop_client(tmp_path) as pop_client:
            await subscribe(pop_client.channel, "G", T="*")
            if is_first:
                assert (await set_mode(pop_client.channel, "POP")).code == 0
            client = f"client@{pop_client.channel.address}"
            (found,) = (await assignments(pop_client.channel, "T", client)).message_queue_assignments
            assert (found.mode, found.message_queue.queue_id) == ("POP", -1)
