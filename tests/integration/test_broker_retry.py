"""Messages that consumers send back: retries with growing delays, then the dead-letter queue."""

import pytest
from tests.support.asking import Asking, Clock, asking
from tests.support.platforms import log_delay_of
from tests.support.waiting import eventually

from sparrow.model.delay_levels import DELAY_LEVELS_MS
from sparrow.model.message import StoredMessage
from sparrow.model.queue import Queue
from sparrow.model.topic import Group
from sparrow.store.spi import Slice
from sparrow.wire import headers, record
from sparrow.wire.bodies import QueueRef
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.properties import encode

T, RETRY, DEAD = Queue("T", 0), Queue("%RETRY%g", 0), Queue("%DLQ%g", 0)


class Stage:
    def __init__(self, client: Asking, clock: Clock) -> None:
        self.client, self.clock, self.broker = client, clock, client.broker

    async def messages(self, queue: Queue) -> list[StoredMessage]:
        found = await self.broker.store.read(queue, self.broker.store.bounds_nowait(queue).first, count_max=1000)
        return record.decode_all(found.tobytes()) if isinstance(found, Slice) else []

    def pass_ms(self, ms: int) -> None:
        self.clock.now_ms += ms
        log_delay_of(self.broker).wake()

    async def sent(self, body: bytes = b"hard", **named: str) -> StoredMessage:
        sent = await self.client.send(T, body, **named)
        found = await self.broker.store.read(T, sent.queue_offset, count_max=1)
        assert isinstance(found, Slice)
        return record.decode(found.tobytes())

    async def hand_back(self, message: StoredMessage, level: int = 0, **more: object) -> None:
        await self.client.done(
            RequestCode.CONSUMER_SEND_MSG_BACK, headers.SendMessageBack(message.physical_offset, "g", level, **more)
        )

    async def comes_again(self, times: int, after_ms: int) -> StoredMessage:
        """Assert that the retry is delivered to the retry topic exactly when it is due; return it."""
        assert log_delay_of(self.broker).count == 1
        self.pass_ms(after_ms - 1)
        assert self.broker.store.bounds_nowait(RETRY).end == times - 1
        self.pass_ms(1)
        await eventually(lambda: self.broker.store.bounds_nowait(RETRY).end == times)
        message = (await self.messages(RETRY))[-1]
        assert message.store_ms == self.clock.now_ms
        assert message.reconsume_times == times
        return message


@pytest.fixture
async def stage(tmp_path):
    clock = Clock()
    async with asking(tmp_path / "store", clock) as client:
        await client.subscribe("g", T="*")
        yield Stage(client, clock)


