"""Messages that consumers send back: retries with growing delays, then the dead-letter queue."""

import pytest
from tests.support.broker_client import BrokerClient, Clock, running_broker_client
from tests.support.platforms import log_delay_of
from tests.support.wait import eventually

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


class ClockedBroker:
    def __init__(self, client: BrokerClient, clock: Clock) -> None:
        self.client, self.clock, self.broker = client, clock, client.broker

    async def read_messages(self, queue: Queue) -> list[StoredMessage]:
        found = await self.broker.store.read(queue, self.broker.store.bounds_nowait(queue).first, count_max=1000)
        return record.decode_all(found.tobytes()) if isinstance(found, Slice) else []

    def advance_ms(self, ms: int) -> None:
        self.clock.now_ms += ms
        log_delay_of(self.broker).wake()

    async def send_and_read(self, body: bytes = b"hard", **named: str) -> StoredMessage:
        sent = await self.client.send(T, body, **named)
        found = await self.broker.store.read(T, sent.queue_offset, count_max=1)
        assert isinstance(found, Slice)
        return record.decode(found.tobytes())

    async def send_back(self, message: StoredMessage, level: int = 0, **more: object) -> None:
        await self.client.request_ok(
            RequestCode.CONSUMER_SEND_MSG_BACK, headers.SendMessageBack(message.physical_offset, "g", level, **more)
        )

    async def wait_for_retry(self, times: int, after_ms: int) -> StoredMessage:
        """Assert that the retry is delivered to the retry topic exactly when it is due; return it."""
        assert log_delay_of(self.broker).count == 1
        self.advance_ms(after_ms - 1)
        assert self.broker.store.bounds_nowait(RETRY).end == times - 1
        self.advance_ms(1)
        await eventually(lambda: self.broker.store.bounds_nowait(RETRY).end == times)
        message = (await self.read_messages(RETRY))[-1]
        assert message.store_ms == self.clock.now_ms
        assert message.reconsume_times == times
        return message


@pytest.fixture
async def clocked_broker(tmp_path):
    clock = Clock()
    async with running_broker_client(tmp_path / "store", clock) as client:
        await client.subscribe("g", T="*")
        yield ClockedBroker(client, clock)


