"""Delayed messages over a real socket, with a manual clock."""

import asyncio
from pathlib import Path

import pytest
from tests.support.broker_client import LOG, BrokerClient, Clock, running_broker_client
from tests.support.platforms import log_delay_of
from tests.support.wait import eventually

from sparrow.broker.delay.delay_queues import DELAY_QUEUES, TIMER_QUEUE_INDEX
from sparrow.broker.delay.log import DELIVERED_MARK, LogDelayScheduler
from sparrow.broker.delay.recall import recall_handle
from sparrow.model.delay_levels import DELAY_LEVELS_MS
from sparrow.model.message import Draft, StoredMessage
from sparrow.model.protocol import SCHEDULE_TOPIC
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.settings import LogSettings
from sparrow.spark.runtime.tar_archive import extract
from sparrow.store.log import LogStore
from sparrow.store.spi import Slice
from sparrow.wire import headers, record
from sparrow.wire.bodies import ListDelayed
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import decode_ext_fields
from sparrow.wire.properties import encode

T = Queue("T", 0)
YEAR_MS = 365 * 86_400_000
FIXTURE = Path(__file__).parents[1] / "fixtures" / "rocketmq_store" / "clean.tar.xz"


async def read_messages(store: LogStore, queue: Queue = T) -> list[StoredMessage]:
    """Return all messages of the queue."""
    messages: list[StoredMessage] = []
    offset = store.bounds_nowait(queue).first
    while isinstance(found := await store.read(queue, offset, count_max=1_000, bytes_max=64 << 20), Slice):
        messages += record.decode_all(found.tobytes())
        offset = found.next_offset
    return messages


async def read_bodies(store: LogStore, queue: Queue = T) -> list[bytes]:
    return [message.body for message in await read_messages(store, queue)]


class ClockedBroker:
    """A broker, its clock, and the messages that it has delivered."""

    def __init__(self, client: BrokerClient, clock: Clock) -> None:
        self.client, self.clock, self.store = client, clock, client.broker.store

    def advance_ms(self, ms: int) -> None:
        self.clock.now_ms += ms
        log_delay_of(self.client.broker).wake()

    async def read_delivered(self) -> list[bytes]:
        return [body for body in await read_bodies(self.store) if not body.startswith(b"canary")]

    async def assert_nothing_delivered_in(self, ms: int) -> None:
        """Advance the clock, and assert that only a canary that is due exactly then is delivered."""
        before, end = await self.read_delivered(), self.store.bounds_nowait(T).end
        await self.client.send(T, f"canary {self.clock.now_ms}".encode(), TIMER_DELAY_MS=str(ms))
        self.advance_ms(ms)
        await eventually(lambda: self.store.bounds_nowait(T).end > end)
        assert await self.read_delivered() == before

    async def wait_for_delivery(self, *bodies: bytes) -> None:
        before = sum(body.startswith(b"canary") for body in await read_bodies(self.store))
        await eventually(lambda: self.store.bounds_nowait(T).end >= before + len(bodies))
        assert await self.read_delivered() == list(bodies)


@pytest.fixture
async def clocked_broker(tmp_path):
    clock = Clock()
    async with running_broker_client(tmp_path / "store", clock) as client:
        yield ClockedBroker(client, clock)


class Restarts:
    """Brokers that run one after the other on the same folder and clock."""

    def __init__(self, path: Path) -> None:
        self._path, self.clock = path, Clock()

    def running_broker(self, **settings: object):
        return _RunningBroker(self._path, self.clock, settings)


class _RunningBroker:
    def __init__(self, path: Path, clock: Clock, settings: dict[str, object]) -> None:
        self._context, self._clock = running_broker_client(path, clock, **settings), clock

    async def __aenter__(self) -> ClockedBroker:
        return ClockedBroker(await self._context.__aenter__(), self._clock)

    async def __aexit__(self, *error: object) -> None:
        await self._context.__aexit__(*error)


@pytest.fixture
def restarts(tmp_path) -> Restarts:
    return Restarts(tmp_path / "store")


