"""Reads from followers: when the leader advises them, what they serve, and what they answer that they do not have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.etcd import EtcdServer, etcd_cluster
from tests.support.platforms import (
    TIMEOUT_MS,
    PullResult,
    encode_properties,
    open_channel,
    pull,
    send,
    subscribe,
    try_send,
)
from tests.support.recording_handlers import RecordingHandler
from tests.support.replica_servers import (
    DEADLINE_S,
    equal_logs,
    fixed_server,
    leader_of,
    leading_broker,
    replica_set,
)
from tests.support.wait import eventually

from sparrow.client.aio import Admin, Consumer
from sparrow.model.queue import Queue
from sparrow.nameserver.server import NameServer
from sparrow.net import Channel
from sparrow.replication import read_advice
from sparrow.replication.server import ReplicaServer
from sparrow.settings import NameServerSettings
from sparrow.wire import bodies, headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import (
    CommitOffset,
    ListConsumers,
    OffsetResponse,
    QueryMessage,
    QueryOffset,
    ViewMessage,
)

AGAIN = ResponseCode.PULL_RETRY_IMMEDIATELY


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_cluster() as (server,):
        yield server


async def fill(name_servers: str, leader: ReplicaServer, servers: list[ReplicaServer], count: int = 10) -> list[bytes]:
    """Send messages, and wait until all replicas show them."""
    texts = [b"%d" % number for number in range(count)]
    async with Admin(name_servers) as admin:
        await admin.create_topic("t", 1)
    async with open_channel(leader.address) as channel:
        for text in texts:
            await send(channel, "t", text)
    await equal_logs(servers)
    for server in servers:
        async with open_channel(server.address) as channel:
            await pulled(channel, code=ResponseCode.SUCCESS)  # a follower learns of the topic within a second
    return texts


async def pulled(channel: Channel, offset: int = 0, *, code: int) -> PullResult:
    """Pull until the answer has this code."""
    async with asyncio.timeout(DEADLINE_S):
        while (answer := await pull(channel, "t", 0, offset)).code != code:
            await asyncio.sleep(0.05)
    return answer


async def test_a_leader_advises_a_follower_that_has_the_messages_if_they_are_not_in_memory_any_more(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    async with replica_set(etcd, tmp_path, memory_read_ratio=0) as (name_servers, servers):
        leader = await leader_of(servers)
        texts = await fill(name_servers, leader, servers)
        others = {server.node.options.replica_id: server for server in servers if server is not leader}
        async with open_channel(leader.address) as channel:
            answer = await pull(channel, "t", 0, 0, count=5)
            advised = answer.header.suggested_broker_id
            assert advised in others
            assert (await pull(channel, "t", 0, len(texts))).header.suggested_broker_id == 0, "nothing was found"
        async with open_channel(others[advised].address) as channel:
            answer = await pull(channel, "t", 0, 5, count=2)
            assert answer.bodies == texts[5:7]
            assert answer.header.suggested_broker_id == advised, "it has more to read here"


@pytest.mark.thorough
async def test_a_leader_advises_nobody_if_reading_from_slaves_is_off_or_the_messages_are_in_memory(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    for number, settings in enumerate(({"slave_read_enable": False, "memory_read_ratio": 0}, {})):
        async with replica_set(etcd, tmp_path / str(number), **settings) as (name_servers, servers):
            leader = await leader_of(servers)
            await fill(name_servers, leader, servers)
            async with open_channel(leader.address) as channel:
                assert (await pull(channel, "t", 0, 0)).header.suggested_broker_id == 0


@pytest.mark.thorough
async def test_a_busy_leader_advises_followers_and_these_keep_their_consumers(
    etcd: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("SAMPLE_S", 0.02), ("WINDOW_S", 0.2), ("HOLD_S", 600.0)):
        monkeypatch.setattr(read_advice, name, seconds)
    # Every timer is later than that.
    async with replica_set(etcd, tmp_path, leader_busy_delay_ms=0.000_001) as (name_servers, servers):
        leader = await leader_of(servers)
        await fill(name_servers, leader, servers)
        followers = {server.node.options.replica_id: server for server in servers if server is not leader}
        async with open_channel(leader.address) as channel, asyncio.timeout(DEADLINE_S):
            while (advised := (await pull(channel, "t", 0, 0)).header.suggested_broker_id) not in followers:
                await asyncio.sleep(0.05)
        async with open_channel(followers[advised].address) as channel, asyncio.timeout(DEADLINE_S):
            while (await pull(channel, "t", 0, 0)).header.suggested_broker_id != advised:
                await asyncio.sleep(0.05)


@pytest.mark.thorough
async def test_only_followers_that_show_what_was_read_are_advised(etcd: EtcdServer, tmp_path: Path) -> None:
    async with replica_set(etcd, tmp_path, memory_read_ratio=0, policy="async") as (name_servers, servers):
        leader = await leader_of(servers)
        await fill(name_servers, leader, servers)
        for server in servers:
            if server is not leader:
                await server.node.steps.hold()  # they copy nothing any more
        async with open_channel(leader.address) as channel:
            at = await send(channel, "t", b"only the leader has this")
            assert (await pull(channel, "t", 0, at.queue_offset)).header.suggested_broker_id == 0
        for server in servers:
            if server is not leader:
                server.node.steps.release()


@pytest.mark.thorough
async def test_a_follower_sends_consumers_back_to_the_leader_for_what_it_does_not_have(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    async with replica_set(etcd, tmp_path) as (name_servers, servers):
        leader = await leader_of(servers)
        texts = await fill(name_servers, leader, servers)
        follower = next(server for server in servers if server is not leader)
        async with open_channel(follower.address) as channel:
            found = await pull(channel, "t", 0, 0)
            assert (found.bodies, found.header.suggested_broker_id) == (texts, 0), "the leader is not busy"
            for offset in (len(texts), len(texts) + 7):
                for long_poll_ms in (0, 30_000):
                    answer = await pull(channel, "t", 0, offset, long_poll_ms=long_poll_ms)
                    assert answer.code == AGAIN, "never 21: it may be behind"
                    assert (answer.header.suggested_broker_id, answer.header.next_offset) == (0, offset)
            unknown = await pull(channel, "no_such_topic", 0, 0)
            assert (unknown.code, unknown.header.suggested_broker_id) == (AGAIN, 0)
            parked = asyncio.create_task(pull(channel, "t", 0, len(texts), long_poll_ms=30_000))
            async with open_channel(leader.address) as leading:
                await send(leading, "t", b"next")
            async with asyncio.timeout(DEADLINE_S):
                answer = await parked
            assert answer.bodies in ([b"next"], []), "it may arrive within the short wait"


async def test_a_consumer_follows_the_advice_to_followers_and_gets_everything_in_order(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    async with replica_set(etcd, tmp_path, memory_read_ratio=0) as (name_servers, servers):
        leader = await leader_of(servers)
        sent = [text.decode() for text in await fill(name_servers, leader, servers, 50)]
        handler = RecordingHandler()
        async with Consumer(name_servers, group="readers", consume_from="first") as consumer:
            await consumer.subscribe("t")
            await consumer.start(handler)
            async with open_channel(leader.address) as channel:
                for number in range(50, 100):
                    sent.append(str(number))
                    await send(channel, "t", sent[-1].encode())
            await eventually(lambda: handler.texts == sent, within_s=DEADLINE_S)
        served = [broker.counters.totals.messages_pulled for server in servers if (broker := server._roles._broker)]
        assert sum(count > 0 for count in served) > 1, "a follower served some of them"


async def test_without_a_leader_a_follower_serves_pulls_queries_and_offsets(tmp_path: Path) -> None:
    queue = Queue("t", 0)
    async with NameServer(NameServerSettings(port=0)) as name_server, AsyncExitStack() as running:
        addresses = str(name_server.address)
        async with fixed_server(tmp_path / "m", addresses, role="async-master") as master:
            await leading_broker(master)
            slave = await running.enter_async_context(
                fixed_server(tmp_path / "s", addresses, role="slave", broker_id=1)
            )
            texts = await fill(addresses, master, [master, slave])
            async with open_channel(master.address) as channel:
                await send(channel, "t", b"with a key", properties=encode_properties(KEYS="needle"))
                await channel.request(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("readers", "t", 0, 7))
            await eventually(lambda: slave.store.offsets.committed_nowait("readers", queue) == 7, within_s=DEADLINE_S)
            await equal_logs([master, slave])
        await eventually(lambda: not slave.node.knows_leader, within_s=DEADLINE_S)
        async with open_channel(slave.address) as channel:
            answer = await pull(channel, "t", 0, 0)
            assert answer.bodies == [*texts, b"with a key"]
            assert answer.header.suggested_broker_id == 1, "there is nobody else"
            parked = asyncio.create_task(pull(channel, "t", 0, len(answer.bodies), long_poll_ms=700))
            key = QueryMessage("t", "needle", messages_max=5, begin_ms=0, end_ms=1 << 60)
            assert (await channel.request(RequestCode.QUERY_MESSAGE, key, timeout_ms=TIMEOUT_MS)).code == 0
            place = ViewMessage(answer.messages[0].physical_offset)
            assert (await channel.request(RequestCode.VIEW_MESSAGE_BY_ID, place, timeout_ms=TIMEOUT_MS)).code == 0
            committed = await channel.request(RequestCode.QUERY_CONSUMER_OFFSET, QueryOffset("readers", "t", 0))
            assert headers.read(OffsetResponse, committed.ext).offset == 7
            refused = await channel.request(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("readers", "t", 0, 9))
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            at_end = await parked
            assert (at_end.code, at_end.header.suggested_broker_id) == (AGAIN, 1)


@pytest.mark.thorough
async def test_a_new_leader_knows_the_members_that_sent_heartbeats_to_it_as_a_follower(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    async with replica_set(etcd, tmp_path) as (name_servers, servers):
        leader = await leader_of(servers)
        await fill(name_servers, leader, servers)
        others = [server for server in servers if server is not leader]
        async with open_channel(others[0].address) as one, open_channel(others[1].address) as two:
            for channel in (one, two):
                await subscribe(channel, "members", t="*")
            await leader.stop()
            new = await leader_of(others)
            channel = one if new is others[0] else two
            answer = await channel.request(
                RequestCode.GET_CONSUMER_LIST_BY_GROUP, ListConsumers("members"), timeout_ms=TIMEOUT_MS
            )
            assert bodies.read(bodies.ConsumerList, answer.body).consumer_id_list == [f"client@{channel.address}"]
        await leader.start()


async def test_routes_name_the_leader_0_and_a_deposed_leader_by_its_id_and_never_go_back(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    async with replica_set(etcd, tmp_path) as (name_servers, servers), Admin(name_servers) as admin:
        leader = await leader_of(servers)
        await fill(name_servers, leader, servers)
        await routed(admin, leader, servers)
        core = leader.node.replica.leader
        assert core is not None
        await leader.node.steps.hold()  # it notices nothing until another one leads
        await leader.coordinator.resign(core.leader_revision)
        new = await leader_of([server for server in servers if server is not leader])
        await routed(admin, new, servers, absent=leader)
        registration = leader._roles._registration
        assert registration is not None
        await registration.register()  # as number 0 of the old epoch
        await routed(admin, new, servers, absent=leader)
        async with open_channel(leader.address) as channel:
            answer = await try_send(channel, "t", b"to the deposed leader")
            assert answer.code in (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SERVICE_NOT_AVAILABLE)
        leader.node.steps.release()
        await routed(admin, new, servers)
        async with open_channel(leader.address) as channel:
            answer = await try_send(channel, "t", b"to a follower")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def routed(
    admin: Admin, leader: ReplicaServer, servers: list[ReplicaServer], absent: ReplicaServer | None = None
) -> None:
    """Wait until the route names the leader 0 and the others by their ids."""
    expected = {
        0 if server is leader else server.node.options.replica_id: str(server.address)
        for server in servers
        if server is not absent
    }
    async with asyncio.timeout(DEADLINE_S):
        while (await admin.route("t")).addresses[leader.settings.name] != expected:
            await asyncio.sleep(0.05)
