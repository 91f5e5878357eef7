"""Replica sets as processes with real etcd members: each replica reaches etcd through a link that a test can cut."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.databases import _free_port
from tests.support.etcd import EtcdServer
from tests.support.link_proxy import LinkProxy
from tests.support.server_processes import ENVIRONMENT
from tests.support.wait import eventually

from sparrow import aio
from sparrow.model.errors import SparrowError
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.snapshot import Snapshot
from sparrow.replication.etcd.coordinator import EtcdCoordinator
from sparrow.replication.etcd.gateway import EtcdGateway
from sparrow.replication.identity import make_incarnation

CLUSTER = "DefaultCluster"


class ReplicaProcess:
    """One `sparrow broker --replica`, restarted on the same port and directory."""

    def __init__(
        self, folder: Path, words: list[str], replica_id: int, links: list[LinkProxy], environment: dict[str, str]
    ) -> None:
        self.replica_id, self.links, self.port, self._environment = replica_id, links, _free_port(), environment
        self.data, self.log = folder / f"r{replica_id}", folder / f"r{replica_id}.log"
        etcd = ";".join(f"http://127.0.0.1:{link.port}" for link in links)
        place = ["--replica", str(replica_id), "--etcd", etcd, "--port", str(self.port), "--data", str(self.data)]
        self._command = [sys.executable, "-m", "sparrow", "broker", *words, *place]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def start_again(self) -> None:
        """Start the process if it has ended by itself, as a service manager does."""
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def check_is_running(self) -> None:
        """Fail if the process has ended by itself."""
        if self._process is not None:
            assert self._process.poll() is None, (
                f"replica {self.replica_id} has ended with {self._process.returncode}: see {self.log}"
            )

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the process, and wait until it is gone."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            await asyncio.to_thread(self._process.wait)


class ReplicaSetProcesses:
    """A name server and three replicas."""

    def __init__(self, name: str, name_servers: str, gateway: EtcdGateway, replicas: list[ReplicaProcess]) -> None:
        self.name, self.name_servers = name, name_servers
        self.replicas = {replica.replica_id: replica for replica in replicas}
        self._coordinator = EtcdCoordinator(gateway, CLUSTER, name, 1)

    async def snapshot(self) -> Snapshot | None:
        """Return what etcd knows; None while it has no leader itself."""
        try:
            return await self._coordinator.read()
        except SparrowError:
            return None

    async def leader(self, *, but: ReplicaProcess | None = None, within_s: float = 120) -> ReplicaProcess:
        """Wait until a replica, another one than `but`, holds the leader key."""
        async with asyncio.timeout(within_s):
            while True:
                found = await self.snapshot()
                if found is not None and found.leader is not None:
                    replica = self.replicas[found.leader.replica_id]
                    if replica is not but:
                        return replica
                await asyncio.sleep(0.05)

    async def create_topics(self, queues: Mapping[str, int], within_s: float = 120) -> None:
        """Create topics with so many queues each, once the leader has registered."""
        async with aio.Admin(self.name_servers) as admin, asyncio.timeout(within_s):
            for topic, count in queues.items():
                while True:
                    try:
                        await admin.create_topic(topic, count)
                        break
                    except SparrowError:
                        await asyncio.sleep(0.05)

    async def wait_in_sync(self, within_s: float = 180) -> None:
        """Wait until all replicas are in sync."""
        async with asyncio.timeout(within_s):
            while True:
                found = await self.snapshot()
                if found is not None and found.leader is not None and len(found.state.in_sync) == len(self.replicas):
                    return
                for replica in self.replicas.values():
                    replica.check_is_running()
                await asyncio.sleep(0.1)

    async def wait_out_of_sync(self, replica_id: int, within_s: float = 120) -> None:
        """Wait until a replica has left the in-sync set."""
        async with asyncio.timeout(within_s):
            while (found := await self.snapshot()) is None or replica_id in found.state.in_sync:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def replica_set_processes(
    etcd: list[EtcdServer], folder: Path, name: str, *words: str, **settings: object
) -> AsyncIterator[ReplicaSetProcesses]:
    """Run a new set of three.

    `words`: more arguments of each broker. The settings have names such as `broker__queue_lock_ms`.
    """
    environment = ENVIRONMENT | {f"SPARROW_{key.upper()}": str(value) for key, value in settings.items()}
    async with AsyncExitStack() as stack:
        gateway = EtcdGateway([server.url for server in etcd])
        stack.push_async_callback(gateway.close)
        state = ReplicaSetState(
            set_id=make_incarnation(),
            members=(1, 2, 3),
            min_in_sync=2,
            in_sync={number: make_incarnation() for number in (1, 2, 3)},
        )
        await EtcdCoordinator(gateway, CLUSTER, name, 1).initialise(state)
        port = _free_port()
        name_server = subprocess.Popen(
            [sys.executable, "-m", "sparrow", "name-server", "--port", str(port), "--data", str(folder / "ns")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ,
        )
        stack.callback(name_server.wait)
        stack.callback(name_server.kill)
        name_servers = f"127.0.0.1:{port}"
        shared = ["--name", name, "--name-servers", name_servers, *words]
        replicas = []
        for number in (1, 2, 3):
            links = [await stack.enter_async_context(LinkProxy(int(server.url.rpartition(":")[2]))) for server in etcd]
            replicas.append(ReplicaProcess(folder, shared, number, links, environment))
            stack.push_async_callback(replicas[-1].end)
            replicas[-1].start()
        processes = ReplicaSetProcesses(name, name_servers, gateway, replicas)
        await eventually(lambda: all(replica.data.exists() for replica in replicas), within_s=120)
        await processes.leader()
        yield processes
