"""Failover: clients continue with the remaining servers, and no confirmed message is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.support.platforms import running_broker
from tests.support.recording_handlers import RecordingHandler
from tests.support.server_processes import BrokerProcess, broker_process
from tests.support.wait import eventually

from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.consumer import Consumer
from sparrow.client.aio.produce.producer import Producer
from sparrow.model.errors import SparrowError
from sparrow.model.message import Message
from sparrow.nameserver.server import NameServer
from sparrow.settings import NameServerSettings

QUEUES = 4


@asynccontextmanager
async def naming(port: int = 0) -> AsyncIterator[NameServer]:
    async with NameServer(NameServerSettings(port=port)) as server:
        yield server


def message(text: str, topic: str = "T") -> Message:
    return Message(topic, text)


async def reading(stack: AsyncExitStack, consumer: Consumer, topic: str = "T") -> RecordingHandler:
    handler = RecordingHandler()
    await stack.enter_async_context(consumer)
    await consumer.subscribe(topic)
    await consumer.start(handler)
    return handler


# -- name servers -----------------------------------------------------------------------------------------------------


async def test_clients_with_known_routes_continue_without_a_name_server(tmp_path):
    async with AsyncExitStack() as stack, NameServer(NameServerSettings(port=0)) as server:
        names = str(server.address)
        await stack.enter_async_context(running_broker(tmp_path, name_servers=names))
        producer = await stack.enter_async_context(Producer(names))
        await producer.send(message("before"))
        handler = await reading(stack, Consumer(names, group="readers"))
        await eventually(lambda: handler.texts == ["before"])
        await server.stop()
        await producer.session.refresh()
        await producer.send(message("after"))
        await eventually(lambda: handler.texts == ["before", "after"])
        with pytest.raises(SparrowError):
            await producer.send(message("nobody knows where", "new"))


async def test_a_client_uses_the_name_server_that_is_alive(tmp_path):
    async with AsyncExitStack() as stack:
        async with naming() as doomed:
            dead = str(doomed.address)
        alive = str((await stack.enter_async_context(naming())).address)
        await stack.enter_async_context(running_broker(tmp_path, name_servers=f"{dead};{alive}"))
        sent = []
        for number in range(6):  # each starts with one of the two at random
            async with Producer(f"{dead};{alive}") as producer:
                sent.append(str(number))
                await producer.send(message(sent[-1]))
        handler = await reading(stack, Consumer(f"{dead};{alive}", group="readers"))
        await eventually(lambda: sorted(handler.texts) == sent)


async def test_an_empty_name_server_does_not_remove_known_routes_of_clients(tmp_path):
    async with AsyncExitStack() as stack:
        async with naming() as first:
            names, port = str(first.address), first.address.port
            await stack.enter_async_context(running_broker(tmp_path, name_servers=names))
            async with Admin(names) as admin:
                await admin.create_topic("T", QUEUES)
            producer = await stack.enter_async_context(Producer(names))
            await producer.send(message("before"))
            consumer = Consumer(names, group="readers")
            handler = await reading(stack, consumer)
            await eventually(lambda: handler.texts == ["before"])
        again = await stack.enter_async_context(naming(port))
        await producer.session.refresh(["T"])
        await consumer.session.refresh(["T"])
        await producer.send(message("after"))
        await eventually(lambda: handler.texts == ["before", "after"])
        assert again.context.routes.topics() == [], "no broker has registered with this one yet"


async def test_brokers_reregister_with_a_restarted_name_server_and_new_topics_are_found(tmp_path):
    async with AsyncExitStack() as stack:
        async with naming() as first:
            names, port = str(first.address), first.address.port
            await stack.enter_async_context(running_broker(tmp_path, name_servers=names, register_interval_ms=50))
            handler = await reading(stack, Consumer(names, group="readers"), "new")
        again = await stack.enter_async_context(naming(port))
        await eventually(lambda: again.context.routes.clusters().broker_addr_table)
        async with Producer(names) as producer:
            await producer.send(message("hello", "new"))
        await eventually(lambda: handler.texts == ["hello"])


# -- brokers ----------------------------------------------------------------------------------------------------------


async def test_after_a_clean_restart_of_the_broker_no_message_is_delivered_twice(tmp_path):
    async with AsyncExitStack() as stack:
        names = str((await stack.enter_async_context(naming())).address)
        async with running_broker(tmp_path, name_servers=names) as broker:
            port = broker.address.port
            async with Producer(names) as producer:
                await producer.send(message("before"))
            handler = await reading(stack, Consumer(names, group="readers"))
            await eventually(lambda: handler.texts == ["before"])
        await stack.enter_async_context(running_broker(tmp_path, name_servers=names, port=port))
        async with Producer(names) as producer:
            for number in range(10):
                await producer.send(message(str(number)))
        await eventually(lambda: len(handler.messages) >= 11)
        assert sorted(handler.texts) == [*map(str, range(10)), "before"]


async def test_a_consumer_finds_a_broker_that_restarts_at_another_address(tmp_path):
    """Without waiting for the periodic refresh of routes, every 30 s."""
    async with AsyncExitStack() as stack:
        names = str((await stack.enter_async_context(naming())).address)
        async with running_broker(tmp_path, name_servers=names):
            async with Producer(names) as producer:
                await producer.send(message("before"))
            inbox = await reading(stack, Consumer(names, group="readers"))
            await eventually(lambda: inbox.texts == ["before"])
        await stack.enter_async_context(running_broker(tmp_path, name_servers=names))
        async with Producer(names) as producer:
            await producer.send(message("after"))
        await eventually(lambda: inbox.texts == ["before", "after"])


async def test_a_consumer_closes_within_seconds_when_its_broker_is_gone(tmp_path):
    async with AsyncExitStack() as stack:
        names = str((await stack.enter_async_context(naming())).address)
        consumer = Consumer(names, group="readers")
        async with running_broker(tmp_path, name_servers=names):
            async with Producer(names) as producer:
                await producer.send(message("before"))
            handler = await reading(stack, consumer)
            await eventually(lambda: handler.texts == ["before"])
        async with asyncio.timeout(30):
            await asyncio.gather(consumer.close(), consumer.close())  # a second close waits for the first


class Pair:
    """A name server in this process, and two brokers in separate processes with one topic on both."""

    def __init__(self, names: str, left: BrokerProcess, right: BrokerProcess) -> None:
        self.names, self.left, self.right = names, left, right


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with naming() as server:
        names = str(server.address)
        async with (
            broker_process("left", tmp_path / "left", names, register_interval_ms=200) as left,
            broker_process("right", tmp_path / "right", names, register_interval_ms=200) as right,
        ):
            async with Admin(names) as admin:
                await admin.create_topic("T", QUEUES)
            yield Pair(names, left, right)


class Sending:
    """Sends continuously, and records which broker confirmed which message."""

    def __init__(self, producer: Producer, prefix: str) -> None:
        self._producer, self._prefix = producer, prefix
        self.tried: set[str] = set()
        self.acknowledged: dict[str, str] = {}
        self.failures: list[SparrowError] = []
        self._tasks = [asyncio.create_task(self._send(number)) for number in range(4)]

    async def _send(self, worker: int) -> None:
        number = 0
        while True:
            text = f"{self._prefix} {worker}.{number}"
            number += 1
            self.tried.add(text)
            try:
                result = await self._producer.send(message(text))
                self.acknowledged[text] = result.broker_name
            except SparrowError as error:
                self.failures.append(error)
            await asyncio.sleep(0.002)

    def by(self, broker: str) -> set[str]:
        return {text for text, name in self.acknowledged.items() if name == broker}

    async def more(self, broker: str, count: int = 50) -> None:
        """Wait until the broker has confirmed this many more messages."""
        wanted = len(self.by(broker)) + count
        await eventually(lambda: len(self.by(broker)) >= wanted, within_s=30)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


@pytest.mark.parametrize(
    "maintenance_interval_ms",
    [
        pytest.param(30_000, marks=pytest.mark.thorough, id="routes kept"),
        pytest.param(100, id="routes asked for often"),
    ],
)
async def test_after_a_broker_is_killed_the_other_continues_and_no_confirmed_message_is_lost(
    pair, maintenance_interval_ms
):
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Producer(pair.names))
        inboxes = []
        for _ in range(2):
            session = await stack.enter_async_context(
                ClientSession(pair.names, maintenance_interval_ms=maintenance_interval_ms)
            )
            inboxes.append(await reading(stack, Consumer(group="readers", session=session)))

        def received() -> set[str]:
            return {text for handler in inboxes for text in handler.texts}

        sending = Sending(producer, "early")
        await sending.more("left")
        await sending.more("right")
        await pair.right.kill()
        await sending.more("left")
        await eventually(lambda: sending.by("left") <= received())
        await pair.right.start()
        # Another producer: the first avoids the failed broker for half a minute.
        later = Sending(await stack.enter_async_context(Producer(pair.names)), "late")
        await later.more("right")
        await sending.stop()
        await later.stop()
        assert not sending.failures, "the other broker was available all the time"
        assert not later.failures
        acknowledged = sending.acknowledged | later.acknowledged
        await eventually(lambda: acknowledged.keys() <= received(), within_s=30)
        sent_at_all = sending.tried | later.tried
        assert received() <= sent_at_all


@pytest.mark.thorough
async def test_a_hanging_broker_does_not_block_queues_of_another(pair):
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Producer(pair.names))
        sending = Sending(producer, "early")
        await sending.more("left", 20)
        await sending.more("right", 20)
        await sending.stop()
        pair.right.signal(signal.SIGSTOP)
        handler = await reading(stack, Consumer(pair.names, group="readers", timeout_ms=300))
        await eventually(lambda: sending.by("left") <= set(handler.texts))
        assert not sending.by("right") & set(handler.texts)
        pair.right.signal(signal.SIGCONT)
        await eventually(lambda: sending.acknowledged.keys() <= set(handler.texts))
