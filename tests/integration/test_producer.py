"""The asyncio producer against a real name server and real brokers; scripted brokers only for rare responses."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.platforms import running_broker, running_platform
from tests.support.wait import eventually

from sparrow.cli.server.platform import Platform
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.produce.producer import Producer
from sparrow.model.errors import (
    Busy,
    Closed,
    IllegalName,
    NotPermitted,
    PartialSend,
    Refused,
    RequestTimeout,
    SparrowError,
    TooLarge,
    UnknownTopic,
)
from sparrow.model.message import Message, StoredMessage
from sparrow.model.queue import Queue
from sparrow.model.send_result import SendStatus
from sparrow.net import Channel, connect
from sparrow.net.address import Address
from sparrow.net.listener import Listener
from sparrow.settings import NetSettings
from sparrow.store.spi import Slice
from sparrow.wire import batch, bodies, headers, record
from sparrow.wire.bodies import QueueRef, TopicConfig, TopicTable
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.compression import COMPRESSED_FLAG
from sparrow.wire.frame import RemotingCommand, encode, response_to
from sparrow.wire.headers import RegisterBroker, SendMessage, SendMessageResponse, SendMessageV2
from sparrow.wire.properties import property_value


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[Platform]:
    async with running_platform(tmp_path) as started:
        yield started


async def stored(platform: Platform, topic: str, queue_id: int, *, expand: bool = True) -> list[StoredMessage]:
    """Return all messages of a queue, in order."""
    found = await platform.broker.broker.store.read(Queue(topic, queue_id), 0, count_max=1 << 20, bytes_max=1 << 30)
    return record.decode_all(found.tobytes(), expand=expand) if isinstance(found, Slice) else []


async def stored_anywhere(platform: Platform, topic: str, queues: int = 4) -> list[StoredMessage]:
    return [message for queue_id in range(queues) for message in await stored(platform, topic, queue_id)]


@asynccontextmanager
async def scripted_broker(
    platform: Platform,
    topic: str,
    say: Callable[[SendMessage, RemotingCommand], RemotingCommand | None],
    *,
    name: str = "scripted",
) -> AsyncIterator[list[SendMessage]]:
    """Run a broker in the topic's route that responds to sends by script (None: never). Yield the sends it got."""
    asked: list[SendMessage] = []

    def serve(command: RemotingCommand, channel: Channel) -> None:
        if command.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            header = headers.read(SendMessageV2, command.ext)
            asked.append(header)
            said = say(header, command)
        else:
            said = response_to(command)
        if said is not None:
            channel.write(encode(said))

    listener = Listener(serve, NetSettings(stop_grace_ms=0))
    address = Address("127.0.0.1", listener.bind("127.0.0.1", 0))
    await listener.start()
    try:
        async with registered(platform, address, name, topic):
            yield asked
    finally:
        await listener.stop()


@asynccontextmanager
async def registered(platform: Platform, address: Address, name: str, topic: str) -> AsyncIterator[None]:
    """Register a broker that has the topic, with one queue. The second topic is needed because the name server takes a
    registration of an unknown broker with a single topic for an incomplete one."""
    table = TopicTable(topic_config_table={name: TopicConfig(name, 1, 1) for name in (topic, "another")})
    body = bodies.write_registration(bodies.BrokerRegistration(table), is_compressed=False)
    header = RegisterBroker(name, str(address), "DefaultCluster", "127.0.0.1:1", 0)
    channel = await connect(Address.parse(platform.name_servers))
    said = await channel.request(RequestCode.REGISTER_BROKER, header, body)
    assert said.code == ResponseCode.SUCCESS, said.remark
    yield
    channel.close()


def saying(code: int) -> Callable[[SendMessage, RemotingCommand], RemotingCommand]:
    return lambda _, command: response_to(command, code, remark="as told")


def stored_saying(code: int) -> Callable[[SendMessage, RemotingCommand], RemotingCommand]:
    return lambda _, command: response_to(
        command, code, headers.write(SendMessageResponse("7F000001" + "0" * 24, 0, 5))
    )


# -- single messages --------------------------------------------------------------------------------------------------