async def test_a_message_is_retried_16_times_with_growing_delays_and_then_dead_lettered(clocked_broker):
    first = message = await clocked_broker.send_and_read(TAGS="a", KEYS="k")
    for times in range(1, 17):
        assert DEAD.topic not in clocked_broker.broker.topics, "the topic must not exist before the first dead letter"
        await clocked_broker.send_back(message)
        message = await clocked_broker.wait_for_retry(times, DELAY_LEVELS_MS[min(times + 2, 18) - 1])
        assert (message.body, message.tags, message.keys) == (b"hard", "a", ["k"])
        assert message.properties["RETRY_TOPIC"] == "T"
        assert message.properties["ORIGIN_MESSAGE_ID"].endswith(f"{first.physical_offset:016X}")
        assert message.unique_key == first.unique_key
    await clocked_broker.send_back(message)
    (dead,) = await clocked_broker.read_messages(DEAD)
    assert (dead.body, dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (b"hard", 17, "T")
    assert dead.properties["ORIGIN_MESSAGE_ID"] == message.properties["ORIGIN_MESSAGE_ID"]
    assert "DELAY" not in dead.properties
    assert clocked_broker.broker.delay.count == 0
    assert clocked_broker.broker.topics[DEAD.topic].read_queues == 1


async def test_a_hostile_reason_is_bounded_and_cannot_add_properties(clocked_broker):
    message = await clocked_broker.send_and_read(TAGS="a", DLQ_CONSUMER="forged")
    await clocked_broker.send_back(
        message,
        -1,
        dlq_reason="bad\x02TAGS\x01forged\x02\x00" + "é" * 10_000,
        dlq_error_type="\x01" * 1000,
        dlq_traceback="t" * 100_000 + "end",
    )
    (dead,) = await clocked_broker.read_messages(DEAD)
    assert dead.tags == "a"
    assert dead.properties["DLQ_REASON"].startswith("bad TAGS forged")
    assert len(dead.properties["DLQ_REASON"].encode()) <= 512
    assert dead.properties["DLQ_TRACEBACK"].endswith("end")
    assert len(dead.properties["DLQ_TRACEBACK"].encode()) <= 2048
    assert "DLQ_ERROR_TYPE" not in dead.properties
    assert dead.properties["DLQ_CONSUMER"] != "forged"


async def test_a_message_without_space_for_its_reason_is_dead_lettered_without_it(clocked_broker):
    message = await clocked_broker.send_and_read(big="x" * 32_000)
    await clocked_broker.send_back(
        message, -1, dlq_reason="r" * 100, dlq_error_type="e" * 200, dlq_traceback="t" * 2000
    )
    (dead,) = await clocked_broker.read_messages(DEAD)
    assert (len(dead.properties["big"]), dead.properties["DLQ_REASON"]) == (32_000, "r" * 100)
    assert "DLQ_TRACEBACK" not in dead.properties


async def test_a_consumer_can_choose_the_delay_level_or_dead_letter_at_once(clocked_broker):
    message = await clocked_broker.send_and_read()
    await clocked_broker.send_back(message, 5)
    message = await clocked_broker.wait_for_retry(1, 60_000)
    await clocked_broker.send_back(message, -1)
    assert [dead.body for dead in await clocked_broker.read_messages(DEAD)] == [b"hard"]


@pytest.mark.parametrize(("said", "of_group", "retries"), [(2, 16, 2), (0, 16, 0), (None, 3, 3), (-1, 1, 1)])
async def test_the_retry_limit_of_the_request_overrides_that_of_the_group(clocked_broker, said, of_group, retries):
    await clocked_broker.broker.groups.put(Group(name="g", retries_max=of_group))
    message = await clocked_broker.send_and_read()
    for times in range(1, retries + 1):
        await clocked_broker.send_back(message, 1, reconsume_times_max=said)
        message = await clocked_broker.wait_for_retry(times, 1_000)
    await clocked_broker.send_back(message, 1, reconsume_times_max=said)
    assert len(await clocked_broker.read_messages(DEAD)) == 1


async def test_a_retry_keeps_a_compressed_body_and_its_flags(clocked_broker):
    header = headers.SendMessageV2("p", "T", "TBW102", 4, 0, 1, 99, 7, encode({"UNIQ_KEY": "k"}).decode())
    packed = b"x\x9c\xcbH\xcd\xc9\xc9\x07\x00\x06,\x02\x15"
    sent = await clocked_broker.client.request_ok(RequestCode.SEND_MESSAGE_V2, header, packed)
    found = await clocked_broker.broker.store.read(T, sent.queue_offset)
    await clocked_broker.send_back(record.decode(found.tobytes()), 1)
    message = await clocked_broker.wait_for_retry(1, 1_000)
    assert (message.body, message.born_ms, message.flag) == (b"hello", 99, 7)


async def test_a_group_without_retry_queues_gets_no_retries(clocked_broker):
    await clocked_broker.broker.groups.put(Group(name="g", retry_queues=0))
    await clocked_broker.send_back(await clocked_broker.send_and_read())
    assert clocked_broker.broker.delay.count == 0


async def test_raising_the_retry_queues_of_a_group_loses_no_message(clocked_broker):
    """The retry topic was created with one queue; a message in another queue would have no reader."""
    message = await clocked_broker.send_and_read()
    await clocked_broker.send_back(message, 1)
    await clocked_broker.broker.groups.put(Group(name="g", retry_queues=8))
    for _ in range(20):
        await clocked_broker.send_back(message, 1)
    clocked_broker.advance_ms(1_000)
    count = clocked_broker.broker.topics[RETRY.topic].read_queues
    queues = [Queue(RETRY.topic, number) for number in range(count)]
    await eventually(lambda: sum(clocked_broker.broker.store.bounds_nowait(queue).end for queue in queues) == 21)


async def test_sending_back_to_an_unknown_group_or_an_unreadable_message_is_refused(clocked_broker):
    message = await clocked_broker.send_and_read()
    unknown = headers.SendMessageBack(message.physical_offset, "nobody", 0)
    assert (await clocked_broker.client.request_refused(RequestCode.CONSUMER_SEND_MSG_BACK, unknown))[0] == (
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    )
    half = await clocked_broker.client.send(T, b"secret", TRAN_MSG="true", PGROUP="p")
    delayed = await clocked_broker.client.send(T, b"not yet", DELAY="18")
    out_of_sight = [int(sent.message_id[-16:], 16) for sent in (half, delayed)]
    for offset in (message.physical_offset + 1, 1 << 40, -1, *out_of_sight):
        wrong = headers.SendMessageBack(offset, "g", 1)
        assert (await clocked_broker.client.request_refused(RequestCode.CONSUMER_SEND_MSG_BACK, wrong))[
            0
        ] == ResponseCode.SYSTEM_ERROR
    assert clocked_broker.broker.delay.count == 1


async def test_a_pending_retry_survives_a_restart(tmp_path):
    clock = Clock()
    async with running_broker_client(tmp_path / "store", clock) as client:
        await client.subscribe("g", T="*")
        clocked_broker = ClockedBroker(client, clock)
        await clocked_broker.send_back(await clocked_broker.send_and_read())
    clock.now_ms += 9_999
    async with running_broker_client(tmp_path / "store", clock) as client:
        clocked_broker = ClockedBroker(client, clock)
        await clocked_broker.wait_for_retry(1, 1)


# -- sends to the retry topic, which clients use when sending back fails ----------------------------------------------


async def fallback(clocked_broker: ClockedBroker, times: int, times_max: int | None, level: int = 1) -> None:
    words = encode({"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "0" * 32, "DELAY": str(level)}).decode()
    header = headers.SendMessageV2(
        "g", RETRY.topic, "TBW102", 1, 0, 0, 1, 0, words, reconsume_times=times, reconsume_times_max=times_max
    )
    await clocked_broker.client.request_ok(RequestCode.SEND_MESSAGE_V2, header, b"hard")


@pytest.mark.parametrize(
    ("times", "times_max", "is_dead"),
    [(0, 0, False), (1, 16, False), (16, 16, False), (17, 16, True), (3, 2, True), (16, None, False), (17, None, True)],
)
async def test_a_message_sent_to_the_retry_topic_is_delayed_or_dead_lettered(clocked_broker, times, times_max, is_dead):
    await fallback(clocked_broker, times, times_max)
    if is_dead:
        (dead,) = await clocked_broker.read_messages(DEAD)
        assert (dead.body, dead.reconsume_times, dead.properties["DLQ_ATTEMPT"]) == (b"hard", times, str(times))
    else:
        clocked_broker.advance_ms(1_000)
        await eventually(lambda: clocked_broker.broker.store.bounds_nowait(RETRY).end == 1)
        assert DEAD.topic not in clocked_broker.broker.topics


async def test_a_message_sent_back_by_an_ordered_group_is_dead_lettered_at_once(clocked_broker):
    """As in RocketMQ 5.1.4: an ordered consumer has already retried in place, up to its own limit."""
    queue = QueueRef("T", clocked_broker.broker.name, 0)
    monotonic = clocked_broker.broker.monotonic_ms = Clock()
    clocked_broker.broker.queue_locks.lock("g", "one", [queue], monotonic.now_ms)
    header = headers.SendMessageV2("p", RETRY.topic, "TBW102", 4, 0, 0, 0, 0, "", reconsume_times=1)
    await clocked_broker.client.request_ok(RequestCode.SEND_MESSAGE_V2, header, b"given up")
    assert [message.body for message in await clocked_broker.read_messages(DEAD)] == [b"given up"]
    monotonic.now_ms += 10 * clocked_broker.broker.settings.queue_lock_ms
    await clocked_broker.client.request_ok(RequestCode.SEND_MESSAGE_V2, header, b"again")
    assert [message.body for message in await clocked_broker.read_messages(RETRY)] == [b"again"], (
        "no member may hold a queue lock any more"
    )
