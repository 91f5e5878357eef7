"""Write the tables of docs/metrics.md: `python -m sparrow.telemetry.doc_tables docs/metrics.md`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from sparrow.telemetry.metric import Metric
from sparrow.telemetry.metrics.broker import BROKER_METRICS
from sparrow.telemetry.metrics.bus import BUS_METRICS
from sparrow.telemetry.metrics.name_server import NAME_SERVER_METRICS
from sparrow.telemetry.metrics.process import PROCESS_METRICS
from sparrow.telemetry.metrics.rocketmq import ROCKETMQ_METRICS
from sparrow.telemetry.metrics.spark import SPARK_METRICS

METRIC_TABLES: dict[str, Sequence[Metric]] = {
    "rocketmq": ROCKETMQ_METRICS,
    "broker": BROKER_METRICS,
    "name-server": NAME_SERVER_METRICS,
    "process": PROCESS_METRICS,
    "bus": BUS_METRICS,
    "spark": SPARK_METRICS,
}
"""The tables of the page, by the name in their markers."""
ALL_METRICS = tuple(metric for metrics in METRIC_TABLES.values() for metric in metrics)


def table(metrics: Sequence[Metric]) -> str:
    """Return a Markdown table of metrics."""
    lines = ["| Metric | Type | Unit | Labels | Meaning |", "| --- | --- | --- | --- | --- |"]
    for each in metrics:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        kind: str = each.kind
        if each.bounds:
            kind += f" ({', '.join(f'{bound:g}' for bound in each.bounds)})"
        lines.append(f"| `{each.name}` | {kind} | {each.unit} | {labels} | {each.sentence} |")
    return "\n".join(lines)


def with_tables(page: str) -> str:
    """Return the page with its tables, which stand between markers, made new."""
    for name, metrics in METRIC_TABLES.items():
        begin, end = f"<!-- metrics: {name} -->", "<!-- end of metrics -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        assert pattern.search(page), f"the page has no marker {begin}"
        text = f"{begin}\n{table(metrics)}\n{end}"
        page = pattern.sub(lambda _, text=text: text, page, count=1)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
