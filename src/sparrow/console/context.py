"""What the routes of the console share: clusters with their clients, the gatekeeper, and limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Query, Request

from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.produce.producer import Producer
from sparrow.console.audit import AuditTrail
from sparrow.console.bus_client import BusClient
from sparrow.console.masks import Masks
from sparrow.console.pipeline_supervisor import PipelineSupervisor
from sparrow.console.sampler import Sampler
from sparrow.console.security import Gatekeeper
from sparrow.model.access.token import Credentials
from sparrow.model.errors import Busy
from sparrow.operations.errors import NotFound
from sparrow.settings import ConsoleSettings

CONSOLE_GROUP = "sparrow_console"


class ClusterClient:
    """The clients of one cluster."""

    def __init__(
        self, name: str, name_servers: str, settings: ConsoleSettings, credentials: Credentials | None
    ) -> None:
        self.name, self.name_servers = name, name_servers
        self.admin = Admin(name_servers, credentials=credentials)
        self.sampler = Sampler(self.admin, interval_ms=settings.sample_interval_ms, count=settings.sample_count)
        self.audit = AuditTrail(name, self.admin, settings.audit_topic, on_change=self.sampler.invalidate)
        self._producer: Producer | None = None

    async def open(self) -> None:
        """Open the session and start to sample. Brokers need not be up."""
        await self.admin.open()
        self.sampler.start()

    async def close(self) -> None:
        """Close all clients."""
        await self.sampler.stop()
        await self.audit.close()
        if self._producer is not None:
            await self._producer.close()
        await self.admin.close()

    async def producer(self) -> Producer:
        """Return the producer, which is opened when it is used first."""
        if self._producer is None:
            producer = Producer(group=CONSOLE_GROUP, session=self.admin.session)
            await producer.open()
            self._producer = producer
        return self._producer


class ConsoleContext:
    """Everything that routes use; `app.state.console`."""

    def __init__(
        self,
        settings: ConsoleSettings,
        clusters: Mapping[str, str],
        credentials: Credentials | None,
        origins: Mapping[str, str],
    ) -> None:
        """Create the clients, not opened. `origins`: where settings come from, by their full name."""
        self.settings, self.origins = settings, origins
        self.gatekeeper = Gatekeeper(settings)
        self.masks = Masks(settings.masks)
        self.clusters = {
            name: ClusterClient(name, name_servers, settings, credentials) for name, name_servers in clusters.items()
        }
        self.bus = BusClient(settings.bus_database) if settings.bus_database is not None else None
        self.pipelines = (
            PipelineSupervisor(Path(settings.pipelines_folder), name_servers=next(iter(clusters.values())))
            if settings.pipelines_folder is not None
            else None
        )
        self._streams = asyncio.Semaphore(settings.streams_max)

    async def open(self) -> None:
        """Open the clients of all clusters."""
        for cluster in self.clusters.values():
            await cluster.open()

    async def close(self) -> None:
        """Close the clients of all clusters, and stop the pipelines that the console started."""
        if self.pipelines is not None:
            await self.pipelines.close()
        await asyncio.gather(*(cluster.close() for cluster in self.clusters.values()))
        if self.bus is not None:
            await self.bus.close()

    def cluster(self, name: str | None) -> ClusterClient:
        """Return a cluster, or the first one; raise `NotFound` for an unknown name."""
        if name is None:
            return next(iter(self.clusters.values()))
        if name not in self.clusters:
            raise NotFound("cluster", name, f"the console serves {', '.join(self.clusters)}")
        return self.clusters[name]

    def check_streams(self) -> None:
        """Raise `Busy` if all places of event streams are taken."""
        if self._streams.locked():
            raise Busy(f"{self.settings.streams_max} event streams are open")

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[None]:
        """Hold one of the places of event streams, and wait for it if all are taken."""
        async with self._streams:
            yield


def _context(request: Request) -> ConsoleContext:
    context: ConsoleContext = request.app.state.console
    return context


ContextDependency = Annotated[ConsoleContext, Depends(_context)]


def _cluster(
    context: ContextDependency,
    cluster: Annotated[
        str | None, Query(description="Name of the cluster; without it, the first one.", max_length=255)
    ] = None,
) -> ClusterClient:
    return context.cluster(cluster)


ClusterDependency = Annotated[ClusterClient, Depends(_cluster)]
