"""`HealthServer`: answers the probes of a container platform over HTTP, and Prometheus.

| Request | Answer |
| --- | --- |
| `GET /livez`, `/live` | 200 as long as the event loop runs |
| `GET /readyz`, `/healthz`, `/ready` | 200 if all that is watched is ok, else 503; the findings as JSON in both cases |
| `GET /metrics` | the metrics of the process and of each bus that is watched |
| `GET /version` | the versions of Sparrow and Python |
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrow.telemetry.metric import MetricSource
from sparrow.telemetry.process import ProcessMetrics
from sparrow.telemetry.server import HasHealth, TelemetryServer

DEFAULT_PORT = 8080


class HealthServer(TelemetryServer):
    """An HTTP server on the running event loop, for probes of Kubernetes, Docker and the like, and for Prometheus.

    ```python
    async with Consumer(group="billing") as consumer, HealthServer(consumer, port=8080):
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
        self._process = ProcessMetrics()
        measured = [source for each in watched if (source := getattr(each, "metric_source", None)) is not None]
        super().__init__(
            watched,
            [*measured, *metrics, self._process],
            host=host,
            port=port,
        )

    async def open(self) -> None:
        """Start to listen; raise `CannotListen` if the port is taken."""
        await super().open()
        self._process.start()

    async def close(self) -> None:
        """Stop listening."""
        self._process.stop()
        await super().close()
