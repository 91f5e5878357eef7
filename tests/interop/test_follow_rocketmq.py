"""Following a live Apache master through cut connections, and taking its place with all kinds of messages."""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.interop import platforms
from tests.interop.fresh_topic import QUEUES
from tests.interop.java import java_client
from tests.interop.mqadmin import Mqadmin
from tests.interop.official import Kit
from tests.interop.platforms import Platform
from tests.interop.rocketmq_follower import differing_bytes, follower_process
from tests.support.cutting_proxy import byte_cutting_proxy
from tests.support.wait import eventually

from sparrow.client.aio import Admin, Consumer, PopConsumer, Producer
from sparrow.client.consume.retry import RetryLater
from sparrow.model.errors import SparrowError
from sparrow.model.message import Message, StoredMessage
from sparrow.model.queue import QueueRef
from sparrow.model.transaction import TransactionState
from sparrow.net.address import Address
from sparrow.replication.rocketmq.master_client import RocketMQMasterClient
from sparrow.replication.rocketmq.metadata import table_of

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "orders"
DELAY_LEVEL_30_S = 4
DELIVERED_S = 90
SEED = int(os.environ.get("SPARROW_SEED", random.randrange(1 << 32)))


async def test_metadata_in_many_pages_is_that_in_one(apache_broker: Platform) -> None:
    found = []
    for page_items in (1, 4, 2_000):
        client = RocketMQMasterClient(Address.parse(apache_broker.broker), page_items=page_items)
        metadata = await client.metadata()
        topics = table_of(metadata, "topics.json", "topicConfigTable")
        found.append((topics, table_of(metadata, "subscriptionGroup.json", "subscriptionGroupTable")))
        client.close()
    assert {"SELF_TEST_TOPIC", apache_broker.cluster} <= found[0][0].keys()
    assert found[0] == found[1] == found[2]


@pytest.fixture
def master(apache_kit: Kit, tmp_path: Path) -> Iterator[Platform]:
    """An Apache name server and master of this test's own: a promotion ends its service."""
    (tmp_path / "apache").mkdir()
    with platforms.apache(apache_kit, tmp_path / "apache") as running:
        yield running


def ha_port(master: Platform) -> int:
    return int(master.broker.rpartition(":")[2]) + 1


class Load:
    """Numbered messages, one after the other, each until it is acknowledged."""

    def __init__(self, name_servers: str, topic: str) -> None:
        self._name_servers, self._topic = name_servers, topic
        self.acknowledged: list[str] = []
        self.unsure: set[str] = set()
        """Messages that may be stored more than once: an attempt failed."""

    async def run(self) -> None:
        number = 0
        async with Producer(self._name_servers, group="load", timeout_ms=2_000) as producer:
            while True:
                body = f"load {number}"
                try:
                    await producer.send(Message(self._topic, body + " " * (number * 37 % 3_000)))
                except SparrowError:
                    self.unsure.add(body)
                    await asyncio.sleep(0.05)
                    continue
                self.acknowledged.append(body)
                number += 1
                await asyncio.sleep(0.005)  # thousands of messages would only slow the test down


async def committed(name_servers: str, group: str) -> dict[QueueRef, int]:
    async with Admin(name_servers) as admin:
        return {queue: at.committed for queue, at in (await admin.progress(group, TOPIC)).queues.items()}


async def read(name_servers: str, group: str, count: int, topic: str = TOPIC) -> list[StoredMessage]:
    """Read and commit this many messages, and no more."""
    found: list[StoredMessage] = []
    async with Consumer(name_servers, group=group, timeout_ms=10_000) as consumer:
        await consumer.subscribe(topic)
        while len(found) < count:
            found += await consumer.poll(count - len(found))
        await consumer.commit()
        return found


async def read_until(name_servers: str, group: str, bodies: set[str]) -> list[StoredMessage]:
    """Read the topic from its beginning until all these messages have come."""
    found: list[StoredMessage] = []
    missing = set(bodies)
    async with Consumer(name_servers, group=group, timeout_ms=10_000) as consumer:
        await consumer.subscribe(TOPIC)
        deadline = time.monotonic() + DELIVERED_S
        while missing:
            assert time.monotonic() < deadline, f"{len(missing)} of {len(bodies)} are missing: {sorted(missing)[:5]}"
            fresh = await consumer.poll(1_000)
            found += fresh
            missing -= {text(message) for message in fresh}
    return found


def text(message: StoredMessage) -> str:
    return message.body.decode().strip()