# -- delay levels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", range(1, 19))
async def test_a_delay_level_delivers_at_its_delay_and_not_a_millisecond_earlier(clocked_broker, level):
    await clocked_broker.client.send(T, b"later", DELAY=str(level))
    await clocked_broker.assert_nothing_delivered_in(DELAY_LEVELS_MS[level - 1] - 1)
    clocked_broker.advance_ms(1)
    await clocked_broker.wait_for_delivery(b"later")


async def test_delay_levels_deliver_in_the_order_of_their_delays(clocked_broker):
    for level in range(18, 0, -1):
        await clocked_broker.client.send(T, b"%d" % level, DELAY=str(level))
    clocked_broker.advance_ms(2 * 3_600_000)
    await clocked_broker.wait_for_delivery(*(b"%d" % level for level in range(1, 19)))


async def test_messages_of_one_delay_level_keep_their_order(clocked_broker):
    for number in range(700):
        await clocked_broker.client.send(T, b"%d" % number, DELAY="2")
    clocked_broker.advance_ms(5_000)
    await clocked_broker.wait_for_delivery(*(b"%d" % number for number in range(700)))


async def test_a_level_above_the_highest_uses_the_highest_delay(clocked_broker):
    await clocked_broker.client.send(T, b"later", DELAY="99")
    await clocked_broker.assert_nothing_delivered_in(DELAY_LEVELS_MS[-1] - 1)
    clocked_broker.advance_ms(1)
    await clocked_broker.wait_for_delivery(b"later")


async def test_a_delivered_message_equals_the_sent_one_and_is_not_delayed_again(clocked_broker):
    header = headers.SendMessageV2("p", "T", "TBW102", 4, 2, 0, 1234, 77, encode({"DELAY": "1", "TAGS": "a"}).decode())
    sent = await clocked_broker.client.request_ok(RequestCode.SEND_MESSAGE_V2, header, b"later")
    assert sent.queue_id == 2
    clocked_broker.advance_ms(1_000)
    await eventually(lambda: clocked_broker.store.bounds_nowait(Queue("T", 2)).end)
    (message,) = await read_messages(clocked_broker.store, Queue("T", 2))
    assert (message.body, message.flag, message.born_ms, message.tags) == (b"later", 77, 1234, "a")
    assert message.store_ms == clocked_broker.clock.now_ms
    # As in RocketMQ, the delivered message keeps its delay properties; the broker does not delay it again.
    assert message.properties["DELAY"] == "1"
    assert message.properties["REAL_TOPIC"] == "T"
    assert clocked_broker.client.broker.delay.count == 0
    answer = await clocked_broker.client.pull("g", Queue("T", 2))
    assert answer.code == ResponseCode.SUCCESS


# -- timers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "delay_ms"),
    [
        ({"TIMER_DELAY_MS": "1"}, 1),
        ({"TIMER_DELAY_MS": "123456"}, 123_456),
        ({"TIMER_DELAY_SEC": "7"}, 7_000),
        ({"TIMER_DELIVER_MS": str(Clock().now_ms + 61_001)}, 61_001),
        ({"TIMER_DELIVER_MS": "5", "TIMER_DELAY_MS": "900", "TIMER_DELAY_SEC": "3"}, 3_000),
        ({"TIMER_DELIVER_MS": "5", "TIMER_DELAY_MS": "900"}, 900),
        ({"TIMER_DELAY_MS": "5", "DELAY": "1"}, 1_000),
        ({"TIMER_DELAY_MS": str(3 * 86_400_000)}, 3 * 86_400_000),
    ],
)
async def test_a_timer_message_is_delivered_when_due_and_not_a_millisecond_earlier(clocked_broker, named, delay_ms):
    await clocked_broker.client.send(T, b"later", **named)
    if delay_ms > 1:
        await clocked_broker.assert_nothing_delivered_in(delay_ms - 1)
    assert await clocked_broker.read_delivered() == []
    clocked_broker.advance_ms(1)
    await clocked_broker.wait_for_delivery(b"later")


