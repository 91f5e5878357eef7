"""Consumers across a planned hand-over: the former leader lives, and they find the new one without their next poll."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.support.etcd import EtcdServer, etcd_cluster
from tests.support.replica_sets import RunningSet, running_set, send_surely
from tests.support.wait import eventually

from sparrow import Message, StoredMessage, aio
from sparrow.broker.context import Broker
from sparrow.model.errors import SparrowError
from sparrow.model.queue import Queue

TOPIC, QUEUES, BATCH = "orders", 2, 20
POLL_S = 30
"""How often clients ask for routes if nothing fails."""
AT_ONCE_S = POLL_S / 2


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_cluster() as (server,):
        yield server


class Readers:
    """A consumer of each kind, and what it has received."""

    def __init__(self, name_servers: str) -> None:
        self.concurrent = aio.Consumer(name_servers, group="concurrent", commit_interval_ms=100)
        self.orderly = aio.Consumer(name_servers, group="orderly", commit_interval_ms=100)
        self.popping = aio.PopConsumer(name_servers, group="popping", invisible_ms=60_000)
        self.received: dict[str, set[str]] = {"concurrent": set(), "orderly": set(), "popping": set()}
        self.last_s: dict[str, float] = {}

    def note(self, group: str, message: StoredMessage) -> None:
        self.received[group].add(message.body.decode())
        self.last_s[group] = time.monotonic()

    async def start(self) -> None:
        async def concurrently(message: StoredMessage) -> None:
            self.note("concurrent", message)

        async def in_order(message: StoredMessage) -> None:
            self.note("orderly", message)

        for consumer in (self.concurrent, self.orderly):
            await consumer.subscribe(TOPIC)
        await self.concurrent.start(concurrently)
        await self.orderly.start(in_order, orderly=True)
        await self.popping.open()
        self._task = asyncio.create_task(self._pop())

    async def _pop(self) -> None:
        while True:
            try:
                for receipt in await self.popping.receive(TOPIC, wait_ms=500):
                    await self.popping.ack(receipt)
                    self.note("popping", receipt.message)
            except SparrowError:  # nobody leads
                await asyncio.sleep(0.05)

    async def have(self, bodies: set[str]) -> None:
        await eventually(lambda: all(bodies <= seen for seen in self.received.values()), within_s=AT_ONCE_S)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for consumer in (self.concurrent, self.orderly, self.popping):
            await consumer.close()


def broker_of(replicas: RunningSet, number: int) -> Broker:
    broker = replicas.servers[number].broker
    assert broker is not None
    return broker


def has_committed(broker: Broker, group: str, ends: list[int]) -> bool:
    return [broker.store.offsets.committed_nowait(group, Queue(TOPIC, number)) for number in range(QUEUES)] == ends


async def test_consumers_commit_lock_and_acknowledge_at_the_new_leader_without_a_poll(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    async with running_set(etcd.url, tmp_path) as replicas, aio.Producer(replicas.name_servers) as producer:
        first = await replicas.leader()
        await replicas.in_sync(1, 2, 3)
        async with aio.Admin(replicas.name_servers) as admin:
            await admin.create_topic(TOPIC, QUEUES)
        readers = Readers(replicas.name_servers)
        await readers.start()
        try:
            sent = {f"before {number}" for number in range(BATCH)}
            for body in sorted(sent):
                await send_surely(producer, Message(TOPIC, body))
            await readers.have(sent)
            begun_s = time.monotonic()
            await replicas.succeeds("transfer")
            leader = broker_of(replicas, await replicas.leader(but=first))
            for number in range(BATCH):
                await send_surely(producer, Message(TOPIC, f"after {number}"))
                sent.add(f"after {number}")
            await readers.have(sent)
            pauses = {group: round(at - begun_s, 2) for group, at in readers.last_s.items()}
            ends = [leader.store.bounds_nowait(Queue(TOPIC, number)).end for number in range(QUEUES)]
            for group in ("concurrent", "orderly"):
                await eventually(partial(has_committed, leader, group, ends), within_s=AT_ONCE_S)
            locks, holder = leader.queue_locks, readers.orderly.session.client_id
            await eventually(
                lambda: all(
                    locks.holder("orderly", queue, leader.monotonic_ms()) == holder for queue in readers.orderly.queues
                ),
                within_s=AT_ONCE_S,
            )
            assert leader.pop_state.in_flight.next_due_ms() is None, "every pop is acknowledged at the new leader"
        finally:
            await readers.close()
    print(f"from the hand-over to the last of {BATCH} messages, s: {pauses}")
