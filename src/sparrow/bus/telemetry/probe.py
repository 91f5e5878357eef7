"""Counters, histograms and callbacks of a bus: what it did, and every change of state."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Literal, NamedTuple

from sparrow.bus.states import EventStatus
from sparrow.telemetry.histogram import DurationHistogram
from sparrow.telemetry.metrics.bus import BUS_COUNTERS

log = logging.getLogger(__name__)

Side = Literal["published", "received"]


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


class BusProbe:
    """Counts since the start of this process; docs/metrics.md lists the metrics."""

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
        """Add to a counter of `telemetry.metrics.bus`; labels have values of closed sets."""
        assert name in BUS_COUNTERS, f"telemetry.metrics.bus has no {name}"
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
