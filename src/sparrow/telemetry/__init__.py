"""Metrics, traces, logs and health over HTTP, for servers and for applications.

Only `model` is imported from here, so every package may use it. Public names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparrow.telemetry.exposition import metrics_text
    from sparrow.telemetry.histogram import DurationHistogram
    from sparrow.telemetry.metric import Family, HistogramValue, Metric, MetricSource
    from sparrow.telemetry.process import ProcessMetrics
    from sparrow.telemetry.prometheus import SparrowCollector
    from sparrow.telemetry.server import TelemetryServer
    from sparrow.telemetry.spans import process_span

__all__ = [
    "DurationHistogram",
    "Family",
    "HistogramValue",
    "Metric",
    "MetricSource",
    "ProcessMetrics",
    "SparrowCollector",
    "TelemetryServer",
    "metrics_text",
    "process_span",
]

_MODULES = {
    "DurationHistogram": "histogram",
    "Family": "metric",
    "HistogramValue": "metric",
    "Metric": "metric",
    "MetricSource": "metric",
    "ProcessMetrics": "process",
    "SparrowCollector": "prometheus",
    "TelemetryServer": "server",
    "metrics_text": "exposition",
    "process_span": "spans",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