async def test_a_message_that_is_already_due_is_not_delayed(clocked_broker):
    for number, delay in enumerate(("0", "-5")):
        await clocked_broker.client.send(T, b"%d" % number, TIMER_DELAY_MS=delay)
    await clocked_broker.client.send(T, b"2", TIMER_DELIVER_MS=str(clocked_broker.clock.now_ms))
    assert await clocked_broker.read_delivered() == [b"0", b"1", b"2"]


async def test_a_delay_beyond_the_horizon_is_refused_and_a_delay_of_years_within_it_works(restarts):
    words = encode({"TIMER_DELIVER_MS": str(restarts.clock.now_ms + 3 * YEAR_MS)}).decode()
    header = headers.SendMessageV2("p", "T", "TBW102", 4, 0, 0, 1, 0, words)
    async with restarts.running_broker() as clocked_broker:
        code, remark = await clocked_broker.client.request_refused(RequestCode.SEND_MESSAGE_V2, header, b"later")
        assert code == ResponseCode.MESSAGE_ILLEGAL
        assert "horizon" in remark
    async with restarts.running_broker(delay_horizon_ms=10 * YEAR_MS) as clocked_broker:
        await clocked_broker.client.request_ok(RequestCode.SEND_MESSAGE_V2, header, b"later")
        await clocked_broker.assert_nothing_delivered_in(3 * YEAR_MS - 1)
        clocked_broker.advance_ms(1)
        await clocked_broker.wait_for_delivery(b"later")


async def test_a_malformed_delivery_time_is_refused(clocked_broker):
    words = encode({"TIMER_DELIVER_MS": "tomorrow"}).decode()
    header = headers.SendMessageV2("p", "T", "TBW102", 4, 0, 0, 1, 0, words)
    await clocked_broker.client.send(T, b"makes the topic")
    code, _ = await clocked_broker.client.request_refused(RequestCode.SEND_MESSAGE_V2, header, b"later")
    assert code == ResponseCode.MESSAGE_ILLEGAL


async def test_internal_delay_properties_of_a_sender_have_no_effect(restarts):
    async with restarts.running_broker() as clocked_broker:
        await clocked_broker.client.send(T, b"victim", TIMER_DELAY_MS="5000")
        await clocked_broker.client.send(
            T,
            b"odd",
            DELAY="2",
            TIMER_OUT_MS="soon",
            TIMER_DEL_UNIQKEY="T+x",
            TIMER_ROLLED_FROM=str(TIMER_QUEUE_INDEX << 56),
            REAL_TOPIC="elsewhere",
            REAL_QID="\u00b2",
        )
        await clocked_broker.client.send(
            T, b"odder", TIMER_DELAY_MS="5001", TIMER_ROLLED_FROM=str(TIMER_QUEUE_INDEX << 56)
        )
    async with restarts.running_broker() as clocked_broker:
        clocked_broker.advance_ms(5_001)
        await eventually(lambda: clocked_broker.client.broker.delay.count == 0)
        assert sorted(await clocked_broker.read_delivered()) == [b"odd", b"odder", b"victim"]


async def test_large_messages_that_are_due_together_are_all_delivered(clocked_broker):
    """The messages exceed one segment, so one append cannot hold them."""
    for number in range(40):
        await clocked_broker.client.send(T, b"%02d" % number + b"x" * 60_000, DELAY="1")
    clocked_broker.advance_ms(1_000)
    await eventually(lambda: clocked_broker.store.bounds_nowait(T).end == 40)
    assert [message.body[:2] for message in await read_messages(clocked_broker.store)] == [
        b"%02d" % number for number in range(40)
    ]


async def test_other_requests_are_served_while_many_delayed_messages_are_delivered(clocked_broker):
    await clocked_broker.client.send(T, b"makes the topic")
    draft = {"properties": encode({"UNIQ_KEY": "x"})}
    for number in range(6_000):
        clocked_broker.client.broker.delay.schedule_at(
            T, Draft(body=b"%d" % number, **draft), clocked_broker.clock.now_ms + 5
        )
    clocked_broker.advance_ms(5)
    while clocked_broker.client.broker.delay.count == 6_000:
        await asyncio.sleep(0)
    await clocked_broker.client.send(T, b"meanwhile")
    assert clocked_broker.client.broker.delay.count > 0, "the broker must answer before the last message is delivered"
    await eventually(lambda: clocked_broker.store.bounds_nowait(T).end == 6_002)


