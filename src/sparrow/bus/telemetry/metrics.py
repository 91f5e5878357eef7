"""Prometheus metrics of a bus in text format 0.0.4, without a client library.

Counters and histograms count what this process has done since its start. `bus_queue_depth`, `bus_oldest_open_seconds`,
`bus_lag_seconds` and `bus_messages` are read from the database, so every process reports the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from sparrow.bus.operations.stored_event import BusStats
from sparrow.bus.telemetry.probe import HISTOGRAM_BOUNDS_S, BusProbe, DurationHistogram

if TYPE_CHECKING:
    from sparrow.bus.common import AnyEventBus

log = logging.getLogger(__name__)

STATS_TIMEOUT_S = 5.0
"""Shorter than the timeout of a scrape."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

COUNTERS = {
    "bus_published_total": "Events written by publish.",
    "bus_sent_total": "Events acknowledged by the broker.",
    "bus_received_total": "Messages stored from the broker.",
    "bus_duplicates_total": "Deliveries dropped as repeats.",
    "bus_handled_total": "Ends of handlers, by result.",
    "bus_retries_total": "Failed attempts and new rounds, by place.",
    "bus_failed_total": "Messages that entered Failed, by side.",
    "bus_lease_lost_total": "Messages that another worker took over.",
    "bus_cleaner_rows_total": "Rows deleted after their time.",
    "bus_mended_total": "Rows that had lost each other.",
    "bus_callback_errors_total": "Errors of on_failed itself.",
    "bus_operations_total": "Messages changed by operators, by action.",
}
_LABELLED = ("bus_handled_total", "bus_retries_total", "bus_failed_total", "bus_operations_total")
"""Shown after the first count: before that the label values are unknown."""


async def metrics(bus: AnyEventBus) -> str:
    """Return the text for `/metrics`. Without the database it contains the metrics of this process only."""
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            stats = await bus.aio.operations.stats()
    except Exception as error:  # any error: half of the metrics are better than none
        log.warning(
            "the metrics of the database %(database)s are missing in this answer: %(error)s",
            {"database": bus.database, "error": error},
        )
        stats = None
    return prometheus_text(bus.core.context.probe, stats)


def prometheus_text(probe: BusProbe, stats: BusStats | None) -> str:
    lines = [*_counters(probe.totals)]
    lines += _histogram("bus_send_seconds", "How long the broker took to acknowledge a batch.", probe.send_seconds)
    lines += _histogram("bus_handle_seconds", "How long handlers ran.", probe.handle_seconds)
    lines += _histogram("bus_end_to_end_seconds", "From being stored here to being handled.", probe.end_to_end_seconds)
    if stats is not None:
        lines += _gauges(stats)
    lines += _metric("bus_database_reachable", "gauge", "1: the database answered.", [({}, int(stats is not None))])
    return "\n".join(lines) + "\n"


def _counters(totals: Mapping[str, int]) -> Iterator[str]:
    by_name: dict[str, dict[str, int]] = {name: {} for name in COUNTERS}
    for full, total in sorted(totals.items()):
        by_name.setdefault(full.partition("{")[0], {})[full] = total
    for name, found in by_name.items():
        if not found and name not in _LABELLED:
            found = {name: 0}
        yield f"# HELP {name} {COUNTERS.get(name, 'Counted by the bus.')}"
        yield f"# TYPE {name} counter"
        yield from (f"{full} {total}" for full, total in found.items())


def _histogram(name: str, sentence: str, durations: DurationHistogram) -> Iterator[str]:
    # Copy first: other threads go on adding, and the buckets must add up to the count.
    counts, sum_s = list(durations.counts), durations.sum_s
    yield f"# HELP {name} {sentence}"
    yield f"# TYPE {name} histogram"
    so_far = 0
    for bound, count in zip((*map(str, HISTOGRAM_BOUNDS_S), "+Inf"), counts, strict=True):
        so_far += count
        yield f'{name}_bucket{{le="{bound}"}} {so_far}'
    yield f"{name}_sum {sum_s!r}"
    yield f"{name}_count {so_far}"


def _gauges(stats: BusStats) -> Iterator[str]:
    sides = stats.sides
    groups = [({"side": group.side, "group": group.group}, group) for side in sides for group in side.groups]
    # A side without open messages has a depth of 0.
    idle: list[tuple[dict[str, str], float]] = [
        ({"side": side.side, "group": ""}, 0) for side in sides if not side.groups
    ]
    yield from _metric(
        "bus_queue_depth", "gauge", "Open messages, by group.", [*idle, *((labels, g.open) for labels, g in groups)]
    )
    yield from _metric(
        "bus_lag_seconds",
        "gauge",
        "How long the message that waits longest has been due.",
        [*idle, *((labels, g.lag_s) for labels, g in groups)],
    )
    yield from _metric(
        "bus_oldest_open_seconds",
        "gauge",
        "Age of the oldest open message that is not delayed.",
        [({"side": side.side}, side.oldest_open_s) for side in sides],
    )
    yield from _metric(
        "bus_messages",
        "gauge",
        "Stored messages, by state; those that succeeded are not counted.",
        [
            ({"side": side.side, "status": status_name}, count)
            for side in sides
            for status_name, count in side.by_status.items()
        ],
    )


def _metric(name: str, kind: str, sentence: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> Iterator[str]:
    yield f"# HELP {name} {sentence}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"{name}{{{inside}}} {value:.15g}" if inside else f"{name} {value:.15g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