async def test_a_follower_takes_the_place_of_its_live_master_and_loses_nothing(
    master: Platform, apache_kit: Kit, tmp_path: Path
) -> None:
    name_servers, is_5 = master.name_server, apache_kit.version.startswith("5.")
    async with Admin(name_servers) as admin:
        await admin.create_topic(TOPIC, QUEUES)
        await admin.create_topic("popped", 1)
    with ExitStack() as stack:
        (tmp_path / "java").mkdir()
        java = stack.enter_context(java_client(apache_kit, name_servers, tmp_path / "java"))
        with java.producer("java_producers") as producer:
            producer.send(TOPIC, [f"java {number}" for number in range(100)])
        with java.producer("paying", transactional=True) as producer:
            producer.send_in_transaction(TOPIC, {"body": "paid"}, "COMMIT_MESSAGE")
        await read(name_servers, "settled", 101)
        half_read = await read(name_servers, "half_read", 40)
        if is_5:
            await _pop_some(name_servers)

        print(f"seed {SEED} (SPARROW_SEED)")
        proxy = stack.enter_context(byte_cutting_proxy(ha_port(master), SEED, cuts=5))
        words = ["--rocketmq-ha", f"127.0.0.1:{proxy.port}", "--name-servers", name_servers]
        follower = stack.enter_context(follower_process(master.broker, tmp_path / "data", *words))
        load = Load(name_servers, TOPIC)
        sending = asyncio.create_task(load.run())
        await eventually(lambda: proxy.cuts <= 0, within_s=60)
        await asyncio.to_thread(follower.output.wait_for, "caught up")
        await eventually(lambda: len(load.acknowledged) > 100, within_s=60)

        await _retry_later(name_servers)
        # At the end: each check-back without a producer counts, and after fifteen the master gives up.
        with java.producer("paying", transactional=True) as producer:
            producer.send_in_transaction(TOPIC, {"body": "paid later"}, "UNKNOW")
        with java.producer("java_producers") as producer:
            producer.send(TOPIC, [{"body": "level", "delayLevel": DELAY_LEVEL_30_S}])
            if is_5:
                producer.send(TOPIC, [{"body": "timer", "delayTimeMs": 30_000}])
        dry = await asyncio.to_thread(follower.plan_promotion)
        assert "register as broker 0" in dry
        assert ("group popping has popped 2 messages of popped/0" in dry) == is_5
        before = {group: await committed(name_servers, group) for group in ("settled", "half_read")}
        await asyncio.to_thread(follower.promote, "--yes", "--offset-wait-s", "0.5")
        await asyncio.to_thread(follower.output.wait_for, "ready")
        sent_before = len(load.acknowledged)
        await eventually(lambda: len(load.acknowledged) > sent_before + 20, within_s=60)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

        state = follower.state
        assert differing_bytes(tmp_path / "data" / "store", tmp_path / "apache" / "store", state.end) == []
        for group, offsets in before.items():
            assert await committed(name_servers, group) == offsets, group

        async def commit(_: StoredMessage) -> TransactionState:
            return TransactionState.COMMIT

        async with Producer(name_servers, group="paying", transaction_checker=commit) as payer:
            await payer.send(Message("popped", "a producer of the group is online"))
            expected = {*load.acknowledged, *(f"java {number}" for number in range(100))}
            expected |= {"paid", "paid later", "level", "stubborn"} | ({"timer"} if is_5 else set())
            found = await read_until(name_servers, "auditing", expected)
        times = Counter(text(message) for message in found)
        assert {body: count for body, count in times.items() if count > 1 and body not in load.unsure} == {}
        delayed = [message for message in found if text(message) in ("level", "timer", "paid later")]
        assert all(message.physical_offset >= state.end for message in delayed), "the old master has delivered it"

        rest = {(message.queue_id, message.queue_offset) for message in found}
        rest -= {(message.queue_id, message.queue_offset) for message in half_read}
        with java.push_consumer("half_read", TOPIC) as consumer:
            received = consumer.receive(len(rest))
        assert {(message.queue_id, message.queue_offset) for message in received} == rest
        assert await _retried(name_servers) == [("stubborn", 1)]
        if is_5:
            await _pop_again(name_servers)

        mqadmin = Mqadmin(java)
        addresses = {row["BID"]: row["Addr"] for row in mqadmin.table("clusterList")}
        assert addresses["0"] == follower.address
        assert master.broker not in [addresses[bid] for bid in addresses if bid == "0"]
        assert {row["Broker Name"] for row in mqadmin.table("topicStatus", "-t", TOPIC)} == {"broker-a"}
        assert "half_read" in mqadmin.run("consumerProgress", "-g", "half_read") or is_5


