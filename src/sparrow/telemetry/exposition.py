"""Metrics as text: Prometheus' format 0.0.4, or OpenMetrics 1.0 for a scraper that asks for it.

The text of ten thousand series takes tens of milliseconds. It is made in slices, between which the event loop serves
requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator

from sparrow.telemetry.metric import Family, HistogramValue, Metric

PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
SLICE_S = 0.002
"""How long the text is made before the event loop gets a turn."""


def wants_open_metrics(accept: str) -> bool:
    """Return whether the `Accept` header of a scraper names OpenMetrics."""
    return "application/openmetrics-text" in accept


async def metrics_text(families: Iterable[Family], *, open_metrics: bool = False) -> str:
    """Return the text of the metrics, made in slices."""
    parts: list[str] = []
    slice_end_s = time.perf_counter() + SLICE_S
    for part in render(families, open_metrics=open_metrics):
        parts.append(part)
        if time.perf_counter() > slice_end_s:
            await asyncio.sleep(0)
            slice_end_s = time.perf_counter() + SLICE_S
    return "".join(parts)


def render(families: Iterable[Family], *, open_metrics: bool = False) -> Iterator[str]:
    """Yield the text of each series. Families of one metric must be adjacent.

    A source that takes long to compute a family may yield it in parts, or empty: after each part others have a turn.
    """
    last: Metric | None = None
    for metric, samples, node_labels in families:
        if metric is not last:
            yield _head(metric, open_metrics=open_metrics)
            last = metric
        # Templates, so that a series costs one formatting.
        labels = [f'{name}="{_escaped(text)}"'.replace("%", "%%") for name, text in node_labels.items()]
        labels += [f'{name}="%s"' for name in metric.labels]
        inside = ",".join(labels)
        if metric.kind == "histogram":
            yield from _histograms(metric, inside, samples)
            continue
        template = f"{metric.name}{{{inside}}} %s\n" if inside else f"{metric.name} %s\n"
        for values, value in samples:
            assert not isinstance(value, HistogramValue), f"{metric.name} is no histogram"
            yield template % (*map(_escaped, values), value)
        yield ""
    if open_metrics:
        yield "# EOF\n"


def _histograms(
    metric: Metric, inside: str, samples: Iterable[tuple[tuple[str, ...], float | HistogramValue]]
) -> Iterator[str]:
    name, bounds = metric.name, [*(repr(float(bound)) for bound in metric.bounds), "+Inf"]
    start = f"{name}_bucket{{%s," if inside else f"{name}_bucket{{%s"
    braces = "{%s}" if inside else "%s"
    lines = [f'{start}le="{bound}"}} %d\n' for bound in bounds]
    template = "".join(lines) + f"{name}_sum{braces} %s\n{name}_count{braces} %d\n"
    for values, value in samples:
        assert isinstance(value, HistogramValue), f"{metric.name} is a histogram"
        labels = inside % tuple(map(_escaped, values))
        arguments: list[object] = []
        so_far = 0
        for count in value.counts:
            so_far += count
            arguments += (labels, so_far)
        yield template % (*arguments, labels, value.sum, labels, so_far)
    yield ""


def _head(metric: Metric, *, open_metrics: bool) -> str:
    # In OpenMetrics a counter's name is that of its samples without the ending.
    name = metric.name.removesuffix("_total") if open_metrics and metric.kind == "counter" else metric.name
    sentence = metric.sentence.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {sentence}\n# TYPE {name} {metric.kind}\n"


def _escaped(text: str) -> str:
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return text