async def test_send_result_locates_the_stored_message(platform: Platform) -> None:
    async with Producer(platform.name_servers) as producer:
        result = await producer.send(
            Message("orders", b"hello", tags="A", keys=["k1", "k2"], properties={"colour": "red"})
        )
    assert result.status is SendStatus.OK
    assert (result.topic, result.broker_name) == ("orders", "sparrow")
    (message,) = await stored(platform, "orders", result.queue_id)
    assert (message.body, message.tags, message.keys) == (b"hello", "A", ["k1", "k2"])
    assert message.properties["colour"] == "red"
    assert message.unique_key == result.message_id
    assert message.queue_offset == result.queue_offset == 0
    assert result.offset_id.endswith(f"{message.physical_offset:016X}")


async def test_sends_use_the_queues_in_turn(platform: Platform) -> None:
    async with Producer(platform.name_servers) as producer:
        await producer.send(Message("orders", b"makes the topic"))
        results = [await producer.send(Message("orders", b"x")) for _ in range(8)]
    assert sorted(result.queue_id for result in results) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_queue_selector_or_sharding_key_chooses_the_queue(platform: Platform) -> None:
    async with Producer(platform.name_servers, selector=lambda queues, _: queues[1]) as producer:
        given = await producer.send(Message("orders", b"x"), queue=QueueRef("orders", "sparrow", 2))
        own = await producer.send(Message("orders", b"x"), selector=lambda queues, _: queues[3])
        usual = await producer.send(Message("orders", b"x"))
    assert (given.queue_id, own.queue_id, usual.queue_id) == (2, 3, 1)
    async with Producer(platform.name_servers) as producer:
        sharded = [
            await producer.send(Message("orders", b"x", properties={"__SHARDINGKEY": "customer 7"})) for _ in range(3)
        ]
    assert len({result.queue_id for result in sharded}) == 1


async def test_long_body_is_compressed(platform: Platform) -> None:
    body = b"sparrow " * 100_000
    async with Producer(platform.name_servers) as producer:
        result = await producer.send(Message("orders", body))
    (raw,) = await stored(platform, "orders", result.queue_id, expand=False)
    assert len(raw.body) < len(body) / 10
    assert raw.sys_flag & COMPRESSED_FLAG
    (message,) = await stored(platform, "orders", result.queue_id)
    assert message.body == body


async def test_oneway_message_arrives(platform: Platform) -> None:
    async with Producer(platform.name_servers) as producer:
        await producer.send(Message("orders", b"makes the topic"))
        await producer.send_one_way(Message("orders", b"one way"), queue=QueueRef("orders", "sparrow", 0))
        await eventually(lambda: platform.broker.broker.store.bounds_nowait(Queue("orders", 0)).end > 0)
    assert b"one way" in [message.body for message in await stored(platform, "orders", 0)]


async def test_many_concurrent_sends_without_linger_are_all_stored(platform: Platform) -> None:
    async with Producer(platform.name_servers) as producer:
        futures = [producer.send_soon(Message("orders", b"%d" % number)) for number in range(500)]
        await producer.flush()
        assert all(future.done() for future in futures)
    assert {message.body for message in await stored_anywhere(platform, "orders")} == {b"%d" % n for n in range(500)}


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message("no such name!", b"x"), IllegalName),
        (Message("orders", b"x" * (4 << 20) + b"x"), TooLarge),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), SparrowError),
    ],
)
async def test_illegal_message_is_refused(platform: Platform, message: Message, error: type[Exception]) -> None:
    async with Producer(platform.name_servers) as producer:
        with pytest.raises(error):
            await producer.send(message)


async def test_unknown_topic_raises_where_topics_are_not_created_automatically(tmp_path: Path) -> None:
    async with running_platform(tmp_path, auto_create_topics=False) as platform, Producer(platform.name_servers) as one:
        with pytest.raises(UnknownTopic, match="orders"):
            await one.send(Message("orders", b"x"))


async def test_producer_is_registered_at_brokers_until_it_closes(platform: Platform) -> None:
    members = platform.broker.broker.clients
    async with Producer(platform.name_servers, group="payments") as producer:
        await producer.send(Message("orders", b"makes the topic"))
        await producer.send(Message("orders", b"finds it"))
        await eventually(lambda: members.producers("payments"))
    assert not members.producers("payments")


