"""`TelemetryServer`: health checks and metrics of a process over HTTP.

| Path | Answer |
| --- | --- |
| `/livez`, `/live` | 200 as long as the event loop runs |
| `/readyz`, `/healthz`, `/ready` | 200 if everything that is watched is ok, otherwise 503 |
| `/metrics` | the metrics, for Prometheus |
| `/version` | the version of Sparrow and of Python |
"""

from __future__ import annotations

import asyncio
import platform
import ssl
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Protocol, Self

import msgspec

from sparrow.model.health import Health
from sparrow.telemetry.exposition import OPEN_METRICS_TYPE, PROMETHEUS_TYPE, metrics_text, wants_open_metrics
from sparrow.telemetry.http_endpoint import HttpEndpoint, HttpRequest, HttpResponse
from sparrow.telemetry.metric import Family, MetricSource, PreparedMetricSource
from sparrow.telemetry.version import sparrow_version

_HEALTH_TIMEOUT_S = 1.0


class HasHealth(Protocol):
    """A broker, a name server, a consumer, a producer or a bus."""

    def health(self) -> Health:
        """Return whether it can do its work, and what hinders it."""
        ...


class TelemetryServer:
    """An HTTP endpoint with the health and the metrics of what runs in this process."""

    def __init__(
        self,
        watched: Sequence[HasHealth],
        sources: Sequence[MetricSource] = (),
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Create a server; port 0 is any free one. With `tls` it answers over HTTPS."""
        self._watched, self._sources = watched, sources
        self._scraping = asyncio.Lock()
        health = {"/livez": self._live, "/readyz": self._ready, "/healthz": self._ready}
        old_names = {"/live": self._live, "/ready": self._ready}
        routes = {**health, "/metrics": self._metrics, "/version": self._version_info, **old_names}
        self._endpoint = HttpEndpoint(routes, host=host, port=port, tls=tls)

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return self._endpoint.port

    @property
    def address(self) -> str:
        """Host and port, for a log line."""
        return self._endpoint.address

    @property
    def url(self) -> str:
        """Its address, such as `http://127.0.0.1:5557`."""
        return self._endpoint.url

    async def open(self) -> None:
        """Start to listen; raise `CannotListen` if the port is taken."""
        await self._endpoint.open()

    async def close(self) -> None:
        """Stop listening."""
        await self._endpoint.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- paths --------------------------------------------------------------------------------------------------------

    async def _live(self, _request: HttpRequest) -> HttpResponse:
        return HttpResponse.json({"live": True})

    async def _ready(self, _request: HttpRequest) -> HttpResponse:
        try:
            async with asyncio.timeout(_HEALTH_TIMEOUT_S):
                healths = await self._healths()
        except TimeoutError:
            return HttpResponse.json({"ready": False, "findings": []}, HTTPStatus.SERVICE_UNAVAILABLE)
        is_ready = all(health.ok for health in healths)
        findings = [msgspec.to_builtins(finding) for health in healths for finding in health.findings]
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return HttpResponse.json({"ready": is_ready, "findings": findings}, status)

    async def _healths(self) -> list[Health]:
        return [each.health() for each in self._watched]

    async def _version_info(self, _request: HttpRequest) -> HttpResponse:
        return HttpResponse.json({"version": sparrow_version(), "python": platform.python_version()})

    async def _metrics(self, request: HttpRequest) -> HttpResponse:
        async with self._scraping:  # two scrapers one after the other
            for source in self._sources:
                if isinstance(source, PreparedMetricSource):
                    await source.prepare()
            is_open_metrics = wants_open_metrics(request.headers.get("accept", ""))
            text = await metrics_text(self._families(), open_metrics=is_open_metrics)
        return HttpResponse(text.encode(), OPEN_METRICS_TYPE if is_open_metrics else PROMETHEUS_TYPE)

    def _families(self) -> Iterator[Family]:
        for source in self._sources:
            yield from source.families()
