"""`sparrow cluster` operates replica sets that run, with a real etcd."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.etcd import EtcdServer, etcd_cluster
from tests.support.replica_sets import DEADLINE_S, Load, RunningSet, read_all, running_set, send_surely, sparrow
from tests.support.wait import eventually

from sparrow import Message, aio
from sparrow.broker.server import BrokerServer
from sparrow.model.access.token import Credentials
from sparrow.model.errors import Refused, SparrowError
from sparrow.net.access.peer_access import PeerAccess
from sparrow.replication.replica_connection import ReplicaConnection
from sparrow.settings import BrokerSettings, LogSettings
from sparrow.store.log.key_index.index_file import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES

ADMIN = Credentials("admin", "a-secret-key")


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_cluster() as (server,):
        yield server


async def test_status_shows_every_replica(etcd: EtcdServer, tmp_path: Path) -> None:
    async with running_set(etcd.url, tmp_path) as replicas:
        async with Load(replicas.name_servers) as load:
            await load.more(20)
        leader = await replicas.leader()
        await replicas.in_sync(1, 2, 3)
        ends = {server.store.written for server in replicas.servers.values()}
        status = await replicas.status()
        assert status.is_serving
        assert status.leader is not None
        assert status.leader.replica_id == leader
        for number, server in replicas.servers.items():
            shown = status.replicas[number]
            assert shown.address == str(server.address)
            assert shown.role == ("leader" if number == leader else "follower")
            assert 0 < shown.high_watermark <= shown.end <= max(ends) + 4096
        assert {one.replica_id for one in status.replicas[leader].followers} == {1, 2, 3} - {leader}
        table = await replicas.succeeds("status", "--check")
        assert f"replica {leader} leads" in table
        follower = min({1, 2, 3} - {leader})
        await replicas.stop(follower)
        assert (await replicas.status()).replicas[follower].address is None
        other = min({1, 2, 3} - {leader, follower})
        await replicas.stop(other)
        unhealthy = await replicas.command("status", "--check")
        assert unhealthy.exit_code == 3, unhealthy


async def test_the_leadership_is_transferred_under_load(etcd: EtcdServer, tmp_path: Path) -> None:
    gaps_ms: list[float] = []

    async def watch(replicas: RunningSet) -> None:
        ended: float | None = None
        async for snapshot in replicas.coordinator.watch():
            if snapshot.leader is None:
                ended = time.monotonic()
            elif ended is not None:
                gaps_ms.append(1000 * (time.monotonic() - ended))
                ended = None

    async with running_set(etcd.url, tmp_path) as replicas:
        async with Load(replicas.name_servers) as load:
            await load.more()
            first = await replicas.leader()
            await replicas.in_sync(1, 2, 3)
            watching = asyncio.create_task(watch(replicas))
            to = min({1, 2, 3} - {first})
            said = await replicas.succeeds("transfer", "--to", str(to))
            assert f"Replica {to} leads after replica {first}" in said
            assert await replicas.leader() == to
            await load.more()
            state = (await replicas.state()).state
            assert set(state.in_sync) == {1, 2, 3}, "the former leader stays in sync"
            await replicas.succeeds("transfer")
            await replicas.leader(but=to)
            await load.more()
            watching.cancel()
        found = await read_all(replicas.name_servers)
    assert set(load.acknowledged) <= set(found)
    assert len(gaps_ms) >= 2, "a busy machine may elect once more"
    print("gaps without a leader key, ms:", [round(gap) for gap in gaps_ms])
    assert load.longest_pause_ms < 20_000, "senders ask for the route at once, and not with the poll of every 30 s"
    assert min(gaps_ms) < 2000, "far below the lease; the goal on a free machine is 200 ms"


@pytest.mark.thorough
async def test_members_come_and_go_under_load(etcd: EtcdServer, tmp_path: Path) -> None:
    async with running_set(etcd.url, tmp_path) as replicas:
        async with Load(replicas.name_servers) as load:
            await load.more()
            for number, needed in ((4, 3), (5, 3)):
                assert f"{needed} must be in sync" in await replicas.succeeds("add", str(number))
                await replicas.start(number)
                await replicas.in_sync(*range(1, number + 1))
                await load.more(10)
            for number, needed in ((1, 3), (2, 2)):
                if await replicas.leader() == number:
                    await replicas.succeeds("transfer", "--to", "5")
                    await replicas.leader(but=number)
                    await load.more(10)
                assert f"{needed} must be in sync" in await replicas.succeeds("remove", str(number))
                await load.more(10)
                removed = replicas.servers[number].node
                await eventually(lambda removed=removed: removed.replica.is_removed, within_s=DEADLINE_S)  # type: ignore[misc]
                await replicas.stop(number)
            await replicas.in_sync(3, 4, 5)
            await load.more()
        assert (await replicas.state()).state.members == (3, 4, 5)
        assert "have the same log" in await replicas.succeeds("verify")
        assert set(load.acknowledged) <= set(await read_all(replicas.name_servers))


@pytest.mark.thorough
async def test_a_difference_between_replicas_is_named(etcd: EtcdServer, tmp_path: Path) -> None:
    async with running_set(etcd.url, tmp_path) as replicas:
        async with Load(replicas.name_servers) as load:
            await load.more(200)
        leader = await replicas.leader()
        await replicas.in_sync(1, 2, 3)
        assert "have the same log" in await replicas.succeeds("verify")
        damaged = min({1, 2, 3} - {leader})
        body = load.acknowledged[5].encode()
        await replicas.stop(damaged)
        (segment, *_) = sorted((tmp_path / str(damaged) / "store" / "commitlog").iterdir())
        with segment.open("r+b") as file:
            at = file.read().index(body)
            file.seek(at)
            file.write(b"?")
        await replicas.start(damaged)
        await replicas.in_sync(1, 2, 3)
        found = await replicas.command("verify")
        assert found.exit_code == 3, found
        assert f"at byte {at:,}" in found.output
        others = sorted({1, 2, 3} - {damaged})
        assert "have the same log" in await replicas.succeeds("verify", "--replicas", ",".join(map(str, others)))
        # An entry of a consume queue that points elsewhere.
        await replicas.stop(damaged)
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(body[:1])
        queue = next(
            path
            for path in sorted((tmp_path / str(damaged) / "store" / "consumequeue" / "orders").glob("*/*"))
            if any(path.read_bytes()[:20])
        )
        with queue.open("r+b") as file:
            file.seek(12)
            file.write(b"\x01")
        await replicas.start(damaged)
        await replicas.in_sync(1, 2, 3)
        found = await replicas.command("verify")
        assert found.exit_code == 3, found
        assert "queue: orders" in found.output
        # A hash in the key index.
        await replicas.stop(damaged)
        with queue.open("r+b") as file:
            file.seek(12)
            file.write(b"\x00")
        await replicas.start(damaged)
        await replicas.in_sync(1, 2, 3)
        (index,) = replicas.servers[damaged].store._index.files
        changed = index.read(1, 1).copy()
        changed["hash"] += 1
        os.pwrite(index.fd, changed.tobytes(), INDEX_HEADER_BYTES + 4 * index.slot_count + INDEX_ENTRY_BYTES)
        found = await replicas.command("verify")
        assert found.exit_code == 3, found
        assert "key index, part: 000000000000 of replica" in found.output


BAD_INPUT = [
    (("add", "2"), "replica 2 is a member already"),
    (("remove", "9"), "replica 9 is no member"),
    (("min", "4"), "4 replicas cannot be in sync"),
    (("min", "most"), "a number, or majority"),
    (("transfer", "--to", "9"), "replica 9 is not an in-sync follower"),
    (("verify", "--replicas", "1,9"), "replica 9 does not answer"),
    (("init",), "initialised already"),
    (("init", "--members", "1,x"), "numbers separated by commas"),
    (("init", "--replica", "1"), "--from-data"),
]


async def test_bad_input_is_refused_with_a_sentence(operated: RunningSet) -> None:
    for words, sentence in BAD_INPUT:
        result = await operated.command(*words)
        assert result.exit_code == 1, result
        assert sentence in str(result.error)
    assert (await operated.state()).state.members == (1, 2, 3)
    operated.name = "another"
    missing = await operated.command("status")
    assert "has no replica set 'another'" in str(missing.error)


@pytest.fixture
async def operated(etcd: EtcdServer, tmp_path: Path) -> object:
    async with running_set(etcd.url, tmp_path) as replicas:
        await replicas.leader()
        await replicas.in_sync(1, 2, 3)
        yield replicas


async def test_a_set_is_not_operated_into_refusing_sends(operated: RunningSet) -> None:
    leader = await operated.leader()
    refused = await operated.command("remove", str(leader))
    assert "transfer the leadership" in str(refused.error)
    follower = min({1, 2, 3} - {leader})
    await operated.stop(follower)
    await operated.in_sync(*({1, 2, 3} - {follower}))
    leader = await operated.leader()
    (other,) = {1, 2, 3} - {leader, follower}
    refused = await operated.command("remove", str(other))
    assert "sends would be refused" in str(refused.error)
    refused = await operated.command("add", "4")
    assert "sends would be refused" in str(refused.error), "three of four are more than half"
    # With one replica lost for good: remove it, and replace it by another.
    await operated.succeeds("remove", str(follower))
    await operated.succeeds("add", "4")
    await operated.start(4)
    await operated.in_sync(leader, other, 4)


async def test_a_second_process_of_a_replica_is_refused(operated: RunningSet) -> None:
    operated.folder = operated.folder / "copy"
    with pytest.raises(Refused, match="runs already"):
        await operated.server(2).start()


async def test_of_two_processes_of_a_replica_one_is_refused_in_a_new_set(etcd: EtcdServer, tmp_path: Path) -> None:
    async with running_set(etcd.url, tmp_path, is_started=False) as replicas:
        await replicas.succeeds("init", "--members", "1,2,3")
        first = replicas.server(1)
        replicas.folder = tmp_path / "copy"
        second = replicas.server(1)
        outcomes = await asyncio.gather(first.start(), second.start(), return_exceptions=True)
        (refused,) = [outcome for outcome in outcomes if outcome is not None]
        assert isinstance(refused, Refused)
        assert "replica 1 runs already" in str(refused)
        running = first if outcomes[0] is None else second
        assert (await replicas.state()).addresses == {1: str(running.address)}
        await running.stop()


async def test_with_auth_replicas_answer_admins_only(etcd: EtcdServer, tmp_path: Path) -> None:
    tokens = {ADMIN.access_key: ADMIN.secret_key}
    async with running_set(etcd.url, tmp_path, auth=True, admin_tokens=tokens) as replicas:
        leader = await replicas.leader()
        await replicas.in_sync(1, 2, 3)  # replicas sign their fetches
        address = str(replicas.servers[leader].address)
        async with ReplicaConnection(address, PeerAccess(credentials=ADMIN)) as connection:
            assert (await connection.status()).role == "leader"
        async with aio.Admin(replicas.name_servers, credentials=ADMIN) as admin:
            consumer = await admin.issue_token("reader", "c")
        for credentials in (None, consumer, Credentials("admin", "another-secret")):
            async with ReplicaConnection(address, PeerAccess(credentials=credentials)) as connection:
                with pytest.raises(SparrowError, match=r"QUERY_REPLICA|PERMISSION"):
                    await connection.status()


@pytest.mark.thorough
async def test_a_broker_with_data_becomes_a_set(etcd: EtcdServer, tmp_path: Path) -> None:
    async with running_set(etcd.url, tmp_path, is_started=False) as replicas:
        settings = BrokerSettings(name=replicas.name, port=0, name_servers=replicas.name_servers)
        async with BrokerServer(settings, tmp_path / "1" / "store", LogSettings(segment_bytes=1 << 20)):
            async with Load(replicas.name_servers) as before:
                await before.more(300)
            running = await replicas.command("init", "--from-data", str(tmp_path / "1"))
            assert running.exit_code == 1, "the broker has it open"
        empty = tmp_path / "empty"
        empty.mkdir()
        refused = await replicas.command("init", "--from-data", str(empty))
        assert "holds no log" in str(refused.error)
        said = await replicas.succeeds("init", "--from-data", str(tmp_path / "1"))
        assert "Replica 1 keeps" in said
        await replicas.start(1, 2, 3)
        await replicas.in_sync(1, 2, 3)
        assert await replicas.leader() == 1
        async with Load(replicas.name_servers) as after:
            await after.more()
        await replicas.succeeds("transfer", "--to", "3")
        await replicas.leader(but=1)
        found = await read_all(replicas.name_servers)
        assert sorted(set(before.acknowledged)) == sorted(set(before.acknowledged) & set(found))
        assert len(found) >= len(before.acknowledged) + len(after.acknowledged)
        assert "have the same log from 0" in await replicas.succeeds("verify")


async def test_a_topic_is_widened_onto_a_second_set_and_the_first_is_drained(etcd: EtcdServer, tmp_path: Path) -> None:
    received: list[bytes] = []

    async def handle(message: object) -> None:
        received.append(message.body)  # type: ignore[attr-defined]

    async with (
        running_set(etcd.url, tmp_path / "a", (1, 2)) as first,
        running_set(etcd.url, tmp_path / "b", (1, 2), name_servers=first.name_servers) as second,
    ):
        servers = first.name_servers
        await first.leader()
        await second.leader()
        async with aio.Admin(servers) as admin, aio.Producer(servers) as producer:
            await admin.create_topic("orders", 4, brokers=[first.name])
            for number in range(20):
                await send_surely(producer, Message("orders", f"a{number}"))
            unknown = await sparrow("cluster", "widen", "orders", "--to", "nowhere", "-n", servers)
            assert "no broker 'nowhere'" in str(unknown.error)
            widened = await sparrow("cluster", "widen", "orders", "--to", second.name, "-n", servers)
            assert widened.exit_code == 0, widened
            again = await sparrow("cluster", "widen", "orders", "--to", second.name, "-n", servers)
            assert "already" in str(again.error)
            route = await admin.route("orders")
            assert {queue.broker_name for queue in route.write_queues} == {first.name, second.name}
            async with aio.Consumer(servers, group="readers") as consumer:
                await consumer.subscribe("orders")
                await consumer.start(handle)
                await eventually(lambda: len(set(received)) == 20, within_s=DEADLINE_S)
            drained = await sparrow("cluster", "drain", first.name, "-n", servers, "--timeout-s", "60")
            assert drained.exit_code == 0, drained
            assert "is empty" in drained.output
            route = await admin.route("orders")
            assert {queue.broker_name for queue in route.write_queues} == {second.name}
        async with aio.Producer(servers) as producer:
            for number in range(20):
                result = await send_surely(producer, Message("orders", f"b{number}"))
                assert result.broker_name == second.name
            waiting = await sparrow("cluster", "drain", second.name, "-n", servers, "--timeout-s", "0")
            assert waiting.exit_code == 3, waiting
            assert "readers " in waiting.output
        undone = await sparrow("cluster", "drain", first.name, "--undo", "-n", servers)
        assert "1 topics" in undone.output