async def test_closed_producer_raises_closed(platform: Platform) -> None:
    producer = Producer(platform.name_servers)
    with pytest.raises(Closed):
        await producer.send(Message("orders", b"x"))
    await producer.open()
    await producer.close()
    with pytest.raises(Closed):
        producer.send_soon(Message("orders", b"x"))


# -- batches ----------------------------------------------------------------------------------------------------------


async def test_batch_is_stored_in_one_queue_in_order(platform: Platform) -> None:
    async with Producer(platform.name_servers) as producer:
        results = await producer.send_batch([Message("orders", b"%d" % number) for number in range(10)])
    messages = await stored(platform, "orders", results[0].queue_id)
    assert [message.body for message in messages] == [b"%d" % number for number in range(10)]
    assert [message.unique_key for message in messages] == [result.message_id for result in results]
    assert [result.queue_offset for result in results] == list(range(10))
    assert [int(result.offset_id[-16:], 16) for result in results] == [each.physical_offset for each in messages]


async def test_lingering_messages_share_requests_and_each_gets_its_own_result(platform: Platform) -> None:
    async with Producer(platform.name_servers, linger_ms=20, batch_count_max=64) as producer:
        futures = [producer.send_soon(Message("orders", b"%d" % number)) for number in range(1000)]
        results = await asyncio.gather(*futures)
    at = {(each.queue_id, each.queue_offset): each for each in await stored_anywhere(platform, "orders")}
    assert len(at) == 1000
    for number, result in enumerate(results):
        message = at[result.queue_id, result.queue_offset]
        assert (message.body, message.unique_key) == (b"%d" % number, result.message_id)
    neighbours = [results[at].queue_id == results[at + 1].queue_id for at in range(0, 960, 64)]
    assert all(neighbours), "messages of one batch must go to one queue"


async def test_send_lingers_together_with_other_sends(platform: Platform) -> None:
    async with Producer(platform.name_servers, linger_ms=1) as producer:
        results = await asyncio.gather(*(producer.send(Message("orders", b"x")) for _ in range(50)))
    assert len({result.queue_id for result in results}) == 1
    assert sorted(result.queue_offset for result in results) == list(range(50))


async def test_batches_for_one_queue_keep_the_order_of_their_messages(platform: Platform) -> None:
    queue = QueueRef("orders", "sparrow", 2)
    async with Producer(platform.name_servers, linger_ms=1, batch_count_max=7, compress_above_bytes=100) as producer:
        for number in range(200):
            # Every ninth is compressed and every tenth does not wait for the disk: those are sent alone.
            body = b"%d" % number + (b" " * 200 if number % 9 == 0 else b"")
            said = {"WAIT": "false"} if number % 10 == 0 else {}
            producer.send_soon(Message(topic="orders", body=body, properties=said), queue=queue)
            if number % 50 == 0:
                await asyncio.sleep(0)
    messages = await stored(platform, "orders", 2)
    assert [int(message.body) for message in messages] == list(range(200))


async def test_sharding_key_keeps_its_order_from_before_the_route_is_known(platform: Platform) -> None:
    async with Producer(platform.name_servers, linger_ms=1, batch_count_max=8) as producer:
        await producer.send(Message("orders", b"makes the topic"))
    async with Producer(platform.name_servers, linger_ms=1, batch_count_max=8) as producer:
        for number in range(300):
            producer.send_soon(
                Message("orders", b"%d" % number, tags="T", properties={"__SHARDINGKEY": f"customer {number % 3}"})
            )
    messages = [each for each in await stored_anywhere(platform, "orders") if each.tags == "T"]
    assert len(messages) == 300
    for customer in range(3):
        numbers = [int(each.body) for each in messages if each.properties["__SHARDINGKEY"] == f"customer {customer}"]
        assert numbers == list(range(customer, 300, 3))


@pytest.mark.parametrize("linger_ms", [None, 1])
async def test_queue_of_another_topic_is_refused(platform: Platform, linger_ms: int | None) -> None:
    async with Producer(platform.name_servers, linger_ms=linger_ms) as producer:
        with pytest.raises(Refused, match="'orders' cannot go to a queue of 'payments'"):
            await producer.send(Message("orders", b"x"), queue=QueueRef("payments", "sparrow", 0))


async def test_close_sends_lingering_messages(platform: Platform) -> None:
    async with Producer(platform.name_servers, linger_ms=60_000) as producer:
        future = producer.send_soon(Message("orders", b"at last"))
    assert future.done()
    assert (await future).is_ok


