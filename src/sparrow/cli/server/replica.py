"""A broker with replicas, as `sparrow broker --replica` and `sparrow broker --role` run it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sparrow.cli import lifecycle
from sparrow.cli.server.output import port_flag, print_broker, print_ready
from sparrow.cli.server.telemetry_endpoint import print_metrics, telemetry_endpoint
from sparrow.extras import require
from sparrow.model.errors import SettingsError
from sparrow.settings import Settings

if TYPE_CHECKING:  # loaded when a replica is started
    from sparrow.replication.coordinator import Coordinator


async def serve_replica(
    settings: Settings, data: Path, stop: asyncio.Event, *, stop_on_stdin_eof: bool = False
) -> None:
    """Run one replica until the event is set."""
    from sparrow.replication.metrics import ReplicaMetrics
    from sparrow.replication.server import ReplicaServer

    broker, replication = settings.broker, settings.replication
    if broker.store is not None:
        raise SettingsError("broker.store", broker.store, "the settings", "no database: its brokers need no replicas")
    started_s = time.perf_counter()
    if stop_on_stdin_eof:
        lifecycle.stop_on_stdin_eof(stop)
    async with _coordinator(settings) as coordinator:
        server = ReplicaServer(broker, data / "store", settings.log, replication, coordinator)
        with port_flag("--port"):
            await server.start()
        try:
            metrics = ReplicaMetrics(server, settings.telemetry)
            async with telemetry_endpoint(settings.telemetry, [metrics]) as endpoint:
                print_broker(f"{broker.name}, {_role(settings)}", str(server.address))
                print_metrics(endpoint)
                print_ready(data, started_s)
                await stop.wait()
            await metrics.stop()
        finally:
            await server.stop()


def _role(settings: Settings) -> str:
    replication = settings.replication
    if replication.role == "replica":
        return f"replica {replication.replica_id}"
    return f"slave {replication.broker_id}" if replication.role == "slave" else replication.role


@asynccontextmanager
async def _coordinator(settings: Settings) -> AsyncIterator[Callable[[str], Coordinator] | None]:
    """Yield what makes the coordinator of a replica set; None for masters and slaves, which need none."""
    broker, replication = settings.broker, settings.replication
    if replication.role != "replica":
        if replication.etcd:
            raise SettingsError(
                "replication.role", replication.role, "the settings", "no role with etcd: its replicas elect a leader"
            )
        yield None
        return
    require("httpx", extra="etcd", for_="replica sets")
    from sparrow.replication.etcd.coordinator import EtcdCoordinator
    from sparrow.replication.etcd.gateway import open_gateway

    if not replication.replica_id:
        raise SettingsError("replication.replica_id", 0, "the settings", "the number of this replica: --replica 1")
    gateway = open_gateway(replication)
    try:
        yield lambda address: EtcdCoordinator(
            gateway, broker.cluster, broker.name, replication.replica_id, address=address, ttl_s=replication.lease_s
        )
    finally:
        await gateway.close()
