"""Brokers named `room@name`: consumers read the queues of their own room, producers send to theirs.

Queues of a room without a consumer are shared by the consumers of the others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from itertools import chain
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.support.platforms import broker_settings, running_broker, running_platform
from tests.support.wait import eventually, wait_until

import sparrow
from sparrow import Message, QueueRef, by_machine_room, in_machine_room, machine_room_nearby
from sparrow.cli.settings import load_settings
from sparrow.client.aio import Admin, Consumer, Producer
from sparrow.client.blocking.loop_thread import LoopThread
from sparrow.model.errors import SettingsError
from sparrow.nameserver.server import NameServer
from sparrow.settings import NameServerSettings

QUEUES = 4
EAST, WEST = "east@a", "west@b"


@asynccontextmanager
async def two_rooms(folder: Path) -> AsyncIterator[str]:
    """Run a name server and a broker in each room, with topic T on both; yield the name server."""
    async with NameServer(NameServerSettings(port=0)) as naming:
        names = str(naming.address)
        async with (
            running_broker(folder / "east", name=EAST, name_servers=names),
            running_broker(folder / "west", name=WEST, name_servers=names),
            Admin(names) as admin,
        ):
            await admin.create_topic("T", QUEUES)
            yield names


@pytest.fixture
async def rooms(tmp_path: Path) -> AsyncIterator[str]:
    async with two_rooms(tmp_path) as names:
        yield names


def on(broker_name: str, *queue_ids: int) -> list[QueueRef]:
    return [QueueRef("T", broker_name, queue_id) for queue_id in queue_ids or range(QUEUES)]


def of_topic(consumer: Consumer | sparrow.Consumer) -> list[QueueRef]:
    return [queue for queue in consumer.queues if queue.topic == "T"]


class Members:
    """Consumers of one group, each in a room, and what they have read."""

    def __init__(self, names: str) -> None:
        self._names = names
        self.seen: dict[str, list[tuple[str, str]]] = {}

    async def join(self, stack: AsyncExitStack, name: str) -> Consumer:
        """Start a consumer with this instance name, `room@name`."""
        seen = self.seen[name] = []
        consumer = Consumer(self._names, group="readers", strategy=machine_room_nearby(), instance_name=name)

        async def handle(message: sparrow.StoredMessage) -> None:
            seen.append((message.properties["broker"], message.body.decode()))

        await stack.enter_async_context(consumer)
        await consumer.subscribe("T")
        await consumer.start(handle)
        return consumer

    def everything(self) -> list[str]:
        return sorted(text for _, text in chain.from_iterable(self.seen.values()))


async def send_to(producer: Producer, broker_name: str, *texts: str) -> None:
    for number, text in enumerate(texts):
        message = Message("T", text, properties={"broker": broker_name})
        await producer.send(message, queue=QueueRef("T", broker_name, number % QUEUES))


async def test_consumers_read_the_queues_of_their_room_and_share_those_of_an_abandoned_room(rooms: str) -> None:
    async with AsyncExitStack() as stack, Producer(rooms) as producer:
        members = Members(rooms)
        first = await members.join(stack, "east@1")
        await eventually(lambda: of_topic(first) == on(EAST) + on(WEST))  # the west has no consumer
        second = await members.join(stack, "east@2")
        west_stack = await stack.enter_async_context(AsyncExitStack())
        third = await members.join(west_stack, "west@1")
        await eventually(
            lambda: [of_topic(one) for one in (first, second, third)] == [on(EAST, 0, 1), on(EAST, 2, 3), on(WEST)]
        )
        await send_to(producer, EAST, *(f"e{number}" for number in range(8)))
        await send_to(producer, WEST, *(f"w{number}" for number in range(8)))
        expected = sorted(f"{room}{number}" for room in "ew" for number in range(8))
        await eventually(lambda: members.everything() == expected)
        assert {broker for broker, _ in members.seen["west@1"]} == {WEST}
        assert {broker for name in ("east@1", "east@2") for broker, _ in members.seen[name]} == {EAST}

        await west_stack.aclose()  # no consumer is left in the west
        await eventually(
            lambda: (
                [of_topic(one) for one in (first, second)]
                == [on(EAST, 0, 1) + on(WEST, 0, 1), on(EAST, 2, 3) + on(WEST, 2, 3)]
            )
        )
        await send_to(producer, WEST, *(f"x{number}" for number in range(8)))
        expected = sorted([*expected, *(f"x{number}" for number in range(8))])
        await eventually(lambda: members.everything() == expected)

        fourth = await members.join(stack, "west@2")  # the room has a consumer again
        await eventually(
            lambda: [of_topic(one) for one in (first, second, fourth)] == [on(EAST, 0, 1), on(EAST, 2, 3), on(WEST)]
        )


async def test_by_machine_room_reads_only_the_given_rooms(rooms: str) -> None:
    async with (
        Consumer(rooms, group="east", strategy=by_machine_room(["east"])) as east,
        Consumer(rooms, group="west", strategy=by_machine_room("west")) as west,
    ):
        for consumer in (east, west):
            await consumer.subscribe("T")
            await consumer.poll(1, timeout_ms=1)
        await eventually(lambda: (of_topic(east), of_topic(west)) == (on(EAST), on(WEST)))


async def test_a_selector_sends_to_a_room_and_elsewhere_while_the_room_has_no_broker(tmp_path: Path) -> None:
    async with NameServer(NameServerSettings(port=0)) as naming, AsyncExitStack() as stack:
        names = str(naming.address)
        await stack.enter_async_context(running_broker(tmp_path / "west", name=WEST, name_servers=names))
        east = await stack.enter_async_context(AsyncExitStack())
        await east.enter_async_context(running_broker(tmp_path / "east", name=EAST, name_servers=names))
        async with Admin(names) as admin:
            await admin.create_topic("T", QUEUES)
        for linger_ms in (None, 1):
            async with Producer(names, linger_ms=linger_ms, selector=in_machine_room(["east"])) as producer:
                sent = [await producer.send(Message("T", "near")) for _ in range(QUEUES)]
                assert {(result.broker_name, result.queue_id) for result in sent} == {
                    (EAST, queue_id) for queue_id in range(QUEUES)
                }
                keyed = Message("T", "in order", properties={sparrow.PROPERTY_SHARDING_KEY: "order-1"})
                assert len({(await producer.send(keyed)).queue_id for _ in range(3)}) == 1
        await east.aclose()  # it leaves the routes
        async with Producer(names, selector=in_machine_room(["east"])) as producer:
            assert (await producer.send(Message("T", "far"))).broker_name == WEST


@pytest.fixture
def blocking_rooms(tmp_path: Path) -> Iterator[str]:
    loop = LoopThread("two rooms")
    platform = two_rooms(tmp_path)
    try:
        yield loop.run(platform.__aenter__())
        loop.run(platform.__aexit__(None, None, None))
    finally:
        loop.stop()


def test_the_blocking_client_has_the_same_options(blocking_rooms: str) -> None:
    names, nearby = blocking_rooms, machine_room_nearby()
    with ExitStack() as stack:
        consumers = {}
        for room in ("east", "west"):
            consumer = sparrow.Consumer(names, group="g", strategy=nearby, instance_name=f"{room}@1")
            consumers[room] = stack.enter_context(consumer)
            consumer.subscribe("T")
            consumer.poll(1, timeout_ms=1)
        wait_until(lambda: [of_topic(one) for one in consumers.values()] == [on(EAST), on(WEST)])
        producer = stack.enter_context(sparrow.Producer(names, selector=in_machine_room(["west"])))
        assert producer.send(Message("T", "west")).broker_name == WEST
        assert consumers["west"].poll(1, timeout_ms=10_000)[0].body == b"west"


async def test_a_database_broker_may_be_in_a_room(tmp_path: Path) -> None:
    async with (
        running_platform(tmp_path, name=EAST, store=f"sqlite:///{tmp_path}/messages.db") as platform,
        Producer(platform.name_servers) as producer,
    ):
        assert (await producer.send(Message("t", "stored"))).broker_name == EAST


@pytest.mark.parametrize("name", ["", "two words", "a;b", "a:4", "a/b", "é", "x" * 128])
def test_a_broker_name_that_routes_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="name"):
        broker_settings(name=name)


def test_the_command_line_refuses_such_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # no sparrow.toml
    assert load_settings(name=EAST).broker.name == EAST
    with pytest.raises(SettingsError, match=r"broker.name = 'two words' \(from --name\) cannot be used: use a text"):
        load_settings(name="two words")