async def test_failing_selector_fails_only_its_own_message(platform: Platform) -> None:
    def broken(*_: object) -> QueueRef:
        raise LookupError("no queue pleases me")

    async with Producer(platform.name_servers, linger_ms=1, unsent_bytes_max=10_000) as producer:
        with pytest.raises(LookupError):
            await producer.send_soon(Message("orders", b"x"), selector=broken)
        for _ in range(100):  # the unsent bytes would reach their limit if they were not released
            await producer.send(Message("orders", b"x"))
            with pytest.raises(LookupError):
                await producer.send_soon(Message("orders", b"x" * 100), selector=broken)


async def test_full_buffer_raises_busy_in_send_soon_and_makes_send_wait(platform: Platform) -> None:
    async with Producer(platform.name_servers, linger_ms=60_000, unsent_bytes_max=100_000) as producer:
        first = producer.send_soon(Message("orders", b"x" * 60_000), timeout_ms=3_000)
        lingering = producer.send_soon(Message("orders", b"x" * 3_000))
        with pytest.raises(Busy):
            producer.send_soon(Message("orders", b"x" * 60_000))
        waiting = asyncio.create_task(producer.send(Message("orders", b"y" * 60_000), timeout_ms=3_000))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert (await first).is_ok
        assert (await waiting).is_ok
        assert not lingering.done()


# -- failing brokers --------------------------------------------------------------------------------------------------


async def test_all_sends_go_to_the_other_broker_when_one_stops(platform: Platform, tmp_path: Path) -> None:
    async with Producer(platform.name_servers) as producer:
        async with running_broker(tmp_path / "b", name="second", name_servers=platform.name_servers):
            await Admin(session=producer.session).create_topic("orders", 4)
            names = {(await producer.send(Message("orders", b"x"))).broker_name for _ in range(8)}
            assert names == {"sparrow", "second"}
            sending = asyncio.create_task(send_many(producer, until := asyncio.Event()))
        until.set()
        results = await sending
        assert {result.broker_name for result in results[-3:]} == {"sparrow"}
        assert "second" in {result.broker_name for result in results}


async def send_many(producer: Producer, until: asyncio.Event) -> list:  # type: ignore[type-arg]
    """Send until the event is set, then a few more; every send must succeed."""
    results = []
    while not until.is_set():
        results += await asyncio.gather(*(producer.send(Message("orders", b"x")) for _ in range(10)))
    for _ in range(10):
        results.append(await producer.send(Message("orders", b"x")))
    return results


async def test_unreachable_broker_is_tried_once_and_then_avoided(platform: Platform) -> None:
    async with Producer(platform.name_servers) as producer:
        await producer.send(Message("orders", b"makes the topic"))
        # A port without a listener that is still in the route, as after a crash, for two minutes.
        listener = Listener(lambda *_: None, NetSettings())
        dead = Address("127.0.0.1", listener.bind("127.0.0.1", 0))
        listener.stop_accepting()
        async with registered(platform, dead, "dead", "orders"):
            await producer.session.route("orders", is_fresh=True)
            results = [await producer.send(Message("orders", b"x")) for _ in range(20)]
            assert {result.broker_name for result in results} == {"sparrow"}
            now_ms = int(asyncio.get_running_loop().time() * 1000)
            assert not producer._sender.latency_faults.is_usable("dead", now_ms)


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 1500])
async def test_retryable_response_makes_the_producer_use_another_broker_with_the_same_id(
    platform: Platform, code: int
) -> None:
    async with Producer(platform.name_servers) as producer:
        await producer.send(Message("orders", b"makes the topic"))
        async with scripted_broker(platform, "orders", saying(code)) as asked:
            await producer.session.route("orders", is_fresh=True)
            results = [await producer.send(Message("orders", b"x")) for _ in range(6)]
    assert {result.broker_name for result in results} == {"sparrow"}
    assert len(asked) == 1, "the failing broker must be avoided after that"
    assert property_value(asked[0].properties.encode(), "UNIQ_KEY") in {result.message_id for result in results}