# -- changes of the clock ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [{"TIMER_DELAY_MS": "1000"}, {"DELAY": "1"}])
async def test_setting_the_clock_back_makes_no_message_early_late_or_lost(restarts, named):
    async with restarts.running_broker() as clocked_broker:
        await clocked_broker.client.send(T, b"first", TIMER_DELAY_MS="10")
        clocked_broker.advance_ms(10)
        await clocked_broker.wait_for_delivery(b"first")
        clocked_broker.advance_ms(-3_600_000)
        await clocked_broker.client.send(T, b"second", **named)
        await clocked_broker.assert_nothing_delivered_in(999)
    async with restarts.running_broker() as clocked_broker:
        assert b"second" not in await clocked_broker.read_delivered()
        clocked_broker.advance_ms(1_000)  # a level's delay starts again: the store time is of the old clock
        await eventually(lambda: clocked_broker.client.broker.delay.count == 0)
        assert b"second" in await clocked_broker.read_delivered()


async def test_a_message_stored_in_the_millisecond_of_the_delivered_mark_survives_a_restart(restarts):
    async with restarts.running_broker() as clocked_broker:
        await clocked_broker.client.send(T, b"first", TIMER_DELAY_MS="10")
        clocked_broker.advance_ms(10)
        await clocked_broker.wait_for_delivery(b"first")
        await eventually(
            lambda: clocked_broker.store._state.tables.marks.get(DELIVERED_MARK) == clocked_broker.clock.now_ms
        )
        await clocked_broker.client.send(T, b"second", TIMER_DELAY_MS="1")
    async with restarts.running_broker() as clocked_broker:
        clocked_broker.advance_ms(1)
        await clocked_broker.wait_for_delivery(b"first", b"second")


# -- restarts ---------------------------------------------------------------------------------------------------------


async def test_a_restart_neither_loses_nor_repeats_delayed_messages(restarts):
    async with restarts.running_broker() as clocked_broker:
        for number in range(30):
            await clocked_broker.client.send(T, b"%02d" % number, TIMER_DELAY_MS=str(1_000 * (number + 1)))
        await clocked_broker.client.send(T, b"level", DELAY="5")
        clocked_broker.advance_ms(10_000)
        await clocked_broker.wait_for_delivery(*(b"%02d" % number for number in range(10)))
    restarts.clock.now_ms += 10_000  # ten messages become due while no broker runs
    async with restarts.running_broker() as clocked_broker:
        await clocked_broker.wait_for_delivery(*(b"%02d" % number for number in range(20)))
        assert clocked_broker.client.broker.delay.count == 11
        clocked_broker.advance_ms(10_000)
        await clocked_broker.wait_for_delivery(*(b"%02d" % number for number in range(30)))
    async with restarts.running_broker() as clocked_broker:
        clocked_broker.advance_ms(30_000)
        await clocked_broker.wait_for_delivery(*(b"%02d" % number for number in range(30)), b"level")
    async with restarts.running_broker() as clocked_broker:
        assert clocked_broker.client.broker.delay.count == 0


async def test_a_restart_reads_only_messages_that_are_still_delayed(restarts):
    async with restarts.running_broker() as clocked_broker:
        for number in range(50):
            await clocked_broker.client.send(T, b"%d" % number, DELAY="1")
        clocked_broker.advance_ms(1_000)
        await eventually(lambda: clocked_broker.client.broker.delay.count == 0)
        await clocked_broker.client.send(T, b"waits", DELAY="1")
    async with restarts.running_broker() as clocked_broker:
        assert await clocked_broker.store.marks.get("timers.from.0") == 50
        assert clocked_broker.client.broker.delay.count == 1


# -- recall -----------------------------------------------------------------------------------------------------------


async def recall(clocked_broker: ClockedBroker, handle: str, topic: str = "T"):
    return await clocked_broker.client.request(RequestCode.RECALL_MESSAGE, headers.RecallMessage(topic, handle))