async def test_a_message_is_retried_16_times_with_growing_delays_and_then_dead_lettered(stage):
    first = message = await stage.sent(TAGS="a", KEYS="k")
    for times in range(1, 17):
        assert DEAD.topic not in stage.broker.topics, "made with the first dead letter only"
        await stage.hand_back(message)
        message = await stage.comes_again(times, DELAY_LEVELS_MS[min(times + 2, 18) - 1])
        assert (message.body, message.tags, message.keys) == (b"hard", "a", ["k"])
        assert message.properties["RETRY_TOPIC"] == "T"
        assert message.properties["ORIGIN_MESSAGE_ID"].endswith(f"{first.physical_offset:016X}")
        assert message.unique_key == first.unique_key
    await stage.hand_back(message)
    (dead,) = await stage.messages(DEAD)
    assert (dead.body, dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (b"hard", 17, "T")
    assert dead.properties["ORIGIN_MESSAGE_ID"] == message.properties["ORIGIN_MESSAGE_ID"]
    assert "DELAY" not in dead.properties
    assert stage.broker.delay.count == 0
    assert stage.broker.topics[DEAD.topic].read_queues == 1


async def test_a_hostile_reason_is_bounded_and_cannot_add_properties(stage):
    message = await stage.sent(TAGS="a", DLQ_CONSUMER="forged")
    await stage.hand_back(
        message,
        -1,
        dlq_reason="bad\x02TAGS\x01forged\x02\x00" + "é" * 10_000,
        dlq_error_type="\x01" * 1000,
        dlq_traceback="t" * 100_000 + "end",
    )
    (dead,) = await stage.messages(DEAD)
    assert dead.tags == "a"
    assert dead.properties["DLQ_REASON"].startswith("bad TAGS forged")
    assert len(dead.properties["DLQ_REASON"].encode()) <= 512
    assert dead.properties["DLQ_TRACEBACK"].endswith("end")
    assert len(dead.properties["DLQ_TRACEBACK"].encode()) <= 2048
    assert "DLQ_ERROR_TYPE" not in dead.properties
    assert dead.properties["DLQ_CONSUMER"] != "forged"


async def test_a_message_without_space_for_its_reason_is_dead_lettered_without_it(stage):
    message = await stage.sent(big="x" * 32_000)
    await stage.hand_back(message, -1, dlq_reason="r" * 100, dlq_error_type="e" * 200, dlq_traceback="t" * 2000)
    (dead,) = await stage.messages(DEAD)
    assert (len(dead.properties["big"]), dead.properties["DLQ_REASON"]) == (32_000, "r" * 100)
    assert "DLQ_TRACEBACK" not in dead.properties


async def test_a_consumer_can_choose_the_delay_level_or_dead_letter_at_once(stage):
    message = await stage.sent()
    await stage.hand_back(message, 5)
    message = await stage.comes_again(1, 60_000)
    await stage.hand_back(message, -1)
    assert [dead.body for dead in await stage.messages(DEAD)] == [b"hard"]


@pytest.mark.parametrize(("said", "of_group", "retries"), [(2, 16, 2), (0, 16, 0), (None, 3, 3), (-1, 1, 1)])
async def test_the_retry_limit_of_the_request_overrides_that_of_the_group(stage, said, of_group, retries):
    await stage.broker.groups.put(Group(name="g", retries_max=of_group))
    message = await stage.sent()
    for times in range(1, retries + 1):
        await stage.hand_back(message, 1, reconsume_times_max=said)
        message = await stage.comes_again(times, 1_000)
    await stage.hand_back(message, 1, reconsume_times_max=said)
    assert len(await stage.messages(DEAD)) == 1


async def test_a_retry_keeps_a_compressed_body_and_its_flags(stage):
    header = headers.SendMessageV2("p", "T", "TBW102", 4, 0, 1, 99, 7, encode({"UNIQ_KEY": "k"}).decode())
    packed = b"x\x9c\xcbH\xcd\xc9\xc9\x07\x00\x06,\x02\x15"
    sent = await stage.client.done(RequestCode.SEND_MESSAGE_V2, header, packed)
    found = await stage.broker.store.read(T, sent.queue_offset)
    await stage.hand_back(record.decode(found.tobytes()), 1)
    message = await stage.comes_again(1, 1_000)
    assert (message.body, message.born_ms, message.flag) == (b"hello", 99, 7)


async def test_a_group_without_retry_queues_gets_no_retries(stage):
    await stage.broker.groups.put(Group(name="g", retry_queues=0))
    await stage.hand_back(await stage.sent())
    assert stage.broker.delay.count == 0


async def test_raising_the_retry_queues_of_a_group_loses_no_message(stage):
    """The retry topic was created with one queue; a message in another queue would have no reader."""
    message = await stage.sent()
    await stage.hand_back(message, 1)
    await stage.broker.groups.put(Group(name="g", retry_queues=8))
    for _ in range(20):
        await stage.hand_back(message, 1)
    stage.pass_ms(1_000)
    count = stage.broker.topics[RETRY.topic].read_queues
    queues = [Queue(RETRY.topic, number) for number in range(count)]
    await eventually(lambda: sum(stage.broker.store.bounds_nowait(queue).end for queue in queues) == 21)


async def test_sending_back_to_an_unknown_group_or_an_unreadable_message_is_refused(stage):
    message = await stage.sent()
    unknown = headers.SendMessageBack(message.physical_offset, "nobody", 0)
    assert (await stage.client.refused(RequestCode.CONSUMER_SEND_MSG_BACK, unknown))[0] == (
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    )
    half = await stage.client.send(T, b"secret", TRAN_MSG="true", PGROUP="p")
    delayed = await stage.client.send(T, b"not yet", DELAY="18")
    out_of_sight = [int(sent.message_id[-16:], 16) for sent in (half, delayed)]
    for offset in (message.physical_offset + 1, 1 << 40, -1, *out_of_sight):
        wrong = headers.SendMessageBack(offset, "g", 1)
        assert (await stage.client.refused(RequestCode.CONSUMER_SEND_MSG_BACK, wrong))[0] == ResponseCode.SYSTEM_ERROR
    assert stage.broker.delay.count == 1


async def test_a_pending_retry_survives_a_restart(tmp_path):
    clock = Clock()
    async with asking(tmp_path / "store", clock) as client:
        await client.subscribe("g", T="*")
        stage = Stage(client, clock)
        await stage.hand_back(await stage.sent())
    clock.now_ms += 9_999
    async with asking(tmp_path / "store", clock) as client:
        stage = Stage(client, clock)
        await stage.comes_again(1, 1)


# -- sends to the retry topic, which clients use when sending back fails ----------------------------------------------


async def fallback(stage: Stage, times: int, times_max: int | None, level: int = 1) -> None:
    words = encode({"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "0" * 32, "DELAY": str(level)}).decode()
    header = headers.SendMessageV2(
        "g", RETRY.topic, "TBW102", 1, 0, 0, 1, 0, words, reconsume_times=times, reconsume_times_max=times_max
    )
    await stage.client.done(RequestCode.SEND_MESSAGE_V2, header, b"hard")


@pytest.mark.parametrize(
    ("times", "times_max", "is_dead"),
    [(0, 0, False), (1, 16, False), (16, 16, False), (17, 16, True), (3, 2, True), (16, None, False), (17, None, True)],
)
async def test_a_message_sent_to_the_retry_topic_is_delayed_or_dead_lettered(stage, times, times_max, is_dead):
    await fallback(stage, times, times_max)
    if is_dead:
        (dead,) = await stage.messages(DEAD)
        assert (dead.body, dead.reconsume_times, dead.properties["DLQ_ATTEMPT"]) == (b"hard", times, str(times))
    else:
        stage.pass_ms(1_000)
        await eventually(lambda: stage.broker.store.bounds_nowait(RETRY).end == 1)
        assert DEAD.topic not in stage.broker.topics


async def test_a_message_sent_back_by_an_ordered_group_is_dead_lettered_at_once(stage):
    """As in RocketMQ 5.1.4: an ordered consumer has already retried in place, up to its own limit."""
    queue = QueueRef("T", stage.broker.name, 0)
    stage.broker.queue_locks.lock("g", "one", [queue], stage.clock.now_ms)
    header = headers.SendMessageV2("p", RETRY.topic, "TBW102", 4, 0, 0, 0, 0, "", reconsume_times=1)
    await stage.client.done(RequestCode.SEND_MESSAGE_V2, header, b"given up")
    assert [message.body for message in await stage.messages(DEAD)] == [b"given up"]
    stage.clock.now_ms += 10 * stage.broker.settings.queue_lock_ms
    await stage.client.done(RequestCode.SEND_MESSAGE_V2, header, b"again")
    assert [message.body for message in await stage.messages(RETRY)] == [b"again"], "nobody holds a queue any more"