async def test_message_for_a_fixed_queue_is_retried_only_there(platform: Platform) -> None:
    async with Producer(platform.name_servers, retries=2) as producer:
        await producer.send(Message("orders", b"makes the topic"))
        async with scripted_broker(platform, "orders", saying(ResponseCode.SYSTEM_BUSY)) as asked:
            await producer.session.route("orders", is_fresh=True)
            with pytest.raises(Busy, match="as told"):
                await producer.send(Message("orders", b"x"), queue=QueueRef("orders", "scripted", 0))
            with pytest.raises(Busy, match="as told"):
                await producer.send(Message("orders", b"x"), selector=lambda queues, _: queues[0])
    assert len(asked) == 6
    assert len({property_value(each.properties.encode(), "UNIQ_KEY") for each in asked}) == 2


async def test_illegal_message_is_not_retried(platform: Platform) -> None:
    async with scripted_broker(platform, "orders", saying(ResponseCode.MESSAGE_ILLEGAL)) as asked:
        async with Producer(platform.name_servers) as producer:
            with pytest.raises(Refused, match="as told"):
                await producer.send(Message("orders", b"x"))
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_flush_and_replica_timeouts_count_as_stored(platform: Platform, code: int, status: SendStatus) -> None:
    async with scripted_broker(platform, "orders", stored_saying(code)) as asked:
        async with Producer(platform.name_servers) as producer:
            result = await producer.send(Message("orders", b"x"))
    assert (result.status, result.is_ok, result.queue_offset) == (status, False, 5)
    assert len(asked) == 1


async def test_send_to_a_silent_broker_times_out(platform: Platform) -> None:
    async with scripted_broker(platform, "orders", lambda *_: None), Producer(platform.name_servers) as producer:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(RequestTimeout):
            await producer.send(Message("orders", b"x"), timeout_ms=100)
        assert asyncio.get_running_loop().time() - begun < 2


async def test_hanging_broker_leaves_time_to_retry_on_another(platform: Platform) -> None:
    async with Producer(platform.name_servers, timeout_ms=1_500) as producer:
        await producer.send(Message("orders", b"makes the topic"))
        async with scripted_broker(platform, "orders", lambda *_: None) as asked:
            await producer.session.route("orders", is_fresh=True)
            results = await asyncio.gather(*(producer.send(Message("orders", b"x")) for _ in range(10)))
    assert asked
    assert {result.broker_name for result in results} == {"sparrow"}


async def test_failed_batch_fails_each_of_its_messages_and_not_the_next_batch(platform: Platform) -> None:
    def refuse_first(header: SendMessage, command: RemotingCommand) -> RemotingCommand:
        say = saying(ResponseCode.NO_MESSAGE) if b"refuse" in command.body else stored_saying(0)
        return say(header, command)

    queue = QueueRef("orders", "scripted", 0)
    async with scripted_broker(platform, "orders", refuse_first):
        async with Producer(platform.name_servers, linger_ms=1, batch_count_max=2) as producer:
            bodies_ = (b"refuse", b"neighbour", b"good", b"good")
            futures = [producer.send_soon(Message("orders", body), queue=queue) for body in bodies_]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [isinstance(outcome, Refused) for outcome in outcomes] == [True, True, False, False]


async def test_retried_batch_is_not_overtaken_by_the_next(platform: Platform) -> None:
    stored_bodies: list[bytes] = []
    turns = count()

    def busy_every_second_time(header: SendMessage, command: RemotingCommand) -> RemotingCommand:
        if next(turns) % 2 == 0:
            return saying(ResponseCode.SYSTEM_BUSY)(header, command)
        stored_bodies.extend(member.body for member in batch.decode(command.body))
        return stored_saying(0)(header, command)

    queue = QueueRef("orders", "scripted", 0)
    async with scripted_broker(platform, "orders", busy_every_second_time):
        async with Producer(platform.name_servers, linger_ms=1, batch_count_max=5) as producer:
            futures = [producer.send_soon(Message("orders", b"%d" % number), queue=queue) for number in range(20)]
            await asyncio.gather(*futures)
    assert stored_bodies == [b"%d" % number for number in range(20)]


# -- tables -----------------------------------------------------------------------------------------------------------


