"""Replica sets in the REST API, with a real replica set on a real etcd: status, plan, hand-over, audit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.consoles import running_console
from tests.support.etcd import EtcdServer, etcd_cluster
from tests.support.replica_servers import DEADLINE_S, equal_logs, fixed_server, leader_of, leading_broker, replica_set
from tests.support.wait import eventually

from sparrow.nameserver.server import NameServer
from sparrow.settings import NameServerSettings
from sparrow.testing.platform import run_platform

V1 = "/api/v1"


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_cluster() as (server,):
        yield server


async def call(client: httpx.Client, method: str, path: str, status: int = 200, **how: Any) -> Any:
    """Return the JSON of an answer; the console needs this test's loop meanwhile, for the brokers run on it."""
    answer = await asyncio.to_thread(client.request, method, V1 + path, **how)
    assert answer.status_code == status, answer.text
    return answer.json()


async def fetch_whole_set(client: httpx.Client, name: str) -> Any:
    """Return a set once all its replicas are in sync and nobody lags."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await call(client, "GET", f"/replica-sets/{name}")
            lags = [replica["lag_bytes"] for replica in found["replicas"] if replica["role"] == "follower"]
            if found["in_sync"] == [1, 2, 3] and lags == ["0", "0"]:
                return found


@pytest.mark.thorough
async def test_a_hand_over_follows_its_plan_and_is_audited(etcd: EtcdServer, tmp_path: Path) -> None:
    async with replica_set(etcd, tmp_path, lag_ms=60_000) as (name_servers, servers):
        leader = await leader_of(servers)
        name, first = leader.settings.name, leader.node.options.replica_id
        with running_console(name_servers) as client:
            assert [each["name"] for each in await call(client, "GET", "/replica-sets")] == [name]
            found = await fetch_whole_set(client, name)
            assert (found["leader"], found["is_serving"]) == (first, True)
            assert (found["min_in_sync"], found["is_fixed"]) == (2, False)
            roles = {replica["replica_id"]: replica["role"] for replica in found["replicas"]}
            assert sorted(roles.values()) == ["follower", "follower", "leader"]
            assert roles[first] == "leader"
            assert all(int(replica["end"]) >= int(replica["high_watermark"]) > 0 for replica in found["replicas"])

            path, to = f"/replica-sets/{name}/transfer", 1 + first % 3
            already = await call(client, "POST", path, 422, json={"to": first}, params={"dry_run": True})
            assert "leads already" in already["detail"]
            plan = await call(client, "POST", path, json={"to": to}, params={"dry_run": True})
            assert (plan["leader"], plan["successor"], plan["dry_run"]) == (first, to, True)
            assert leader.node.is_leading
            await call(client, "POST", path, 409, json={"to": to})
            done = await call(client, "POST", path, json={"to": to}, params={"plan": plan["hash"]})
            assert (done["leader"], done["successor"]) == (first, to)
            assert done["epoch"] > plan["epoch"]
            await leading_broker(servers[to - 1])
            await call(client, "POST", path, 409, json={"to": first}, params={"plan": plan["hash"]})

            async def is_audited() -> bool:
                lines = (await call(client, "GET", "/audit"))["lines"]
                return any((line["action"], line["result"]) == ("replica_set.transfer", "done") for line in lines)

            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            while not await is_audited():  # written once the new leader takes sends
                assert asyncio.get_running_loop().time() < deadline
            await call(client, "GET", "/replica-sets/nothing", 404)


async def test_a_replica_that_stopped_is_shown_as_away(etcd: EtcdServer, tmp_path: Path) -> None:
    async with replica_set(etcd, tmp_path, lag_ms=60_000) as (name_servers, servers):
        leader = await leader_of(servers)
        await equal_logs(servers)
        gone = next(server for server in servers if server is not leader)
        number = gone.node.options.replica_id
        await gone.stop()
        try:
            with running_console(name_servers) as client:
                found = await call(client, "GET", f"/replica-sets/{leader.settings.name}")
                away = next(replica for replica in found["replicas"] if replica["replica_id"] == number)
                assert (away["role"], away["is_in_sync"], away["end"]) == ("away", False, None)
                assert found["is_serving"]
                path = f"/replica-sets/{leader.settings.name}/transfer"
                refused = await call(client, "POST", path, 422, json={"to": number}, params={"dry_run": True})
                assert "not an in-sync follower" in refused["detail"]
        finally:
            await gone.start()


async def test_a_master_and_its_slave_are_shown_and_do_not_hand_over(tmp_path: Path) -> None:
    async with NameServer(NameServerSettings(port=0)) as name_server:
        addresses = str(name_server.address)
        async with fixed_server(tmp_path / "m", addresses, role="async-master") as master:
            await leading_broker(master)
            async with fixed_server(tmp_path / "s", addresses, role="slave", broker_id=1) as slave:
                await equal_logs([master, slave])
                await eventually(lambda: slave.node.replica.follower is not None, within_s=DEADLINE_S)
                with running_console(addresses) as client:
                    (found,) = await call(client, "GET", "/replica-sets")
                    assert (found["is_fixed"], found["leader"]) == (True, 0)
                    assert [replica["replica_id"] for replica in found["replicas"]] == [0, 1]
                    path = f"/replica-sets/{found['name']}/transfer"
                    refused = await call(client, "POST", path, 422, json={}, params={"dry_run": True})
                    assert "fixed" in refused["detail"]


def test_a_broker_without_replicas_belongs_to_no_set(tmp_path: Path) -> None:
    with run_platform(tmp_path) as platform, running_console(platform.name_servers) as client:
        assert client.get(f"{V1}/replica-sets").json() == []
        assert client.get(f"{V1}/replica-sets/sparrow").status_code == 404