async def _retry_later(name_servers: str) -> None:
    """Let the group `retrying` refuse a message, which then waits in the master's schedule topic."""
    refused = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        if text(message) == "stubborn":
            refused.set()
            raise RetryLater(DELAY_LEVEL_30_S)

    async with (
        Consumer(name_servers, group="retrying", timeout_ms=10_000) as consumer,
        Producer(name_servers, group="p", timeout_ms=10_000) as producer,
    ):
        await consumer.subscribe(TOPIC)
        await consumer.start(handle)
        await consumer.wait_for_assignment()
        await producer.send(Message(TOPIC, "stubborn"))
        async with asyncio.timeout(60):
            await refused.wait()


async def _retried(name_servers: str) -> list[tuple[str, int]]:
    """Return the messages that the group `retrying` gets once more, and how often they were tried."""
    found: list[tuple[str, int]] = []

    async def handle(message: StoredMessage) -> None:
        if message.reconsume_times:
            found.append((text(message), message.reconsume_times))

    async with Consumer(name_servers, group="retrying", timeout_ms=10_000) as consumer:
        await consumer.subscribe(TOPIC)
        await consumer.start(handle)
        await eventually(lambda: found, within_s=DELIVERED_S)
    return found


async def _pop_some(name_servers: str) -> None:
    """Send six messages, pop four of them, and acknowledge two."""
    async with (
        PopConsumer(name_servers, group="popping", invisible_ms=120_000) as consumer,
        Producer(name_servers, group="p", timeout_ms=10_000) as producer,
    ):
        for number in range(6):
            await producer.send(Message("popped", f"pop {number}"))
        receipts = []
        while len(receipts) < 4:
            receipts += await consumer.receive("popped", count_max=4 - len(receipts))
        for receipt in receipts[:2]:
            await consumer.ack(receipt)


async def _pop_again(name_servers: str) -> None:
    """What was popped from the master and not acknowledged comes again, and so does what follows it."""
    bodies: set[str] = set()
    async with PopConsumer(name_servers, group="popping") as consumer, asyncio.timeout(60):
        while not bodies >= {"pop 2", "pop 3", "pop 4", "pop 5"}:
            for receipt in await consumer.receive("popped"):
                bodies.add(text(receipt.message))
                await consumer.ack(receipt)
    assert "pop 0" not in bodies


async def test_following_and_promotion_continue_after_they_were_interrupted(master: Platform, tmp_path: Path) -> None:
    name_servers = master.name_server
    async with Admin(name_servers) as admin:
        await admin.create_topic(TOPIC, QUEUES)

    async def send(first: int, count: int, size: int = 20) -> None:
        async with Producer(name_servers, group="p", timeout_ms=20_000) as producer:
            for number in range(first, first + count):
                await producer.send(Message(TOPIC, f"{number:08} ".encode() + os.urandom(size)))

    data = tmp_path / "data"
    with follower_process(master.broker, data, "--name-servers", name_servers) as follower:
        await send(0, 50)
        await asyncio.to_thread(follower.output.wait_for, "caught up")
    # The master begins its second segment of 16 MiB while nobody follows.
    await send(50, 70, size=300_000)
    # A promotion that is stopped is undone; after one that is killed, the master waits for the next.
    with follower_process(master.broker, data, "--name-servers", name_servers) as follower:
        await asyncio.to_thread(follower.output.wait_for, "caught up")
        with follower.promoting("fence the master"):
            with pytest.raises(SparrowError):
                await send(120, 1)
            follower.output.process.terminate()
            await asyncio.to_thread(follower.output.process.wait, 30)
    await send(120, 1)
    with follower_process(master.broker, data, "--name-servers", name_servers) as follower:
        await asyncio.to_thread(follower.output.wait_for, "caught up")
        with follower.promoting("fence the master"):
            follower.output.process.kill()
            await asyncio.to_thread(follower.output.process.wait, 30)
    with pytest.raises(SparrowError):
        await send(121, 1)
    with follower_process(master.broker, data, "--name-servers", name_servers) as follower:
        assert "a promotion was interrupted" in follower.output.path.read_text()
        await asyncio.to_thread(follower.output.wait_for, "caught up")
        await asyncio.to_thread(follower.promote, "--yes", "--offset-wait-s", "0")
        await asyncio.to_thread(follower.output.wait_for, "ready")
        end = follower.state.end
        assert follower.state.master_settings["brokerPermission"] == "6"
        await send(121, 1)
    assert end > 16 << 20
    assert differing_bytes(data / "store", tmp_path / "apache" / "store", end) == []
    command = [sys.executable, "-u", "-m", "sparrow", "broker", "--port", "0", "--data", str(data)]
    with platforms.running_process(command, tmp_path / "alone.out", stop_timeout_s=15) as output:
        assert "broker broker-a" in output.wait_for("ready")
        found = await read(name_servers, "auditing", 122)
    assert sorted(message.body[:8].decode() for message in found) == [f"{number:08}" for number in range(122)]
