"""What the commands of `sparrow cluster` share: options, the coordinator of a set, and its running replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from sparrow.cli.settings import load_settings
from sparrow.extras import require
from sparrow.model.errors import Refused, SettingsError, SparrowError
from sparrow.model.tls import default_tls
from sparrow.net.access.peer_access import PeerAccess
from sparrow.replication.core.snapshot import Snapshot
from sparrow.replication.replica_connection import ReplicaConnection, operator_access
from sparrow.settings import Settings
from sparrow.wire.bodies import ReplicaStatus

if TYPE_CHECKING:
    from sparrow.replication.etcd.coordinator import EtcdCoordinator

EtcdOption = Annotated[
    str | None, typer.Option(help="Endpoints of etcd, separated by ';', such as http://etcd-1:2379.", metavar="URLS")
]
NameOption = Annotated[str | None, typer.Option(help="Name of the brokers of the set.")]


class ReplicaSet:
    """A replica set in etcd, as an operator sees it."""

    def __init__(self, settings: Settings, coordinator: EtcdCoordinator, access: PeerAccess) -> None:
        self.settings, self.coordinator, self.access = settings, coordinator, access
        self.cluster, self.name = settings.broker.cluster, settings.broker.name

    async def read(self) -> Snapshot:
        """Return the state of the set; raise `Refused` if it does not exist."""
        snapshot = await self.coordinator.read()
        if snapshot is None:
            raise Refused(
                f"cluster {self.cluster!r} has no replica set {self.name!r}: create it with `sparrow cluster init`, or "
                "correct --name and --etcd"
            )
        return snapshot

    def connect(self, address: str, *, timeout_ms: int = 3000) -> ReplicaConnection:
        """Return a connection to a replica, to be opened."""
        return ReplicaConnection(address, self.access, timeout_ms=timeout_ms)

    async def statuses(self, snapshot: Snapshot) -> dict[int, ReplicaStatus | SparrowError]:
        """Ask every replica whose address is known for its status; return it, or why there is none."""

        async def ask(replica_id: int, address: str) -> tuple[int, ReplicaStatus | SparrowError]:
            try:
                async with self.connect(address, timeout_ms=1000) as replica:
                    return replica_id, await replica.status()
            except SparrowError as error:
                return replica_id, error

        known = {number: at for number, at in snapshot.addresses.items() if number in snapshot.state.members}
        return dict(await asyncio.gather(*(ask(*each) for each in known.items())))


def set_settings(name: str | None, etcd: str | None) -> Settings:
    """Return the settings, with the endpoints of etcd."""
    require("httpx", extra="etcd", for_="sparrow cluster")
    settings = load_settings(name=name, etcd=etcd)
    if not settings.replication.etcd:
        raise SettingsError(
            "replication.etcd", "", "the settings", "the endpoints of etcd: --etcd http://127.0.0.1:2379"
        )
    return settings


@asynccontextmanager
async def open_set(settings: Settings) -> AsyncIterator[ReplicaSet]:
    """Open the replica set that the settings name."""
    from sparrow.replication.etcd.coordinator import EtcdCoordinator
    from sparrow.replication.etcd.gateway import open_gateway

    gateway = open_gateway(settings.replication)
    try:
        coordinator = EtcdCoordinator(gateway, settings.broker.cluster, settings.broker.name, 0)
        yield ReplicaSet(settings, coordinator, operator_access(settings.broker, default_tls()))
    finally:
        await gateway.close()
