"""What a replica set tells the sender of a message, and what consumers see, under each policy and each fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.etcd import EtcdServer, etcd_cluster
from tests.support.platforms import encode_properties, open_channel, pull, send, try_send
from tests.support.replica_servers import DEADLINE_S, leader_of, replica_set
from tests.support.wait import eventually

from sparrow.net import Channel
from sparrow.replication.server import ReplicaServer
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import EndTransaction
from sparrow.wire.record import TRANSACTION_COMMITTED

LATE_MS = 2_000
"""Long enough for followers on a busy machine."""
HANGS_MS = 600_000
"""Longer than any test: a follower that hangs stays in the in-sync set."""


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_cluster() as (server,):
        yield server


@asynccontextmanager
async def hanging(servers: list[ReplicaServer]) -> AsyncIterator[None]:
    """Let replicas take no step: they neither copy nor acknowledge."""
    for server in servers:
        await server.node.steps.hold()
    try:
        yield
    finally:
        for server in servers:
            server.node.steps.release()


@asynccontextmanager
async def leading_channel(servers: list[ReplicaServer]) -> AsyncIterator[tuple[ReplicaServer, Channel]]:
    """Yield the leader with a connection to it, when all replicas are in sync and the topic `t` exists."""
    leader = await leader_of(servers)
    async with open_channel(leader.address) as channel:
        async with asyncio.timeout(DEADLINE_S):
            while (await try_send(channel, "t", b"first")).code != ResponseCode.SUCCESS:
                await asyncio.sleep(0.05)
        assert await visible(channel) == [b"first"]  # and the group exists
        yield leader, channel


def followers(servers: list[ReplicaServer], leader: ReplicaServer) -> list[ReplicaServer]:
    return [server for server in servers if server is not leader]


async def visible(channel: Channel) -> list[bytes]:
    return (await pull(channel, "t", 0, 0)).bodies


async def test_quorum_answers_a_timeout_while_followers_hang_and_shows_the_message_only_when_it_is_committed(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    settings = {"lag_ms": HANGS_MS, "acknowledge_timeout_ms": LATE_MS}
    async with replica_set(etcd, tmp_path, **settings) as (_, servers), leading_channel(servers) as (leader, channel):
        async with hanging(followers(servers, leader)):
            late = await try_send(channel, "t", b"late")
            unawaited = await try_send(channel, "t", b"no wait", properties=encode_properties(WAIT="false"))
            assert (late.code, unawaited.code) == (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SUCCESS)
            assert await visible(channel) == [b"first"]
        async with asyncio.timeout(DEADLINE_S):
            while await visible(channel) != [b"first", b"late", b"no wait"]:
                await asyncio.sleep(0.02)


async def test_quorum_refuses_before_it_writes_while_too_few_replicas_are_in_sync(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    async with replica_set(etcd, tmp_path) as (_, servers), leading_channel(servers) as (leader, channel):
        half = await send(channel, "t", b"half", 0, encode_properties(TRAN_MSG="true", PGROUP="p"), sys_flag=4)
        commit = EndTransaction("p", half.queue_offset, int(half.message_id[-16:], 16), TRANSACTION_COMMITTED, "id")
        async with hanging(followers(servers, leader)):
            await eventually(lambda: not leader.node.replica.is_leading, within_s=DEADLINE_S)
            written = leader.store.written
            refused = await try_send(channel, "t", b"refused")
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "too few replicas" in (refused.remark or "")
            not_ended = await channel.request(RequestCode.END_TRANSACTION, commit, timeout_ms=10_000)
            assert not_ended.code == ResponseCode.SERVICE_NOT_AVAILABLE, "1 would mean that it can never be ended"
            assert leader.store.written == written


async def test_a_send_that_waits_when_leadership_is_lost_is_answered_with_14(etcd: EtcdServer, tmp_path: Path) -> None:
    settings = {"lag_ms": HANGS_MS, "acknowledge_timeout_ms": HANGS_MS}
    async with replica_set(etcd, tmp_path, **settings) as (_, servers), leading_channel(servers) as (leader, channel):
        async with hanging(followers(servers, leader)):
            waiting = asyncio.create_task(try_send(channel, "t", b"unknown"))
            await eventually(lambda: leader.store.written > leader.store.watermark("replicated"), within_s=DEADLINE_S)
            core = leader.node.replica.leader
            assert core is not None
            await leader.coordinator.resign(core.leader_revision)
            async with asyncio.timeout(DEADLINE_S):
                answer = await waiting
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "unknown" in (answer.remark or "")


async def test_sync_waits_for_one_follower_and_says_when_there_is_none(etcd: EtcdServer, tmp_path: Path) -> None:
    settings = {"policy": "sync", "acknowledge_timeout_ms": LATE_MS}
    async with replica_set(etcd, tmp_path, **settings) as (_, servers), leading_channel(servers) as (leader, channel):
        one, other = followers(servers, leader)
        async with hanging([one]):
            await send(channel, "t", b"one follower is enough")
            async with hanging([other]):
                assert (await try_send(channel, "t", b"late")).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
                await eventually(lambda: not leader.node.followers_with(0), within_s=DEADLINE_S)
                alone = await try_send(channel, "t", b"alone")
                assert alone.code == ResponseCode.SLAVE_NOT_AVAILABLE
                assert await visible(channel) == [b"first", b"one follower is enough", b"late", b"alone"]


async def test_async_acknowledges_and_shows_what_only_the_leader_has(etcd: EtcdServer, tmp_path: Path) -> None:
    async with (
        replica_set(etcd, tmp_path, policy="async") as (_, servers),
        leading_channel(servers) as (leader, channel),
    ):
        async with hanging(followers(servers, leader)):
            await eventually(lambda: not leader.node.replica.is_leading, within_s=DEADLINE_S)
            await send(channel, "t", b"only here")
            assert await visible(channel) == [b"first", b"only here"]
            assert leader.store.watermark("replicated") < leader.store.written


@pytest.mark.thorough
async def test_async_refuses_sends_when_the_lease_cannot_be_renewed(tmp_path: Path) -> None:
    with etcd_cluster() as (etcd,):
        async with (
            replica_set(etcd, tmp_path, policy="async", lease_s=2) as (_, servers),
            leading_channel(servers) as (leader, channel),
        ):
            etcd.kill()
            async with asyncio.timeout(DEADLINE_S):
                while (answer := await try_send(channel, "t", b"x")).code == ResponseCode.SUCCESS:
                    await asyncio.sleep(0.05)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert leader.broker is not None
            etcd.start()
