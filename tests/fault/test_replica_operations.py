"""Operating replica sets in trouble: rolling restarts under load, lost replicas, a lost etcd."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.etcd import EtcdServer, etcd_cluster
from tests.support.replica_sets import DEADLINE_S, Load, read_all, running_set

FULL_ONLY = pytest.mark.skipif(os.environ.get("SPARROW_SCALE", "smoke") == "smoke", reason="`make fault` runs it")
ROUNDS = {"smoke": 1}.get(os.environ.get("SPARROW_SCALE", "smoke"), 5)


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_cluster() as (server,):
        yield server


@pytest.mark.thorough
async def test_a_rolling_restart_loses_nothing(etcd: EtcdServer, tmp_path: Path) -> None:
    """Each replica hands over or leaves before it stops, so that sends hardly wait."""
    pauses_ms: list[float] = []
    async with running_set(etcd.url, tmp_path) as replicas:
        async with Load(replicas.name_servers) as load:
            await load.more()
            for number in (1, 2, 3) * ROUNDS:
                await replicas.leader()
                await replicas.in_sync(1, 2, 3)
                load.times.clear()
                await load.more(10)
                await replicas.stop(number)
                assert number not in (await replicas.state()).state.in_sync, "nobody waits for it"
                await load.more(20)
                pauses_ms.append(load.longest_pause_ms)
                await replicas.start(number)
            await replicas.in_sync(1, 2, 3)
            await load.more(10)
        found = await read_all(replicas.name_servers)
        assert "have the same log" in await replicas.succeeds("verify")
    print("longest pauses of sends, ms:", [round(pause) for pause in pauses_ms])
    assert set(load.acknowledged) <= set(found)
    assert max(pauses_ms) < 1000 * DEADLINE_S / 4


@FULL_ONLY
async def test_replicas_of_a_lost_set_lead_only_when_the_loss_is_accepted(etcd: EtcdServer, tmp_path: Path) -> None:
    async with running_set(etcd.url, tmp_path) as replicas:
        async with Load(replicas.name_servers) as load:
            await load.more()
            leader = await replicas.leader()
            await replicas.in_sync(1, 2, 3)
            behind, lost = sorted({1, 2, 3} - {leader})
            await replicas.stop(behind)
            await replicas.in_sync(leader, lost)
            await load.more()
        # Both replicas with everything are gone for good.
        for server in [replicas.servers.pop(number) for number in (leader, lost)]:
            server.node.replica.leader = server.node.replica.follower = None  # as killed processes, which tell nobody
            await server.stop()
        await replicas.start(behind)
        async with asyncio.timeout(DEADLINE_S):
            while (await replicas.state()).leader is not None:
                await asyncio.sleep(0.1)
        status = await replicas.status()
        assert status.replicas[behind].role == "candidate"
        assert behind not in status.in_sync
        await replicas.succeeds("accept-loss", "--replica", str(behind), "--yes")
        await replicas.succeeds("min", "1", "--force")
        assert await replicas.leader() == behind
        refused = await replicas.command("accept-loss", "--replica", str(behind), "--yes")
        assert "nothing needs to be lost" in str(refused.error)
        # One of the others is found again: it cuts what the new leader does not have.
        await replicas.start(lost)
        await replicas.in_sync(behind, lost)
        assert "have the same log" in await replicas.succeeds("verify", "--replicas", f"{behind},{lost}")


@FULL_ONLY
async def test_a_set_whose_etcd_is_lost_goes_on_with_the_data_of_a_replica(tmp_path: Path) -> None:
    with etcd_cluster() as (lost,):
        async with running_set(lost.url, tmp_path) as replicas:
            async with Load(replicas.name_servers) as load:
                await load.more()
            await replicas.in_sync(1, 2, 3)
            oldest, newest = sorted({1, 2, 3} - {await replicas.leader()})
            await replicas.stop(oldest)
            await replicas.stop(*({1, 2, 3} - {oldest, newest}))
            leader = newest
    with etcd_cluster() as (new,):
        async with running_set(new.url, tmp_path, is_started=False) as replicas:
            wrong = leader % 3 + 1
            refused = await replicas.command(
                "init", "--from-data", str(tmp_path / str(leader)), "--replica", str(wrong)
            )
            assert f"holds replica {leader}" in str(refused.error)
            await replicas.succeeds("init", "--from-data", str(tmp_path / str(leader)), "--replica", str(leader))
            await replicas.start(1, 2, 3)
            await replicas.in_sync(1, 2, 3)
            await replicas.leader()
            assert set(load.acknowledged) <= set(await read_all(replicas.name_servers))
            assert "have the same log" in await replicas.succeeds("verify")


@FULL_ONLY
async def test_the_last_replica_goes_on_when_the_operator_says_so(etcd: EtcdServer, tmp_path: Path) -> None:
    async with running_set(etcd.url, tmp_path) as operated:
        await operated.in_sync(1, 2, 3)
        leader = await operated.leader()
        async with Load(operated.name_servers) as load:
            await load.more()
            await operated.stop(*({1, 2, 3} - {leader}))
            await operated.in_sync(leader)
            assert not (await operated.status()).is_serving
            await operated.succeeds("min", "1")
            await load.more()
            await operated.start(*({1, 2, 3} - {leader}))
            await operated.in_sync(1, 2, 3)
            assert "2 must be in sync" in await operated.succeeds("min", "majority")
            await load.more()