async def test_every_row_of_a_table_is_a_message(platform: Platform) -> None:
    rows = 30_000
    table = pa.table(
        {
            "body": [b"%d" % number + b"." * 50 for number in range(rows)],
            "tags": [("A", "B", None)[number % 3] for number in range(rows)],
            "properties": pa.array([[("colour", "red")]] * rows, pa.map_(pa.string(), pa.string())),
        }
    )
    async with Producer(platform.name_servers) as producer:
        await producer.send(Message("orders", b"makes the topic"))
        assert await producer.send_table("orders", table) == rows
    messages = [each for each in await stored_anywhere(platform, "orders") if "colour" in each.properties]
    assert len({message.queue_id for message in messages}) > 1
    assert {message.body: message.tags for message in messages} == dict(
        zip(table["body"].to_pylist(), table["tags"].to_pylist(), strict=True)
    )


async def test_record_batch_with_a_given_queue_is_stored_there_in_order(platform: Platform) -> None:
    texts = [f"row {number}, and enough text for several batches" for number in range(40_000)]
    async with Producer(platform.name_servers) as producer:
        rows = pa.record_batch({"text": texts, "keys": texts})
        queue = QueueRef("orders", "sparrow", 1)
        assert await producer.send_table("orders", rows, body="text", queue=queue) == 40_000
    messages = await stored(platform, "orders", 1)
    assert [message.body.decode() for message in messages] == texts
    assert messages[7].properties["KEYS"] == texts[7]


async def test_empty_table_sends_nothing(platform: Platform) -> None:
    async with Producer(platform.name_servers) as producer:
        assert await producer.send_table("orders", pa.table({"body": pa.array([], pa.binary())})) == 0


async def test_table_without_a_body_column_is_refused_with_its_column_names(platform: Platform) -> None:
    async with Producer(platform.name_servers) as producer:
        with pytest.raises(Refused, match="no column 'body' for the bodies, only 'payload', 'keys'"):
            await producer.send_table("orders", pa.table({"payload": [b"x"], "keys": ["k"]}))
        with pytest.raises(Refused, match="a list is no table"):
            await producer.send_table("orders", [b"x"])


async def test_partly_sent_table_reports_how_many_rows_were_stored(platform: Platform) -> None:
    def take_two(_: SendMessage, command: RemotingCommand) -> RemotingCommand:
        taken.append(command)
        return stored_saying(0)(_, command) if len(taken) <= 2 else saying(ResponseCode.MESSAGE_ILLEGAL)(_, command)

    taken: list[RemotingCommand] = []
    table = pa.table({"body": [b"x" * 10_000] * 1_000})
    async with scripted_broker(platform, "orders", take_two), Producer(platform.name_servers) as producer:
        with pytest.raises(PartialSend) as caught:
            await producer.send_table("orders", table, in_flight=1)
    each = len(taken[0].body) // 10_022
    assert (caught.value.acknowledged, caught.value.total) == (2 * each, 1_000)
    assert "as told" in str(caught.value)
    assert len(taken) == 3


async def test_topic_without_write_permission_raises(platform: Platform) -> None:
    async with scripted_broker(platform, "orders", saying(ResponseCode.NO_PERMISSION)):
        async with Producer(platform.name_servers, retries=0) as producer:
            with pytest.raises((NotPermitted, Refused)):
                await producer.send(Message("orders", b"x"))


async def test_retried_send_is_stored_once(platform: Platform) -> None:
    """The response to the first attempt is lost: the connection is cut after the broker has stored the message."""
    async with Producer(platform.name_servers, idempotent=True, timeout_ms=10_000) as producer:
        first = await producer.send(Message("orders", b"first"))
        broker = platform.broker.broker
        queue = QueueRef("orders", first.broker_name, first.queue_id)
        sending = asyncio.create_task(producer.send(Message("orders", b"second"), queue=queue))
        before = broker.store.bounds_nowait(Queue("orders", first.queue_id)).end
        await eventually(lambda: broker.store.bounds_nowait(Queue("orders", first.queue_id)).end > before)
        for channel in list(platform.broker._listener.channels):
            channel.abort()  # before or after the response was written
        second = await sending
        assert second.queue_offset == before
        assert broker.store.bounds_nowait(Queue("orders", first.queue_id)).end == before + 1
        with pytest.raises(Refused, match="sends no batches"):
            await producer.send_batch([Message("orders", b"x")])
    with pytest.raises(Refused, match="sends no batches"):
        Producer(platform.name_servers, idempotent=True, linger_ms=1)
