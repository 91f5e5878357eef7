"""`sparrow up --replicas`: a name server, an etcd and a replica set on one machine, for trying it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import typer

from sparrow.cli.server.broker_process import announce, supervise
from sparrow.cli.server.console_process import running_console
from sparrow.cli.server.etcd_process import local_etcd
from sparrow.cli.server.first_administrator import administrator_environment
from sparrow.cli.server.output import port_flag, print_name_server
from sparrow.cli.server.platform import guarded_like
from sparrow.cli.server.shards import SHARD_PORT_STEP
from sparrow.client import aio
from sparrow.extras import require
from sparrow.model.errors import Refused, SettingsError
from sparrow.replication.core.member_changes import majority
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.identity import make_incarnation
from sparrow.settings import Settings

_POLL_S = 0.1


async def serve_replicas(settings: Settings, data: Path, replicas: int, stop: asyncio.Event) -> None:
    """Run the name server in this process; etcd and each replica in a process of its own."""
    require("httpx", extra="etcd", for_="sparrow up --replicas")
    from sparrow.nameserver.server import NameServer

    if settings.broker.store is not None:
        raise SettingsError("--store", settings.broker.store, "the command line", "no database with --replicas")
    if any((data / "store" / "commitlog").glob("*")):
        raise Refused(
            f"{data} holds the data of a single broker: choose another --data folder, or make a set of it with "
            f"`sparrow cluster init --from-data {data}`"
        )
    started_s = time.perf_counter()
    async with _etcd(settings, data) as endpoint:
        members = await _members(settings, endpoint, replicas)
        server = NameServer(guarded_like(settings.broker, settings.name_server), kv_path=data / "naming.json")
        with port_flag("--name-server-port"):
            await server.start()
        try:
            print_name_server(str(server.address))
            typer.echo(f"etcd {endpoint}")
            ready = {number: asyncio.Event() for number in members}
            supervisors = [
                asyncio.create_task(
                    supervise(
                        f"replica {number}",
                        _replica_arguments(settings, data, number, str(server.address), endpoint),
                        ready[number],
                        stop,
                        tells_process=True,
                        environment=administrator_environment(settings),
                    )
                )
                for number in members
            ]
            announcement = asyncio.create_task(
                _announce(list(ready.values()), data, started_s, settings, endpoint, str(server.address))
            )
            async with running_console(settings, str(server.address), data):
                await asyncio.gather(*supervisors)
            announcement.cancel()
        finally:
            await server.stop()


@asynccontextmanager
async def _etcd(settings: Settings, data: Path) -> AsyncIterator[str]:
    """Yield the endpoints of etcd: those of the settings, or of one that runs here meanwhile."""
    if settings.replication.etcd:
        yield settings.replication.etcd
        return
    async with local_etcd(data / "etcd") as endpoint:
        yield endpoint


async def _members(settings: Settings, endpoint: str, replicas: int) -> tuple[int, ...]:
    """Return the members of the set; create it if it does not exist."""
    from sparrow.replication.etcd.coordinator import EtcdCoordinator
    from sparrow.replication.etcd.gateway import open_gateway

    gateway = open_gateway(settings.replication.model_copy(update={"etcd": endpoint}))
    try:
        coordinator = EtcdCoordinator(gateway, settings.broker.cluster, settings.broker.name, 0)
        if (snapshot := await coordinator.read()) is not None:
            return snapshot.state.members
        members = tuple(range(1, replicas + 1))
        await coordinator.initialise(
            ReplicaSetState(
                set_id=make_incarnation(),
                members=members,
                min_in_sync=majority(replicas),
                in_sync={number: make_incarnation() for number in members},
            )
        )
        return members
    finally:
        await gateway.close()


def _replica_arguments(settings: Settings, data: Path, number: int, name_servers: str, endpoint: str) -> list[str]:
    broker = settings.broker
    port = broker.port + SHARD_PORT_STEP * (number - 1) if broker.port else 0
    arguments = ["--name", broker.name, "--replica", str(number), "--etcd", endpoint, "--host", broker.host]
    arguments += ["--port", str(port), "--name-servers", name_servers, "--data", str(data / f"replica-{number}")]
    arguments += ["--flush", settings.log.flush]
    if broker.advertised_host:
        arguments += ["--advertised-host", broker.advertised_host]
    return arguments


async def _announce(
    ready: list[asyncio.Event], data: Path, started_s: float, settings: Settings, endpoint: str, name_servers: str
) -> None:
    for event in ready:
        await event.wait()
    await _wait_for_leader(name_servers, settings.broker.name)
    typer.echo(f"Look at it: sparrow cluster status --watch --name {settings.broker.name} --etcd {endpoint}")
    await announce([], data, started_s, None)


async def _wait_for_leader(name_servers: str, name: str) -> None:
    """Wait until the name server knows the leader: clients can send then."""
    async with aio.Admin(name_servers) as admin:
        while True:
            if any(name in cluster.masters for cluster in (await admin.clusters()).values()):
                return
            await asyncio.sleep(_POLL_S)