async def test_a_recalled_message_is_not_delivered_even_after_a_restart(restarts):
    async with restarts.running_broker() as clocked_broker:
        sent = await clocked_broker.client.send(T, b"recalled", TIMER_DELAY_MS="5000", UNIQ_KEY="k1")
        await clocked_broker.client.send(T, b"kept", TIMER_DELAY_MS="5000", UNIQ_KEY="k2")
        answer = await recall(clocked_broker, sent.recall_handle)
        assert answer.code == ResponseCode.SUCCESS
        assert headers.read(headers.RecallMessageResponse, answer.ext) == headers.RecallMessageResponse(
            "k1", "DefaultRegion"
        )
    for _ in range(2):
        async with restarts.running_broker() as clocked_broker:
            assert clocked_broker.client.broker.delay.count == 2
    async with restarts.running_broker() as clocked_broker:
        clocked_broker.advance_ms(5_000)
        await clocked_broker.wait_for_delivery(b"kept")
        await eventually(lambda: clocked_broker.client.broker.delay.count == 0)


async def test_a_recalled_message_of_a_level_is_not_delivered_even_after_a_restart(restarts):
    """Its cancellation is in another queue than the message, in which nothing else waits."""
    async with restarts.running_broker() as clocked_broker:
        await clocked_broker.client.send(T, b"recalled", DELAY="18", UNIQ_KEY="k1")
        await clocked_broker.client.send(T, b"kept", DELAY="18", UNIQ_KEY="k2")
        waiting = await clocked_broker.client.broker.delay.list_waiting(ListDelayed(unique_key="k1"))
        handle = recall_handle("T", clocked_broker.client.broker.name, waiting.messages[0].due_ms, "k1")
        assert (await recall(clocked_broker, handle)).code == ResponseCode.SUCCESS
        await log_delay_of(clocked_broker.client.broker).save_recovery_offsets()
    async with restarts.running_broker() as clocked_broker:
        waiting = await clocked_broker.client.broker.delay.list_waiting(ListDelayed())
        assert [message.unique_key for message in waiting.messages] == ["k2"]
        clocked_broker.advance_ms(DELAY_LEVELS_MS[17] + 1)
        await clocked_broker.wait_for_delivery(b"kept")
        await eventually(lambda: clocked_broker.client.broker.delay.count == 0)


async def test_recall_is_refused_for_a_delivered_message_and_for_a_wrong_handle(clocked_broker):
    sent = await clocked_broker.client.send(T, b"now", TIMER_DELAY_MS="100", UNIQ_KEY="k")
    handle = sent.recall_handle
    other = recall_handle("T", "elsewhere", clocked_broker.clock.now_ms + 100, "k")
    for wrong, topic in [("garbage", "T"), ("\u00e9", "T"), (handle, "Other"), (other, "T"), ("djE=", "T")]:
        refusal = await recall(clocked_broker, wrong, topic)
        assert refusal.code == ResponseCode.ILLEGAL_OPERATION
        assert decode_ext_fields(refusal.ext) == {"MSG_REGION": "DefaultRegion"}  # else Java's client traces nothing
    clocked_broker.advance_ms(100)
    assert (await recall(clocked_broker, handle)).code == ResponseCode.ILLEGAL_OPERATION
    await clocked_broker.wait_for_delivery(b"now")


async def test_a_message_can_be_cancelled_by_a_cancel_message_as_before_5_3(clocked_broker):
    due_ms = str(clocked_broker.clock.now_ms + 5_000)
    await clocked_broker.client.send(T, b"gone", TIMER_DELIVER_MS=due_ms, UNIQ_KEY="k1")
    await clocked_broker.client.send(T, b"gone too", TIMER_DELIVER_MS=due_ms, UNIQ_KEY="k2")
    await clocked_broker.client.send(
        T, b"stays", TIMER_DELIVER_MS=str(clocked_broker.clock.now_ms + 5_001), UNIQ_KEY="k3"
    )
    for key in ("T+k1", "k2", "T+k3"):  # k3 is due at another time
        await clocked_broker.client.send(T, b"cancels", TIMER_DELIVER_MS=due_ms, TIMER_DEL_UNIQKEY=key)
    clocked_broker.advance_ms(6_000)
    await clocked_broker.wait_for_delivery(b"stays")


