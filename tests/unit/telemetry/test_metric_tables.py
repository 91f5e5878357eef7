"""The table of all metrics: names, labels, and the page that is generated from it."""

import re
from collections import Counter
from pathlib import Path

from sparrow.telemetry.doc_tables import ALL_METRICS, with_tables
from sparrow.telemetry.metrics.bus import BUS_METRICS
from sparrow.telemetry.metrics.rocketmq import ROCKETMQ_METRICS

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_every_name_and_label_is_legal_and_stands_once() -> None:
    for metric in ALL_METRICS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name), metric.name
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in metric.labels), metric
        assert metric.sentence.endswith("."), metric
    assert [name for name, count in Counter(metric.name for metric in ALL_METRICS).items() if count > 1] == []


def test_counters_end_in_total_and_histograms_have_growing_bounds() -> None:
    for metric in ALL_METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert bool(metric.bounds) == (metric.kind == "histogram"), metric.name
        assert list(metric.bounds) == sorted(set(metric.bounds)), metric.name


def test_names_of_our_own_have_a_prefix_and_base_units() -> None:
    own = [metric for metric in ALL_METRICS if metric not in ROCKETMQ_METRICS and metric not in BUS_METRICS]
    for metric in own:
        assert metric.name.startswith(("sparrow_", "process_", "python_")), metric.name
        if metric.unit in ("seconds", "bytes", "milliseconds"):
            assert metric.name.removesuffix("_total").endswith(f"_{metric.unit}"), metric.name


def test_the_page_has_the_tables_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page), "run: make docs"
