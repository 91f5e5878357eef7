"""A broker killed at random moments while messages are consumed in order and members join and leave.

The first handling of each key's messages follows their send order, and no acknowledged message is missing. Repeats are
allowed: a message that was handled and not committed is delivered again.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from tests.support.server_processes import BrokerProcess, broker_process
from tests.support.wait import eventually

from sparrow.client.aio import Admin, Consumer, Producer
from sparrow.model import Message, StoredMessage
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.nameserver.server import NameServer
from sparrow.settings import NameServerSettings

GROUP, TOPIC = "history", "steps"
QUEUES = 6
"""Not the number of an auto-created topic: so the test detects a key that moves while its route is unknown."""
KEYS_A_PRODUCER, PRODUCERS = 4, 2
MEMBERS_MAX = 4
HANDLING_S_MAX = 0.004
"""Handling times vary, so that concurrent handling would break the order."""
PAUSE_S = 0.005
"""A pause after each send: at full speed the backlog would only prolong the end of the test."""
PATIENCE_S = 120.0
"""Locks of a member that left uncleanly expire after 60 s; other members look for free queues every 20 s."""


class History:
    """The handled messages of all members."""

    def __init__(self) -> None:
        self.newest: dict[str, int] = {}
        """The last number of each key; messages are numbered from 1, and all lower numbers were handled before."""
        self.too_early: list[str] = []
        self.queues: dict[str, set[int]] = {}
        self.repeats = 0
        self.readers: dict[int, set[str]] = {}
        """Members that have held messages of each queue."""
        self.in_two_hands = 0
        self._in_hand: Counter[int] = Counter()

    def holds(self, told: dict[str, int]) -> bool:
        return all(self.newest.get(key, 0) >= number for key, number in told.items())

    async def handle(self, message: StoredMessage, member: str) -> None:
        self.readers.setdefault(message.queue_id, set()).add(member)
        self.in_two_hands += self._in_hand[message.queue_id] > 0
        self._in_hand[message.queue_id] += 1
        try:
            await asyncio.sleep(random.uniform(0, HANDLING_S_MAX))
        finally:
            self._in_hand[message.queue_id] -= 1
        self._done(message)

    def _done(self, message: StoredMessage) -> None:
        key, _, number = message.body.decode().rpartition(" ")
        self.queues.setdefault(key, set()).add(message.queue_id)
        newest = self.newest.get(key, 0)
        if int(number) <= newest:
            self.repeats += 1
        elif int(number) == newest + 1:
            self.newest[key] = newest + 1
        else:
            self.too_early.append(f"{key} {number} was done when {newest} was the newest")


class Members:
    """The consumers of the group, at least one at any time."""

    def __init__(self, name_servers: str, history: History) -> None:
        self._name_servers, self._history = name_servers, history
        self._present: dict[str, Consumer] = {}
        self.joined = self.left = 0

    async def join(self) -> None:
        self.joined += 1
        name = f"member {self.joined}"
        consumer = Consumer(self._name_servers, group=GROUP, commit_interval_ms=200)
        await consumer.subscribe(TOPIC)
        self._present[name] = consumer
        await consumer.start(partial(self._history.handle, member=name), orderly=True)

    async def leave(self, name: str) -> None:
        self.left += 1
        await self._present.pop(name).close()

    async def come_and_go(self, rng: random.Random, enough: asyncio.Event) -> None:
        while not enough.is_set():  # not cancelled: a half-stopped member would keep its queues
            await asyncio.sleep(rng.uniform(0.2, 1.0))
            if len(self._present) == 1 or (len(self._present) < MEMBERS_MAX and rng.random() < 0.5):
                await self.join()
            else:
                await self.leave(rng.choice(sorted(self._present)))

    async def close(self) -> None:
        for name in list(self._present):
            await self.leave(name)


async def sends(producer: Producer, key: str, told: dict[str, int]) -> None:
    """Send sequentially; repeat each send until it is answered."""
    number = 0
    while True:
        number += 1
        result = await producer.send(Message(TOPIC, f"{key} {number}", properties={PROPERTY_SHARDING_KEY: key}))
        assert result.is_ok
        told[key] = number
        await asyncio.sleep(PAUSE_S)


async def kills(broker: BrokerProcess, rounds: int, rng: random.Random) -> None:
    for _ in range(rounds):
        await asyncio.sleep(rng.uniform(0.1, 1.5))
        await broker.kill()
        await broker.start()


@pytest.mark.thorough
@pytest.mark.timeout(900)
async def test_a_kill_neither_loses_nor_reorders_the_messages_of_a_key(tmp_path: Path, scale: str) -> None:
    rounds = 50 if scale == "full" else 2
    seed = int(os.environ.get("SPARROW_SEED") or random.SystemRandom().getrandbits(32))
    print(f"SPARROW_SEED={seed}")
    rng = random.Random(seed)
    told: dict[str, int] = {}
    history = History()
    naming = NameServer(NameServerSettings(port=0))
    async with naming, broker_process("b", tmp_path / "b", str(naming.address)) as broker:
        name_servers = str(naming.address)
        async with Admin(name_servers) as admin:
            await admin.create_topic(TOPIC, QUEUES)
        producers = [Producer(name_servers, retries=10_000, timeout_ms=60_000) for _ in range(PRODUCERS)]
        for producer in producers:
            await producer.open()
        members = Members(name_servers, history)
        await members.join()
        await members.join()
        enough = asyncio.Event()
        moving = asyncio.create_task(members.come_and_go(random.Random(rng.random()), enough))
        sending = [
            asyncio.create_task(sends(producer, f"order {number}-{key}", told))
            for number, producer in enumerate(producers)
            for key in range(KEYS_A_PRODUCER)
        ]
        await kills(broker, rounds, rng)
        enough.set()
        await moving
        for task in sending:
            task.cancel()
        ended = await asyncio.gather(*sending, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended), (seed, ended)
        await eventually(lambda: history.too_early or history.holds(told), within_s=PATIENCE_S)
        await members.close()
        for producer in producers:
            await producer.close()
    assert not history.too_early, (seed, history.too_early[:10])
    assert all(len(queues) == 1 for queues in history.queues.values()), (seed, history.queues)
    handed_on = sum(len(readers) - 1 for readers in history.readers.values())
    assert handed_on > 0, "no queue moved from one member to another"
    print(
        f"{sum(told.values()):,} sent under {len(told)} keys over {rounds} kills, all in order; "
        f"{history.repeats:,} came again, {history.in_two_hands} began while another member had their queue; "
        f"{members.joined} members joined, {members.left} left"
    )