# -- deleted topics ---------------------------------------------------------------------------------------------------


async def test_messages_of_a_deleted_topic_do_not_block_other_deliveries(clocked_broker):
    gone = Queue("Gone", 0)
    await clocked_broker.client.send(gone, b"nobody's", DELAY="1")
    await clocked_broker.client.send(T, b"later", DELAY="1")
    await clocked_broker.client.send(gone, b"nobody's", DELAY="1")
    await clocked_broker.client.broker.topics.delete("Gone")
    clocked_broker.advance_ms(1_000)
    await clocked_broker.wait_for_delivery(b"later")
    await eventually(lambda: clocked_broker.client.broker.delay.count == 0)


# -- crashes and long delays, without a broker ------------------------------------------------------------------------


def opened(path: Path, clock: Clock, **settings: object) -> LogStore:
    return LogStore(path, LOG.model_copy(update=settings), now_ms=clock)


async def started(store: LogStore, clock: Clock, *, roll_after_ms: int = 10 * YEAR_MS) -> LogDelayScheduler:
    for name in ("T", SCHEDULE_TOPIC, DELAY_QUEUES[TIMER_QUEUE_INDEX].topic):
        if name not in await store.catalog.list_topics():
            await store.catalog.put_topic(Topic(name=name, read_queues=18, write_queues=18))
    delay = LogDelayScheduler(store, horizon_ms=20 * YEAR_MS, roll_after_ms=roll_after_ms, now_ms=clock)
    await delay.start()
    return delay


def timed(delay: LogDelayScheduler, clock: Clock, body: bytes, ms: int, key: str = "") -> None:
    delay.schedule_at(T, Draft(body=body, properties=encode({"UNIQ_KEY": key or body.decode()})), clock.now_ms + ms)


async def test_a_crash_between_delivery_and_mark_repeats_messages_and_loses_none(tmp_path):
    clock = Clock()
    with opened(tmp_path, clock) as store:
        delay = await started(store, clock)
        for number in range(3):
            timed(delay, clock, b"%d" % number, 1_000)
        clock.now_ms += 1_000
        delay.wake()
        await eventually(lambda: store.bounds_nowait(T).end == 3)
        third = (await read_messages(store))[2]
        await delay.stop()
        store.replica.truncate(third.physical_offset)  # the third message and the mark after it never reached the disk
    with opened(tmp_path, clock) as store:
        delay = await started(store, clock)
        await eventually(lambda: store.bounds_nowait(T).end == 5)
        await delay.stop()
        assert await read_bodies(store) == [b"0", b"1", b"0", b"1", b"2"]


@pytest.mark.usefixtures("no_page_cache")
async def test_the_recovery_offset_never_passes_messages_that_are_being_delivered(tmp_path):
    clock = Clock()
    with opened(tmp_path, clock, hot_bytes=0) as store:  # every read uses a thread and takes time
        delay = await started(store, clock)
        for number in range(20):
            timed(delay, clock, b"%d" % number, 1_000 + number % 7)
        clock.now_ms += 2_000
        delay.wake()
        while store.bounds_nowait(T).end == 0:
            await delay.save_recovery_offsets()
            pointer = await store.marks.get(f"timers.from.{TIMER_QUEUE_INDEX}") or 0
            assert pointer == 0 or store.bounds_nowait(T).end > 0
            await asyncio.sleep(0)
        await delay.stop()


async def test_an_unreplicated_delayed_message_is_delivered_after_replication(tmp_path):
    clock = Clock()
    with opened(tmp_path, clock, visible_after="replicated") as store:
        delay = await started(store, clock)
        timed(delay, clock, b"later", 10)
        clock.now_ms += 10
        delay.wake()
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert delay.count == 1
        store.replica.commit_to(store.written)
        await eventually(lambda: delay.count == 0)
        store.replica.commit_to(store.written)
        assert await read_bodies(store) == [b"later"]
        await delay.stop()


