"""The metrics of a bus, for `/metrics`.

Counters and histograms count what this process has done since its start. `bus_queue_depth`, `bus_oldest_open_seconds`,
`bus_lag_seconds` and `bus_messages` are read from the database, so every process reports the same.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sparrow.bus.operations.stored_event import BusStats
from sparrow.bus.telemetry.probe import BusProbe
from sparrow.telemetry.exposition import metrics_text, render
from sparrow.telemetry.metric import Family, Metric, single
from sparrow.telemetry.metrics import bus as table

if TYPE_CHECKING:
    from sparrow.bus.common import AnyEventBus

log = logging.getLogger(__name__)

_LABEL = re.compile(r'(\w+)="([^"]*)"')
STATS_TIMEOUT_S = 5.0
"""Shorter than the timeout of a scrape."""


class BusMetrics:
    """The metrics of one bus."""

    def __init__(self, bus: AnyEventBus) -> None:
        self._bus = bus
        self._stats: BusStats | None = None

    async def prepare(self) -> None:
        """Read the figures of the database; without it, the metrics of the process remain."""
        try:
            async with asyncio.timeout(STATS_TIMEOUT_S):
                self._stats = await self._bus.aio.operations.stats()
        except Exception as error:  # any error: half of the metrics are better than none
            log.warning(
                "the metrics of the database %(database)s are missing in this answer: %(error)s",
                {"database": self._bus.database, "error": error},
            )
            self._stats = None

    def families(self) -> Iterator[Family]:
        """Yield the metrics."""
        return bus_families(self._bus.core.context.probe, self._stats)


async def metrics(bus: AnyEventBus) -> str:
    """Return the text for `/metrics`. Without the database it contains the metrics of this process only."""
    source = BusMetrics(bus)
    await source.prepare()
    return await metrics_text(source.families())


def prometheus_text(probe: BusProbe, stats: BusStats | None) -> str:
    """Return the metrics in Prometheus' text format."""
    return "".join(render(bus_families(probe, stats)))


def bus_families(probe: BusProbe, stats: BusStats | None) -> Iterator[Family]:
    """Yield the metrics of a process and, if they could be read, those of the database."""
    yield from _counters(probe.totals)
    yield single(table.SEND_SECONDS, probe.send_seconds.value)
    yield single(table.HANDLE_SECONDS, probe.handle_seconds.value)
    yield single(table.END_TO_END_SECONDS, probe.end_to_end_seconds.value)
    if stats is not None:
        yield from _gauges(stats)
    yield single(table.DATABASE_REACHABLE, int(stats is not None))


def _counters(totals: Mapping[str, int]) -> Iterator[Family]:
    by_metric: dict[Metric, dict[tuple[str, ...], int]] = {metric: {} for metric in table.BUS_COUNTERS.values()}
    for full, total in sorted(totals.items()):
        name, _, inside = full.partition("{")
        metric, labels = table.BUS_COUNTERS[name], dict(_LABEL.findall(inside))
        by_metric[metric][tuple(labels[label] for label in metric.labels)] = total
    for metric, found in by_metric.items():
        # Before the first count, the label values are unknown.
        yield Family(metric, list(found.items()) if found or metric.labels else [((), 0)])


def _gauges(stats: BusStats) -> Iterator[Family]:
    sides = stats.sides
    groups = [((group.side, group.group), group) for side in sides for group in side.groups]
    # A side without open messages has a depth of 0.
    idle: list[tuple[tuple[str, ...], float]] = [((side.side, ""), 0) for side in sides if not side.groups]
    yield Family(table.QUEUE_DEPTH, [*idle, *((labels, group.open) for labels, group in groups)])
    yield Family(table.LAG_SECONDS, [*idle, *((labels, group.lag_s) for labels, group in groups)])
    yield Family(table.OLDEST_OPEN, [((side.side,), side.oldest_open_s) for side in sides])
    yield Family(
        table.MESSAGES,
        [((side.side, status), count) for side in sides for status, count in side.by_status.items()],
    )
