"""The blocking `HealthServer`: it answers on the loop thread of the process's clients."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sparrow.client.aio import health_server
from sparrow.client.aio.health_server import DEFAULT_PORT
from sparrow.client.blocking.blocking_client import BlockingClient
from sparrow.model.health import Health
from sparrow.telemetry.metric import MetricSource
from sparrow.telemetry.server import HasHealth


class _ThreadedHealthServer(health_server.HealthServer):
    async def _healths(self) -> list[Health]:
        # In a thread: a blocking client may wait for the loop that runs this.
        return await asyncio.to_thread(lambda: [each.health() for each in self._watched])


class HealthServer(BlockingClient[_ThreadedHealthServer]):
    """An HTTP server for probes of Kubernetes, Docker and the like, and for Prometheus.

    ```python
    with Consumer(group="billing") as consumer, HealthServer(consumer, port=8080):
        ...
    ```
    """

    def __init__(
        self,
        *watched: HasHealth,
        host: str = "0.0.0.0",
        port: int = DEFAULT_PORT,
        metrics: Sequence[MetricSource] = (),
    ) -> None:
        """Create a server for consumers, producers or buses; port 0 is any free one.

        `metrics` are further sources for `/metrics`, such as `sparrow.spark.QueryMetrics`.
        """
        server = _ThreadedHealthServer(*watched, host=host, port=port, metrics=metrics)
        super().__init__(server, what="the health server")

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return self._call(lambda: self._client.port)

    @property
    def address(self) -> str:
        """Host and port, for a log line."""
        return self._call(lambda: self._client.address)
