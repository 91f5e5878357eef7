"""Transactions: half messages, commits and rollbacks, and check-backs."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from tests.support.broker_client import LOG, Clock
from tests.support.wait import eventually

from sparrow.broker.server import BrokerServer
from sparrow.broker.transactions.half_messages import FINISHED_TAG, OP_QUEUE
from sparrow.broker.transactions.log import HALF_MARK, OP_MARK
from sparrow.model.message import Draft, StoredMessage
from sparrow.model.protocol import CHECK_LIMIT_TOPIC
from sparrow.model.queue import Queue
from sparrow.net import Channel, connect
from sparrow.settings import BrokerSettings
from sparrow.store.spi import Slice
from sparrow.wire import bodies, headers, record
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import CheckTransaction, EndTransaction, SendMessageResponse
from sparrow.wire.properties import encode

T = Queue("T", 1)
COMMIT, ROLL_BACK, UNKNOWN = 8, 12, 0
CHECKED_OUT = Queue(CHECK_LIMIT_TOPIC, 0)


class CheckBack:
    """A check-back that a producer received."""

    def __init__(self, command: RemotingCommand) -> None:
        self.header = headers.read(CheckTransaction, command.ext)
        self.message = record.decode(bytes(command.body))


class Producer:
    """A member of a producer group, on its own connection."""

    def __init__(self, channel: Channel, asked: list[CheckBack]) -> None:
        self.channel, self.check_backs = channel, asked

    async def send_half(self, body: bytes, group: str = "p", **named: str) -> SendMessageResponse:
        said = encode({"TRAN_MSG": "true", "PGROUP": group, **named}).decode()
        header = headers.SendMessageV2(group, T.topic, "TBW102", 4, T.id, 4, 1, 5, said)
        answer = await self.channel.request(RequestCode.SEND_MESSAGE_V2, header, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return headers.read(SendMessageResponse, answer.ext)

    def end_header(self, sent: SendMessageResponse, verdict: int, group: str = "p", **changes: int) -> EndTransaction:
        place = {"queue": sent.queue_offset, "physical": int(sent.message_id[-16:], 16)} | changes
        return EndTransaction(group, place["queue"], place["physical"], verdict, "id")

    async def end(self, sent: SendMessageResponse, verdict: int, group: str = "p", **changes: int) -> int:
        return (
            await self.channel.request(RequestCode.END_TRANSACTION, self.end_header(sent, verdict, group, **changes))
        ).code


class ClockedBroker:
    def __init__(self, path, **settings: object) -> None:
        self._path = path
        self._settings = BrokerSettings.model_validate({"port": 0, "transaction_scan_ms": 3_600_000, **settings})
        self.clock = Clock()
        self.server: BrokerServer
        self._channels: list[Channel] = []

    @property
    def broker(self):
        return self.server.broker

    @asynccontextmanager
    async def running(self):
        async with BrokerServer(self._settings, self._path, LOG, now_ms=self.clock) as self.server:
            yield
            for channel in self._channels:
                channel.close()

    async def connect_producer(self, group: str = "p", name: str = "1") -> Producer:
        asked: list[CheckBack] = []

        class Serve:
            def __call__(self, command: RemotingCommand, channel: Channel) -> None:
                assert command.code == RequestCode.CHECK_TRANSACTION_STATE
                asked.append(CheckBack(command))

        channel = await connect(self.server.address, Serve())
        self._channels.append(channel)
        beat = bodies.HeartbeatData(f"{name}@1", [bodies.ProducerData(group)], [])
        answer = await channel.request(RequestCode.HEART_BEAT, headers.Heartbeat(), bodies.write(beat))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return Producer(channel, asked)

    async def read_messages(self, queue: Queue = T) -> list[StoredMessage]:
        found = await self.broker.store.read(queue, self.broker.store.bounds_nowait(queue).first, count_max=1000)
        return record.decode_all(found.tobytes()) if isinstance(found, Slice) else []

    async def read_bodies(self, queue: Queue = T) -> list[bytes]:
        return [message.body for message in await self.read_messages(queue)]

    async def check_overdue(self, after_ms: int = 0) -> None:
        self.clock.now_ms += after_ms
        await self.broker.transactions.check_overdue()


@pytest.fixture
def clocked_broker(tmp_path) -> ClockedBroker:
    return ClockedBroker(tmp_path / "store", transaction_checks_max=3)


# -- commit and rollback ----------------------------------------------------------------------------------------------


async def test_a_half_message_becomes_visible_at_the_commit(clocked_broker):
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        sent = await producer.send_half(b"paid", TAGS="a", DELAY="3")
        assert sent.queue_id == T.id
        assert await clocked_broker.read_bodies() == []
        assert await producer.end(sent, COMMIT) == ResponseCode.SUCCESS
        (message,) = await clocked_broker.read_messages()
        assert (message.body, message.flag, message.born_ms, message.tags) == (b"paid", 5, 1, "a")
        assert message.sys_flag & 0xC == COMMIT
        assert message.prepared_offset == int(sent.message_id[-16:], 16)
        assert await clocked_broker.read_bodies(OP_QUEUE) == [b"0"]
        assert clocked_broker.broker.transactions.count == 0


async def test_a_rolled_back_half_message_never_becomes_visible(clocked_broker):
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        sent = await producer.send_half(b"not paid")
        assert await producer.end(sent, ROLL_BACK) == ResponseCode.SUCCESS
        assert await producer.end(sent, COMMIT) == ResponseCode.SUCCESS
        assert await clocked_broker.read_bodies() == []
        assert await clocked_broker.read_bodies(OP_QUEUE) == [b"0"]
    async with clocked_broker.running():
        assert clocked_broker.broker.transactions.count == 0


@pytest.mark.parametrize("second", [COMMIT, ROLL_BACK])
async def test_a_repeated_end_of_a_transaction_has_no_effect_even_after_a_restart(clocked_broker, second):
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        sent = await producer.send_half(b"paid")
        words = [producer.end(sent, COMMIT), *(producer.end(sent, second) for _ in range(5))]
        assert set(await asyncio.gather(*words)) == {ResponseCode.SUCCESS}
    async with clocked_broker.running():
        assert await (await clocked_broker.connect_producer()).end(sent, second) == ResponseCode.SUCCESS
        assert await clocked_broker.read_bodies() == [b"paid"]
        assert len(await clocked_broker.read_bodies(OP_QUEUE)) == 1


async def test_an_end_transaction_of_another_group_or_message_has_no_effect(clocked_broker):
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        sent = await producer.send_half(b"paid")
        assert await producer.end(sent, COMMIT, group="stranger") == ResponseCode.SYSTEM_ERROR
        assert await producer.end(sent, COMMIT, physical=0) == ResponseCode.SYSTEM_ERROR
        assert await producer.end(sent, COMMIT, queue=77) == ResponseCode.SUCCESS  # unknown or already ended
        assert await producer.end(sent, UNKNOWN) == ResponseCode.SUCCESS
        assert await producer.end(sent, 4) == ResponseCode.SUCCESS
        assert await clocked_broker.read_bodies() == []
        assert clocked_broker.broker.transactions.count == 1
        await producer.end(sent, COMMIT)
        assert await clocked_broker.read_bodies() == [b"paid"]


async def test_a_one_way_commit_is_applied(clocked_broker):
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        sent = await producer.send_half(b"paid")
        producer.channel.send_one_way(RequestCode.END_TRANSACTION, producer.end_header(sent, COMMIT))
        await eventually(lambda: clocked_broker.broker.transactions.count == 0)
        assert await clocked_broker.read_bodies() == [b"paid"]


async def test_a_failed_commit_can_be_repeated(clocked_broker):
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        sent = await producer.send_half(b"paid")
        topic = clocked_broker.broker.topics[T.topic]
        await clocked_broker.broker.topics.delete(T.topic)
        assert await producer.end(sent, COMMIT) == ResponseCode.TOPIC_NOT_EXIST
        await clocked_broker.broker.topics.put(topic)
        assert clocked_broker.broker.transactions.count == 1
        assert await producer.end(sent, COMMIT) == ResponseCode.SUCCESS
        assert await clocked_broker.read_bodies() == [b"paid"]


# -- restarts ---------------------------------------------------------------------------------------------------------


async def test_an_unfinished_transaction_can_be_ended_after_a_restart(clocked_broker):
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        sent = [await producer.send_half(b"%d" % number) for number in range(6)]
        for number in (0, 3):
            await producer.end(sent[number], COMMIT)
        await producer.end(sent[4], ROLL_BACK)
    async with clocked_broker.running():
        assert clocked_broker.broker.transactions.count == 3
        producer = await clocked_broker.connect_producer()
        for number in (5, 1, 2, 4):
            await producer.end(sent[number], COMMIT)
        assert await clocked_broker.read_bodies() == [b"0", b"3", b"5", b"1", b"2"]


async def test_a_restart_reads_little_even_if_an_old_transaction_is_unfinished(clocked_broker):
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        old = await producer.send_half(b"old")
        for number in range(1_100):
            await producer.end(await producer.send_half(b"%d" % number), ROLL_BACK)
        await clocked_broker.check_overdue(6_000)
        await clocked_broker.broker.transactions.write_summary()
        store = clocked_broker.broker.store
        assert await store.marks.get(HALF_MARK) == 1_101
        assert await store.marks.get(OP_MARK) >= 1_100
    async with clocked_broker.running():
        assert clocked_broker.broker.transactions.count == 1
        assert clocked_broker.broker.transactions._halves[0].checks == 1
        await (await clocked_broker.connect_producer()).end(old, COMMIT)
        assert await clocked_broker.read_bodies() == [b"old"]
    async with clocked_broker.running():
        assert clocked_broker.broker.transactions.count == 0


async def test_an_op_message_may_name_several_half_messages(clocked_broker):
    """RocketMQ 5 writes such op messages."""
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        for number in range(5):
            await producer.send_half(b"%d" % number)
        clocked_broker.broker.store.append_nowait(OP_QUEUE, [Draft(body=b"0,2, 3,\xb2,", properties=FINISHED_TAG)])
        # As after a crash: no summary was written.
        clocked_broker.broker.transactions._halves.clear()
        await clocked_broker.broker.transactions._load()
        assert sorted(clocked_broker.broker.transactions._halves) == [1, 4]


# -- check-back -------------------------------------------------------------------------------------------------------


async def test_no_check_back_is_sent_before_the_timeout(clocked_broker):
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        await producer.send_half(b"paid")
        await clocked_broker.check_overdue(5_999)
        assert producer.check_backs == []
        await clocked_broker.check_overdue(1)
        await eventually(lambda: producer.check_backs)


async def test_a_check_back_contains_the_original_message(clocked_broker):
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        sent = await producer.send_half(b"paid", UNIQ_KEY="k")
        await clocked_broker.check_overdue(6_000)
        await eventually(lambda: producer.check_backs)
        (asked,) = producer.check_backs
        header, message = asked.header, asked.message
        assert (header.half_queue_offset, header.half_physical_offset) == (0, int(sent.message_id[-16:], 16))
        assert (header.message_id, header.transaction_id, header.topic) == ("k", "k", "T")
        assert header.offset_message_id == sent.message_id
        assert (message.topic, message.queue_id, message.body) == ("T", T.id, b"paid")
        assert message.properties["PGROUP"] == "p"
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert message.sys_flag & 0xC == 0
        answer = EndTransaction("p", header.half_queue_offset, header.half_physical_offset, COMMIT, "k", True)
        producer.channel.send_one_way(RequestCode.END_TRANSACTION, answer)
        await eventually(lambda: clocked_broker.broker.transactions.count == 0)
        assert await clocked_broker.read_bodies() == [b"paid"]


async def test_the_check_immunity_time_postpones_the_check_back(clocked_broker):
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        await producer.send_half(b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
        await producer.send_half(b"default", CHECK_IMMUNITY_TIME_IN_SECONDS="-1")
        await producer.send_half(b"odd", CHECK_IMMUNITY_TIME_IN_SECONDS="\u00b2")
        await clocked_broker.check_overdue(99_999)
        await eventually(lambda: len(producer.check_backs) == 2)
        assert {asked.message.body for asked in producer.check_backs} == {b"default", b"odd"}
        await clocked_broker.check_overdue(1)
        await eventually(lambda: len(producer.check_backs) == 3)
        assert producer.check_backs[-1].message.body == b"patient"


async def test_another_producer_of_the_group_gets_the_check_back_if_the_first_is_gone(clocked_broker):
    async with clocked_broker.running():
        first, stranger = await clocked_broker.connect_producer(), await clocked_broker.connect_producer("q", "2")
        sent = await first.send_half(b"paid")
        first.channel.close()
        await eventually(lambda: not clocked_broker.broker.clients.producers("p"))
        await clocked_broker.check_overdue(6_000)
        second = await clocked_broker.connect_producer(name="3")
        await clocked_broker.check_overdue(30_000)
        await eventually(lambda: second.check_backs)
        assert stranger.check_backs == []
        assert await second.end(sent, COMMIT) == ResponseCode.SUCCESS
        assert await clocked_broker.read_bodies() == [b"paid"]


async def test_check_backs_rotate_among_the_members_of_a_group(clocked_broker):
    async with clocked_broker.running():
        producers = [await clocked_broker.connect_producer(name=str(number)) for number in range(3)]
        for number in range(9):
            await producers[0].send_half(b"%d" % number)
        await clocked_broker.check_overdue(6_000)
        await eventually(lambda: sum(len(producer.check_backs) for producer in producers) == 9)
        assert [len(producer.check_backs) for producer in producers] == [3, 3, 3]


async def test_after_the_last_check_back_the_message_moves_to_the_check_limit_topic(clocked_broker):
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        sent = await producer.send_half(b"forgotten")
        await clocked_broker.check_overdue(6_000)
        await clocked_broker.check_overdue(29_999)
        await clocked_broker.check_overdue(1)
        await clocked_broker.check_overdue(30_000)
        await eventually(lambda: len(producer.check_backs) == 3)
        assert await clocked_broker.read_bodies(CHECKED_OUT) == []
        await clocked_broker.check_overdue(30_000)
        assert len(producer.check_backs) == 3
        (message,) = await clocked_broker.read_messages(CHECKED_OUT)
        assert (message.body, message.properties["REAL_TOPIC"]) == (b"forgotten", "T")
        assert await producer.end(sent, COMMIT) == ResponseCode.SUCCESS
        assert await clocked_broker.read_bodies() == []
    async with clocked_broker.running():
        assert clocked_broker.broker.transactions.count == 0


async def test_check_backs_are_counted_across_restarts(clocked_broker):
    for _ in range(3):
        async with clocked_broker.running():
            producer = await clocked_broker.connect_producer()
            if clocked_broker.broker.transactions.count == 0:
                await producer.send_half(b"forgotten")
            await clocked_broker.check_overdue(30_000)
            await eventually(lambda producer=producer: len(producer.check_backs) == 1)
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        await clocked_broker.check_overdue(30_000)
        assert await clocked_broker.read_bodies(CHECKED_OUT) == [b"forgotten"]
        assert producer.check_backs == []


async def test_a_half_message_moves_to_the_check_limit_topic_before_retention_deletes_it(clocked_broker):
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        await producer.send_half(b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="999999999")
        await clocked_broker.check_overdue(64 * 3_600_000)  # of 72 hours of retention
        assert await clocked_broker.read_bodies(CHECKED_OUT) == []
        await clocked_broker.check_overdue(3_600_000)
        assert await clocked_broker.read_bodies(CHECKED_OUT) == [b"patient"]
        assert producer.check_backs == []


async def test_an_unreadable_half_message_does_not_block_other_check_backs(clocked_broker):
    async with clocked_broker.running():
        producer = await clocked_broker.connect_producer()
        await producer.send_half(b"gone")
        await producer.send_half(b"there")
        clocked_broker.broker.transactions._halves[0].physical_offset += 1
        for _ in range(5):
            await clocked_broker.check_overdue(30_000)
        assert await clocked_broker.read_bodies(CHECKED_OUT) == [b"there"]
        await eventually(lambda: len(producer.check_backs) == 3)
        assert {asked.message.body for asked in producer.check_backs} == {b"there"}
        assert clocked_broker.broker.transactions.count == 0, "an unreadable half message must be given up too"
