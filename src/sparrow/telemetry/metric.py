"""`Metric`: the name, type, unit, labels and meaning of a metric; `Family`: its values at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

MetricKind = Literal["counter", "gauge", "histogram"]


class Metric(msgspec.Struct, frozen=True):
    """One metric. `telemetry.metrics` has all of them, and docs/metrics.md is generated from there."""

    name: str
    """The name that Prometheus stores, with the unit and, for a counter, with `_total`."""
    kind: MetricKind
    sentence: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    bounds: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets; the last bucket has none."""


class HistogramValue(NamedTuple):
    """The values of a histogram."""

    counts: Sequence[int]
    """Observations in each bucket, not cumulated; one more than the metric has bounds."""
    sum: float


class Family(NamedTuple):
    """The values of one metric."""

    metric: Metric
    samples: Iterable[tuple[tuple[str, ...], float | HistogramValue]]
    """The values of the metric's labels, in their order, and the value."""
    node_labels: Mapping[str, str] = {}
    """Labels that all series of the family have: the cluster, the kind and the name of the server."""


class MetricSource(Protocol):
    """Something that has metrics: a broker, a name server, a bus, a process."""

    def families(self) -> Iterator[Family]:
        """Yield the metrics, families of one metric next to each other. This must not wait for anything."""
        ...


@runtime_checkable
class PreparedMetricSource(MetricSource, Protocol):
    """A source that reads something before each scrape, such as a database."""

    async def prepare(self) -> None:
        """Read what `families` shows. It must not raise."""
        ...


def single(metric: Metric, value: float | HistogramValue, node_labels: Mapping[str, str] | None = None) -> Family:
    """Return the family of a metric without labels of its own."""
    return Family(metric, (((), value),), node_labels or {})
