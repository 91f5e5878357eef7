"""Metrics of Sparrow in an application's own `prometheus_client` registry.

```python
from prometheus_client import REGISTRY
from sparrow.telemetry.prometheus import SparrowCollector

REGISTRY.register(SparrowCollector(bus.metric_source))
```
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from sparrow.extras import require
from sparrow.telemetry.metric import HistogramValue, Metric, MetricSource

require("prometheus_client", extra="metrics", for_="sparrow.telemetry.prometheus")

from prometheus_client.core import (  # noqa: E402
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector  # noqa: E402


class SparrowCollector(Collector):
    """Reads sources of metrics when the application's registry is scraped."""

    def __init__(self, *sources: MetricSource) -> None:
        """Create a collector. A source that reads a database shows what its last `prepare` has read."""
        self._sources = sources

    def collect(self) -> Iterator[Any]:
        """Yield the metrics as families of `prometheus_client`."""
        for source in self._sources:
            for metric, samples, node_labels in source.families():
                family = _family(metric, [*node_labels, *metric.labels])
                for labels, value in samples:
                    _add(family, metric, [*node_labels.values(), *labels], value)
                yield family


def _family(metric: Metric, labels: list[str]) -> Any:
    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    return kinds[metric.kind](metric.name, metric.sentence, labels=labels)


def _add(family: Any, metric: Metric, labels: list[str], value: float | HistogramValue) -> None:
    if isinstance(value, HistogramValue):
        bounds = [*(str(float(bound)) for bound in metric.bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(value.counts), strict=True)), value.sum)
    else:
        family.add_metric(labels, value)
