"""A broker killed at random moments while messages are popped and an idempotent producer repeats sends.

Every sent message is popped at least once, and every acknowledged message is in the log exactly once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from tests.support.server_processes import BrokerProcess, broker_process
from tests.support.wait import eventually

from sparrow.client.aio import Consumer, PopConsumer, Producer
from sparrow.model import Message
from sparrow.model.errors import SparrowError
from sparrow.nameserver.server import NameServer
from sparrow.settings import NameServerSettings

TOPIC = "orders"
INVISIBLE_MS = 2_000


async def sends(producer: Producer, told: set[str], name: str) -> None:
    """Send sequentially; repeat each send until it is answered."""
    number = 0
    while True:
        number += 1
        result = await producer.send(Message(TOPIC, f"{name} {number}"))
        assert result.is_ok
        told.add(f"{name} {number}")


async def pops(consumer: PopConsumer, seen: Counter[str]) -> None:
    while True:
        try:
            receipts = await consumer.receive(TOPIC, wait_ms=500)
            seen.update(receipt.message.body.decode() for receipt in receipts)
            if receipts:
                await consumer.ack(receipts)
        except SparrowError:  # the broker is down, or has revived the messages
            await asyncio.sleep(0.05)


async def kills(broker: BrokerProcess, rounds: int, rng: random.Random) -> None:
    for _ in range(rounds):
        await asyncio.sleep(rng.uniform(0.1, 0.6))
        await broker.kill()
        await broker.start()


@pytest.mark.thorough
@pytest.mark.timeout(900)
async def test_a_kill_loses_no_popped_message_and_stores_no_repeat_twice(tmp_path: Path, scale: str) -> None:
    rounds = 50 if scale == "full" else 2
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    told: set[str] = set()
    seen: Counter[str] = Counter()
    naming = NameServer(NameServerSettings(port=0))
    async with naming, broker_process("b", tmp_path / "b", str(naming.address)) as broker:
        name_servers = str(naming.address)
        producers = [Producer(name_servers, idempotent=True, retries=10_000, timeout_ms=60_000) for _ in range(4)]
        consumers = [PopConsumer(name_servers, group="g", invisible_ms=INVISIBLE_MS) for _ in range(2)]
        clients: list[Producer | PopConsumer] = [*producers, *consumers]
        for client in clients:
            await client.open()
        await producers[0].send(Message(TOPIC, "makes the topic"))
        told.add("makes the topic")
        sending = [asyncio.create_task(sends(each, told, f"p{n}")) for n, each in enumerate(producers)]
        popping = [asyncio.create_task(pops(each, seen)) for each in consumers]
        await kills(broker, rounds, rng)
        for task in sending:
            task.cancel()
        ended = await asyncio.gather(*sending, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended), (seed, ended)
        await eventually(lambda: told <= seen.keys(), within_s=60)
        for task in popping:
            task.cancel()
        await asyncio.gather(*popping, return_exceptions=True)
        async with Consumer(name_servers, group="reader") as reader:
            bodies = (await reader.read_table(TOPIC, columns=["body"]))["body"].to_pylist()
        stored = Counter(body.decode() for body in bodies)
        for client in clients:
            await client.close()
    assert told <= stored.keys(), (seed, told - stored.keys())
    twice = {body for body, count in stored.items() if count > 1}
    assert not twice, (seed, twice)
    again = sum(count - 1 for count in seen.values())
    print(f"{len(told):,} sent over {rounds} kills, each stored once; {again:,} popped more than once")
