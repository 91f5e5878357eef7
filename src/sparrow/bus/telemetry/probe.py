"""Counters, histograms and callbacks of a bus: what it did, and every change of state."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Literal, NamedTuple

from sparrow.bus.states import EventStatus

log = logging.getLogger(__name__)

Side = Literal["published", "received"]
HISTOGRAM_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class StateChange(NamedTuple):
    """The argument of `on_state`: a message that entered a state."""

    side: Side
    message_id: int
    status: EventStatus


class FailedEvent(NamedTuple):
    """The argument of `on_failed`: a message that entered Failed."""

    side: Side
    message_id: int
    """The id of the row in Published or Received."""
    name: str
    group: str | None
    headers: dict[str, str | None]
    content: str
    error: str
    retries: int
    rounds: int


class DurationHistogram:
    """A histogram of durations."""

    def __init__(self) -> None:
        self.counts = [0] * (len(HISTOGRAM_BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(HISTOGRAM_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)


class BusProbe:
    """Counts since the start of this process; docs/event-bus.md lists the metrics."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        """By metric name, with labels in braces: `bus_handled_total{result="ok"}`."""
        self.send_seconds, self.handle_seconds, self.end_to_end_seconds = (
            DurationHistogram(),
            DurationHistogram(),
            DurationHistogram(),
        )
        self.on_state: list[Callable[[StateChange], None]] = []
        self.on_failed: list[Callable[[FailedEvent], None]] = []
        self._lock = threading.Lock()  # blocking publishers count in their own threads

    def count(self, name: str, by: int = 1, **labels: str) -> None:
        inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
        with self._lock:
            self.totals[f"{name}{{{inside}}}" if inside else name] += by

    def changed(self, side: Side, message_id: int, *statuses: EventStatus) -> None:
        for status in statuses if self.on_state else ():
            for callback in self.on_state:
                try:
                    callback(StateChange(side, message_id, status))
                except Exception:
                    log.exception(
                        "on_state raised an error for message %(id)d in %(side)s, which is %(status)s",
                        {"id": message_id, "side": side, "status": status.value},
                    )

    def failed(self, info: FailedEvent) -> None:
        """Call `on_failed`; errors of a callback are logged and counted."""
        self.count("bus_failed_total", side=info.side)
        for call in self.on_failed:
            try:
                call(info)
            except Exception:
                self.count("bus_callback_errors_total")
                log.exception(
                    "on_failed raised an error for event %(event)s, message %(id)d in %(side)s",
                    {"event": info.name, "id": info.message_id, "side": info.side},
                )
