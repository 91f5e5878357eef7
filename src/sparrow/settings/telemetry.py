"""Settings of metrics, health checks and logs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparrow.settings.section import ListenerTls

LogFormat = Literal["text", "json"]


class TelemetrySettings(ListenerTls):
    """Metrics, health checks and logs of servers."""

    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port of `/metrics`, `/livez`, `/readyz` and `/version` over HTTP; 0 chooses a free one. Without "
        "it there is none; `sparrow up` uses 5557, or a free one if that is taken.",
    )
    metrics_host: str = Field(
        default="127.0.0.1", description="Address to listen on for metrics; `0.0.0.0` listens on all interfaces."
    )
    series_max: int = Field(
        default=10_000,
        ge=1,
        description="Most topics, and most groups on topics, with series of their own; the others are added up.",
    )
    sample_interval_ms: int = Field(
        default=10_000, ge=100, description="Interval at which the lag of groups, half messages and disk are sampled."
    )
    log_format: LogFormat = Field(
        default="text", description="Format of the log: `text`, or `json`, one object a line."
    )
