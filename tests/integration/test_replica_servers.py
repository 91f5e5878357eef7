"""Brokers of a replica set, with a name server, a real etcd and Sparrow's own clients, through the death of leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.etcd import EtcdServer, etcd_cluster
from tests.support.replica_servers import DEADLINE_S, equal_logs, leader_of, replica_set
from tests.support.wait import eventually

from sparrow import Message, StoredMessage, aio
from sparrow.model.errors import SparrowError
from sparrow.model.transaction import TransactionState
from sparrow.net.access.peer_access import PeerAccess
from sparrow.replication.core.fetch import Chunk, Fetch, FetchAnswer
from sparrow.replication.fetch.client import AnswerReceiver, FetchClient


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_cluster() as (server,):
        yield server


async def send(producer: aio.Producer, body: str) -> None:
    """Send until the message is acknowledged."""
    while True:
        try:
            await producer.send(Message("orders", body, keys=body))
            return
        except SparrowError:
            await asyncio.sleep(0.05)


async def test_clients_go_on_when_the_leader_dies(etcd: EtcdServer, tmp_path: Path) -> None:
    received: list[bytes] = []

    async def handle(message: StoredMessage) -> None:
        received.append(message.body)

    async with replica_set(etcd, tmp_path) as (name_servers, servers):
        first = await leader_of(servers)
        async with aio.Producer(name_servers) as producer:
            for number in range(50):
                await asyncio.wait_for(send(producer, f"a{number}"), DEADLINE_S)
            async with aio.Consumer(name_servers, group="readers") as consumer:
                await consumer.subscribe("orders")
                await consumer.start(handle)
                await eventually(lambda: len(set(received)) == 50, within_s=DEADLINE_S)
                first.node.replica.leader = None  # as a killed process, which tells nobody
                await first.stop()
                others = [server for server in servers if server is not first]
                await leader_of(others)
                for number in range(50):
                    await asyncio.wait_for(send(producer, f"b{number}"), DEADLINE_S)
                await eventually(lambda: len(set(received)) == 100, within_s=DEADLINE_S)
                await first.start()
                await equal_logs(servers)
        assert set(received) == {f"{part}{number}".encode() for part in "ab" for number in range(50)}


class DeafFetches(FetchClient):
    """Fetches of a follower that hears of no high watermark above a limit, as if it were always a little late."""

    high_watermark_max: int | None = None

    def fetch(self, address: str, fetch: Fetch, receive: AnswerReceiver) -> None:
        def receive_less(answer: FetchAnswer | SparrowError, body: bytes) -> None:
            if isinstance(answer, Chunk) and self.high_watermark_max is not None:
                known = min(answer.high_watermark, self.high_watermark_max)
                answer = msgspec.structs.replace(answer, high_watermark=known)
            receive(answer, body)

        super().fetch(address, fetch, receive_less)


async def test_a_new_leader_knows_what_was_acknowledged_above_the_high_watermark_that_it_heard_of(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    """Half messages, delayed messages and repeated sends: what it has not loaded when it begins, nobody loads later."""
    received: list[str] = []

    async def handle(message: StoredMessage) -> None:
        received.append(message.body.decode())

    async with replica_set(etcd, tmp_path, lag_ms=10_000) as (name_servers, servers):
        first = await leader_of(servers)
        others = [server for server in servers if server is not first]
        async with aio.Producer(name_servers, idempotent=True, retries=1000, timeout_ms=60_000) as producer:
            await producer.send(Message("orders", "the first"))
            await equal_logs(servers)
            for server in others:
                server.node._fetches = deaf = DeafFetches(
                    PeerAccess(),
                    timeout_ms=server.node.options.fetch_timeout_ms,
                    segment_bytes=server.store.settings.segment_bytes,
                )
                deaf.high_watermark_max = int(server.store.watermark("replicated"))
            half = await producer.begin_transaction(Message("orders", "in a transaction"))
            await producer.send(Message("orders", "later"), deliver_after_ms=2_000)
            assert all(server.store.watermark("replicated") < server.store.written for server in others)
            first.node.replica.leader = None  # as a killed process, which tells nobody
            await first.stop()
            await leader_of(others)
            await producer.end_transaction(half, TransactionState.COMMIT)
            async with aio.Consumer(name_servers, group="readers") as consumer:
                await consumer.subscribe("orders")
                await consumer.start(handle)
                expected = {"the first", "in a transaction", "later"}
                await eventually(lambda: set(received) == expected, within_s=DEADLINE_S)
        await first.start()
