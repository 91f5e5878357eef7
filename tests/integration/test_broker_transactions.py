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


class Asked:
    """A check-back that a producer received."""

    def __init__(self, command: RemotingCommand) -> None:
        self.header = headers.read(CheckTransaction, command.ext)
        self.message = record.decode(bytes(command.body))


class Producer:
    """A member of a producer group, on its own connection."""

    def __init__(self, channel: Channel, asked: list[Asked]) -> None:
        self.channel, self.asked = channel, asked

    async def begin(self, body: bytes, group: str = "p", **named: str) -> SendMessageResponse:
        said = encode({"TRAN_MSG": "true", "PGROUP": group, **named}).decode()
        header = headers.SendMessageV2(group, T.topic, "TBW102", 4, T.id, 4, 1, 5, said)
        answer = await self.channel.request(RequestCode.SEND_MESSAGE_V2, header, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return headers.read(SendMessageResponse, answer.ext)

    def word(self, sent: SendMessageResponse, verdict: int, group: str = "p", **changes: int) -> EndTransaction:
        place = {"queue": sent.queue_offset, "physical": int(sent.message_id[-16:], 16)} | changes
        return EndTransaction(group, place["queue"], place["physical"], verdict, "id")

    async def end(self, sent: SendMessageResponse, verdict: int, group: str = "p", **changes: int) -> int:
        return (
            await self.channel.request(RequestCode.END_TRANSACTION, self.word(sent, verdict, group, **changes))
        ).code


class Stage:
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

    async def producer(self, group: str = "p", name: str = "1") -> Producer:
        asked: list[Asked] = []

        class Serve:
            def __call__(self, command: RemotingCommand, channel: Channel) -> None:
                assert command.code == RequestCode.CHECK_TRANSACTION_STATE
                asked.append(Asked(command))

        channel = await connect(self.server.address, Serve())
        self._channels.append(channel)
        beat = bodies.HeartbeatData(f"{name}@1", [bodies.ProducerData(group)], [])
        answer = await channel.request(RequestCode.HEART_BEAT, headers.Heartbeat(), bodies.write(beat))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return Producer(channel, asked)

    async def messages(self, queue: Queue = T) -> list[StoredMessage]:
        found = await self.broker.store.read(queue, self.broker.store.bounds_nowait(queue).first, count_max=1000)
        return record.decode_all(found.tobytes()) if isinstance(found, Slice) else []

    async def bodies(self, queue: Queue = T) -> list[bytes]:
        return [message.body for message in await self.messages(queue)]

    async def scan(self, after_ms: int = 0) -> None:
        self.clock.now_ms += after_ms
        await self.broker.transactions.check_overdue()


@pytest.fixture
def stage(tmp_path) -> Stage:
    return Stage(tmp_path / "store", transaction_checks_max=3)


# -- commit and rollback ----------------------------------------------------------------------------------------------


async def test_a_half_message_becomes_visible_at_the_commit(stage):
    async with stage.running():
        producer = await stage.producer()
        sent = await producer.begin(b"paid", TAGS="a", DELAY="3")
        assert sent.queue_id == T.id
        assert await stage.bodies() == []
        assert await producer.end(sent, COMMIT) == ResponseCode.SUCCESS
        (message,) = await stage.messages()
        assert (message.body, message.flag, message.born_ms, message.tags) == (b"paid", 5, 1, "a")
        assert message.sys_flag & 0xC == COMMIT
        assert message.prepared_offset == int(sent.message_id[-16:], 16)
        assert await stage.bodies(OP_QUEUE) == [b"0"]
        assert stage.broker.transactions.count == 0


async def test_a_rolled_back_half_message_never_becomes_visible(stage):
    async with stage.running():
        producer = await stage.producer()
        sent = await producer.begin(b"not paid")
        assert await producer.end(sent, ROLL_BACK) == ResponseCode.SUCCESS
        assert await producer.end(sent, COMMIT) == ResponseCode.SUCCESS
        assert await stage.bodies() == []
        assert await stage.bodies(OP_QUEUE) == [b"0"]
    async with stage.running():
        assert stage.broker.transactions.count == 0


@pytest.mark.parametrize("second", [COMMIT, ROLL_BACK])
async def test_a_repeated_end_of_a_transaction_has_no_effect_even_after_a_restart(stage, second):
    async with stage.running():
        producer = await stage.producer()
        sent = await producer.begin(b"paid")
        words = [producer.end(sent, COMMIT), *(producer.end(sent, second) for _ in range(5))]
        assert set(await asyncio.gather(*words)) == {ResponseCode.SUCCESS}
    async with stage.running():
        assert await (await stage.producer()).end(sent, second) == ResponseCode.SUCCESS
        assert await stage.bodies() == [b"paid"]
        assert len(await stage.bodies(OP_QUEUE)) == 1


async def test_an_end_transaction_of_another_group_or_message_has_no_effect(stage):
    async with stage.running():
        producer = await stage.producer()
        sent = await producer.begin(b"paid")
        assert await producer.end(sent, COMMIT, group="stranger") == ResponseCode.SYSTEM_ERROR
        assert await producer.end(sent, COMMIT, physical=0) == ResponseCode.SYSTEM_ERROR
        assert await producer.end(sent, COMMIT, queue=77) == ResponseCode.SUCCESS  # unknown or already ended
        assert await producer.end(sent, UNKNOWN) == ResponseCode.SUCCESS
        assert await producer.end(sent, 4) == ResponseCode.SUCCESS
        assert await stage.bodies() == []
        assert stage.broker.transactions.count == 1
        await producer.end(sent, COMMIT)
        assert await stage.bodies() == [b"paid"]


async def test_a_one_way_commit_is_applied(stage):
    async with stage.running():
        producer = await stage.producer()
        sent = await producer.begin(b"paid")
        producer.channel.send_one_way(RequestCode.END_TRANSACTION, producer.word(sent, COMMIT))
        await eventually(lambda: stage.broker.transactions.count == 0)
        assert await stage.bodies() == [b"paid"]


async def test_a_failed_commit_can_be_repeated(stage):
    async with stage.running():
        producer = await stage.producer()
        sent = await producer.begin(b"paid")
        topic = stage.broker.topics[T.topic]
        await stage.broker.topics.delete(T.topic)
        assert await producer.end(sent, COMMIT) == ResponseCode.TOPIC_NOT_EXIST
        await stage.broker.topics.put(topic)
        assert stage.broker.transactions.count == 1
        assert await producer.end(sent, COMMIT) == ResponseCode.SUCCESS
        assert await stage.bodies() == [b"paid"]


# -- restarts ---------------------------------------------------------------------------------------------------------


async def test_an_unfinished_transaction_can_be_ended_after_a_restart(stage):
    async with stage.running():
        producer = await stage.producer()
        sent = [await producer.begin(b"%d" % number) for number in range(6)]
        for number in (0, 3):
            await producer.end(sent[number], COMMIT)
        await producer.end(sent[4], ROLL_BACK)
    async with stage.running():
        assert stage.broker.transactions.count == 3
        producer = await stage.producer()
        for number in (5, 1, 2, 4):
            await producer.end(sent[number], COMMIT)
        assert await stage.bodies() == [b"0", b"3", b"5", b"1", b"2"]


async def test_a_restart_reads_little_even_if_an_old_transaction_is_unfinished(stage):
    async with stage.running():
        producer = await stage.producer()
        old = await producer.begin(b"old")
        for number in range(1_100):
            await producer.end(await producer.begin(b"%d" % number), ROLL_BACK)
        await stage.scan(6_000)
        await stage.broker.transactions.write_summary()
        store = stage.broker.store
        assert await store.marks.get(HALF_MARK) == 1_101
        assert await store.marks.get(OP_MARK) >= 1_100
    async with stage.running():
        assert stage.broker.transactions.count == 1
        assert stage.broker.transactions._halves[0].checks == 1
        await (await stage.producer()).end(old, COMMIT)
        assert await stage.bodies() == [b"old"]
    async with stage.running():
        assert stage.broker.transactions.count == 0


async def test_an_op_message_may_name_several_half_messages(stage):
    """RocketMQ 5 writes such op messages."""
    async with stage.running():
        producer = await stage.producer()
        for number in range(5):
            await producer.begin(b"%d" % number)
        stage.broker.store.append_nowait(OP_QUEUE, [Draft(body=b"0,2, 3,\xb2,", properties=FINISHED_TAG)])
        # As after a crash: no summary was written.
        stage.broker.transactions._halves.clear()
        await stage.broker.transactions._load()
        assert sorted(stage.broker.transactions._halves) == [1, 4]


# -- check-back -------------------------------------------------------------------------------------------------------


async def test_no_check_back_is_sent_before_the_timeout(stage):
    async with stage.running():
        producer = await stage.producer()
        await producer.begin(b"paid")
        await stage.scan(5_999)
        assert producer.asked == []
        await stage.scan(1)
        await eventually(lambda: producer.asked)


async def test_a_check_back_contains_the_original_message(stage):
    async with stage.running():
        producer = await stage.producer()
        sent = await producer.begin(b"paid", UNIQ_KEY="k")
        await stage.scan(6_000)
        await eventually(lambda: producer.asked)
        (asked,) = producer.asked
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
        await eventually(lambda: stage.broker.transactions.count == 0)
        assert await stage.bodies() == [b"paid"]


async def test_the_check_immunity_time_postpones_the_check_back(stage):
    async with stage.running():
        producer = await stage.producer()
        await producer.begin(b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
        await producer.begin(b"default", CHECK_IMMUNITY_TIME_IN_SECONDS="-1")
        await producer.begin(b"odd", CHECK_IMMUNITY_TIME_IN_SECONDS="\u00b2")
        await stage.scan(99_999)
        await eventually(lambda: len(producer.asked) == 2)
        assert {asked.message.body for asked in producer.asked} == {b"default", b"odd"}
        await stage.scan(1)
        await eventually(lambda: len(producer.asked) == 3)
        assert producer.asked[-1].message.body == b"patient"


async def test_another_producer_of_the_group_gets_the_check_back_if_the_first_is_gone(stage):
    async with stage.running():
        first, stranger = await stage.producer(), await stage.producer("q", "2")
        sent = await first.begin(b"paid")
        first.channel.close()
        await eventually(lambda: not stage.broker.clients.producers("p"))
        await stage.scan(6_000)
        second = await stage.producer(name="3")
        await stage.scan(30_000)
        await eventually(lambda: second.asked)
        assert stranger.asked == []
        assert await second.end(sent, COMMIT) == ResponseCode.SUCCESS
        assert await stage.bodies() == [b"paid"]


async def test_check_backs_rotate_among_the_members_of_a_group(stage):
    async with stage.running():
        producers = [await stage.producer(name=str(number)) for number in range(3)]
        for number in range(9):
            await producers[0].begin(b"%d" % number)
        await stage.scan(6_000)
        await eventually(lambda: sum(len(producer.asked) for producer in producers) == 9)
        assert [len(producer.asked) for producer in producers] == [3, 3, 3]


async def test_after_the_last_check_back_the_message_moves_to_the_check_limit_topic(stage):
    async with stage.running():
        producer = await stage.producer()
        sent = await producer.begin(b"forgotten")
        await stage.scan(6_000)
        await stage.scan(29_999)
        await stage.scan(1)
        await stage.scan(30_000)
        await eventually(lambda: len(producer.asked) == 3)
        assert await stage.bodies(CHECKED_OUT) == []
        await stage.scan(30_000)
        assert len(producer.asked) == 3
        (message,) = await stage.messages(CHECKED_OUT)
        assert (message.body, message.properties["REAL_TOPIC"]) == (b"forgotten", "T")
        assert await producer.end(sent, COMMIT) == ResponseCode.SUCCESS
        assert await stage.bodies() == []
    async with stage.running():
        assert stage.broker.transactions.count == 0


async def test_check_backs_are_counted_across_restarts(stage):
    for _ in range(3):
        async with stage.running():
            producer = await stage.producer()
            if stage.broker.transactions.count == 0:
                await producer.begin(b"forgotten")
            await stage.scan(30_000)
            await eventually(lambda producer=producer: len(producer.asked) == 1)
    async with stage.running():
        producer = await stage.producer()
        await stage.scan(30_000)
        assert await stage.bodies(CHECKED_OUT) == [b"forgotten"]
        assert producer.asked == []


async def test_a_half_message_moves_to_the_check_limit_topic_before_retention_deletes_it(stage):
    async with stage.running():
        producer = await stage.producer()
        await producer.begin(b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="999999999")
        await stage.scan(64 * 3_600_000)  # of 72 hours of retention
        assert await stage.bodies(CHECKED_OUT) == []
        await stage.scan(3_600_000)
        assert await stage.bodies(CHECKED_OUT) == [b"patient"]
        assert producer.asked == []


async def test_an_unreadable_half_message_does_not_block_other_check_backs(stage):
    async with stage.running():
        producer = await stage.producer()
        await producer.begin(b"gone")
        await producer.begin(b"there")
        stage.broker.transactions._halves[0].physical_offset += 1
        for _ in range(5):
            await stage.scan(30_000)
        assert await stage.bodies(CHECKED_OUT) == [b"there"]
        await eventually(lambda: len(producer.asked) == 3)
        assert {asked.message.body for asked in producer.asked} == {b"there"}
        assert stage.broker.transactions.count == 0, "what nobody can ever read is given up, too"
