"""Brokers with replicas in the test's process: a replica set on a real etcd, or a master with slaves."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from tests.support.etcd import EtcdServer
from tests.support.wait import eventually

from sparrow.broker.context import Broker
from sparrow.nameserver.server import NameServer
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.etcd.coordinator import EtcdCoordinator
from sparrow.replication.etcd.gateway import EtcdGateway
from sparrow.replication.identity import make_incarnation
from sparrow.replication.server import ReplicaServer
from sparrow.settings import BrokerSettings, LogSettings, NameServerSettings, NetSettings, ReplicationSettings

DEADLINE_S = 60
LOG = LogSettings(segment_bytes=1 << 20, warm_bytes=0, index_slots=1024, index_entries=4096, queue_file_entries=1000)
_NAMES = itertools.count()


@asynccontextmanager
async def replica_set(
    etcd: EtcdServer,
    path: Path,
    *,
    members: int = 3,
    min_in_sync: int = 2,
    log: LogSettings = LOG,
    lease_s: int = 60,
    leader_busy_delay_ms: float = 0,
    **replication: Any,
) -> AsyncIterator[tuple[str, list[ReplicaServer]]]:
    """Run a name server and a set of brokers; yield the name server's address and the brokers.

    Other keyword arguments are settings of the replication. No leader is busy unless told so.
    """
    name, numbers = f"set-{next(_NAMES)}", tuple(range(1, members + 1))
    gateway = EtcdGateway([etcd.url])
    state = ReplicaSetState(
        set_id=name,
        members=numbers,
        min_in_sync=min_in_sync,
        in_sync={number: make_incarnation() for number in numbers},
    )
    await EtcdCoordinator(gateway, "test", name, 1).initialise(state)
    async with NameServer(NameServerSettings(port=0)) as name_server:
        address = str(name_server.address)
        servers = [
            ReplicaServer(
                BrokerSettings(name=name, port=0, name_servers=address),
                path / str(number),
                log,
                ReplicationSettings(replica_id=number, leader_busy_delay_ms=leader_busy_delay_ms, **replication),
                lambda own, number=number: EtcdCoordinator(  # type: ignore[misc]
                    gateway, "test", name, number, address=own, ttl_s=lease_s
                ),
            )
            for number in numbers
        ]
        async with AsyncExitStack() as running:
            running.push_async_callback(gateway.close)
            for server in servers:
                await running.enter_async_context(server)
            yield address, servers


def fixed_server(
    path: Path,
    name_servers: str,
    *,
    log: LogSettings = LOG,
    admin_token: str = "",
    net: NetSettings | None = None,
    port: int = 0,
    **replication: Any,
) -> ReplicaServer:
    """Return a master or a slave, not started. Other keyword arguments are settings of the replication.

    `admin_token`: requests must be signed, and this is the secret key of the token `admin`.
    """
    tokens = {"admin": SecretStr(admin_token)} if admin_token else {}
    return ReplicaServer(
        BrokerSettings(
            name="pair",
            port=port,
            name_servers=name_servers,
            auth=bool(tokens),
            admin_tokens=tokens,
            net=net or NetSettings(),
        ),
        path,
        log,
        ReplicationSettings(**replication),
    )


async def leader_of(servers: list[ReplicaServer]) -> ReplicaServer:
    """Return the broker that leads, once there is one."""
    await eventually(lambda: any(server.broker is not None for server in servers), within_s=DEADLINE_S)
    (leader,) = [server for server in servers if server.broker is not None]
    return leader


async def leading_broker(server: ReplicaServer) -> Broker:
    """Return the broker of a server, once it leads."""
    await eventually(lambda: server.broker is not None, within_s=DEADLINE_S)
    assert server.broker is not None
    return server.broker


async def equal_logs(servers: list[ReplicaServer]) -> None:
    """Wait until all replicas have, and show, the same log."""
    stores = [server.store for server in servers]
    await eventually(
        lambda: len({store.written for store in stores} | {store.watermark("replicated") for store in stores}) == 1,
        within_s=DEADLINE_S,
    )