async def test_a_delay_longer_than_retention_delivers_once(tmp_path):
    clock = Clock()
    hour_ms = 3_600_000
    for round_number in range(6):
        with opened(tmp_path, clock, segment_bytes=64 << 10, retention_hours=24) as store:
            delay = await started(store, clock, roll_after_ms=12 * hour_ms)
            if round_number == 0:
                for number in range(300):
                    timed(delay, clock, b"%d" % number, 5 * 24 * hour_ms + number)
                timed(delay, clock, b"cancelled", 5 * 24 * hour_ms, "k")
                await delay.cancel("T", "k", clock.now_ms + 5 * 24 * hour_ms)
                delay.schedule_level(T, Draft(body=b"level", properties=encode({"UNIQ_KEY": "level"})), 18)
            assert delay.count <= 302, "a copy must replace its original"
            for _ in range(4):
                clock.now_ms += 6 * hour_ms
                for _ in range(40):  # other messages fill segments for retention to delete
                    store.append_nowait(Queue("T", 1), [Draft(body=b"x" * 10_000)])
                delay.wake()
                await delay.roll()
                await delay.save_recovery_offsets()
                await store.trim()
            if round_number in (2, 3):
                assert store.first > 0
                assert await read_bodies(store) in ([b"level"], [])  # retention deletes it later
            if round_number == 5:
                await eventually(lambda delay=delay: delay.count == 0)
                assert store.bounds_nowait(T).end == 301
                assert (await read_bodies(store))[-1] == b"299"
            await delay.stop()


async def test_a_crash_after_rolling_a_delayed_message_does_not_deliver_it_twice(tmp_path):
    clock = Clock()
    hour_ms = 3_600_000
    with opened(tmp_path, clock) as store:
        delay = await started(store, clock, roll_after_ms=12 * hour_ms)
        for number in range(3):
            timed(delay, clock, b"%d" % number, 48 * hour_ms)
        clock.now_ms += 13 * hour_ms
        await delay.roll()
        assert store.bounds_nowait(DELAY_QUEUES[TIMER_QUEUE_INDEX]).end == 6
        assert await store.marks.get(f"timers.from.{TIMER_QUEUE_INDEX}") is None, "a restart must read both"
        after_a_crash = await started(store, clock)
        assert (delay.count, after_a_crash.count) == (3, 3)
        await delay.stop()
        clock.now_ms += 35 * hour_ms
        after_a_crash.wake()
        await eventually(lambda: after_a_crash.count == 0)
        await after_a_crash.stop()
        assert sorted(await read_bodies(store)) == [b"0", b"1", b"2"]


async def test_due_messages_larger_than_a_segment_are_delivered_in_order(tmp_path):
    clock = Clock()
    with opened(tmp_path, clock, segment_bytes=64 << 10) as store:
        delay = await started(store, clock)
        for number in range(20):
            delay.schedule_at(T, Draft(body=b"%02d" % number + bytes(10_000)), clock.now_ms + 5)
        clock.now_ms += 5
        delay.wake()
        await eventually(lambda: delay.count == 0)
        await delay.stop()
        assert [body[:2] for body in await read_bodies(store)] == [b"%02d" % number for number in range(20)]


# -- a store directory of RocketMQ ------------------------------------------------------------------------------------


async def test_delayed_messages_that_rocketmq_delivered_are_not_delivered_again(tmp_path):
    extract(FIXTURE, tmp_path / "store")
    clock = Clock(1_794_734_683_408 + YEAR_MS)
    settings = LogSettings(index_slots=100, index_entries=200)
    with LogStore(tmp_path / "store", settings, now_ms=clock) as store:
        delivered = store.bounds_nowait(Queue("TopicTest", 0)).end + store.bounds_nowait(Queue("TopicTest", 1)).end
        assert store.bounds_nowait(Queue(SCHEDULE_TOPIC, 0)).end == 1
        assert await store.marks.get("timers.from.0") == 1
        delay = await started(store, clock)
        assert delay.count == 0
        timed(delay, clock, b"ours", 5)
        clock.now_ms += 5
        delay.wake()
        await eventually(lambda: delay.count == 0)
        await delay.stop()
        after = store.bounds_nowait(Queue("TopicTest", 0)).end + store.bounds_nowait(Queue("TopicTest", 1)).end
        assert after == delivered
