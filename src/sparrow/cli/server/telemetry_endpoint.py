"""The HTTP endpoint of a server process: metrics and health of its broker, its name server and the process itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import typer

from sparrow.cli.server.output import port_flag
from sparrow.model.errors import CannotListen
from sparrow.model.health import Health
from sparrow.net.access.tls import http_context
from sparrow.settings import TelemetrySettings
from sparrow.telemetry.metric import MetricSource
from sparrow.telemetry.process import ProcessMetrics
from sparrow.telemetry.server import TelemetryServer

DEFAULT_METRICS_PORT = 5557
"""RocketMQ's port of `/metrics`."""


class MeasuredServer(Protocol):
    """A broker or a name server."""

    def health(self) -> Health:
        """Return whether it serves, and what hinders it."""
        ...

    @property
    def metrics(self) -> MetricSource | None:
        """Its metrics, if it has any."""
        ...


@asynccontextmanager
async def telemetry_endpoint(
    settings: TelemetrySettings,
    servers: Sequence[MeasuredServer],
    *,
    preferred_port: int | None = None,
) -> AsyncIterator[TelemetryServer | None]:
    """Serve metrics and health during the block.

    Without `metrics_port` in the settings: at `preferred_port`, or at a free port if that is taken; None: not at all.
    """
    port = settings.metrics_port if settings.metrics_port is not None else preferred_port
    if port is None:
        yield None
        return
    tls = http_context(settings)
    process = ProcessMetrics()
    sources: list[MetricSource] = [server.metrics for server in servers if server.metrics is not None]

    def make(port: int) -> TelemetryServer:
        return TelemetryServer(
            servers,
            [*sources, process],
            host=settings.metrics_host,
            port=port,
            tls=tls,
        )

    endpoint = make(port)
    try:
        await endpoint.open()
    except CannotListen:
        if settings.metrics_port is not None:
            with port_flag("--metrics-port"):
                raise
        endpoint = make(0)
        await endpoint.open()
    process.start()
    try:
        yield endpoint
    finally:
        process.stop()
        await endpoint.close()


def print_metrics(endpoint: TelemetryServer | None) -> None:
    """Print the address of the metrics."""
    if endpoint is not None:
        typer.echo(f"metrics {endpoint.url}/metrics")
