"""The latest revenue windows of the demo, consumed from Spark's result topic and shown as a table."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

import msgspec
from rich.table import Table
from rich.text import Text

from sparrow.cli.demo.revenue_pipeline import REVENUE_TOPIC, SparkStatus
from sparrow.model.message import StoredMessage

WINDOWS_SHOWN_MAX = 3


class WindowRevenue(msgspec.Struct, frozen=True):
    """A message of the result topic: the revenue of a city in a window so far."""

    city: str
    since: datetime
    orders: int
    euros: float


class RevenueWindows:
    """The latest windows. A later message about a city and window replaces the earlier one."""

    def __init__(self) -> None:
        self._windows: dict[datetime, dict[str, WindowRevenue]] = {}

    async def handle(self, message: StoredMessage) -> None:
        """Handle a message. The consumer is orderly, and all messages of a city are in one queue."""
        with suppress(msgspec.DecodeError):  # other clients may write to the topic, too
            self.add(msgspec.json.decode(message.body, type=WindowRevenue))

    def add(self, revenue: WindowRevenue) -> None:
        """Add or replace the revenue of a city in a window."""
        self._windows.setdefault(revenue.since, {})[revenue.city] = revenue
        for since in sorted(self._windows)[:-WINDOWS_SHOWN_MAX]:
            del self._windows[since]

    def shown(self, status: SparkStatus, elapsed_s: float) -> Table | Text:
        """Return the table of the windows or, if there are none yet, the state of Spark."""
        if status.state == "failed":
            return Text(f"Spark {'has stopped' if self._windows else 'is not available'}: {status.why}")
        if not self._windows:
            activity = "reading the first orders" if status.state == "running" else "starting"
            return Text(
                f"Spark is {activity}: {elapsed_s:.0f} s so far. The first windows usually appear after 10 to 20 s."
            )
        return self._table(status)

    def _table(self, status: SparkStatus) -> Table:
        table = Table(title=f"revenue in windows of ten seconds, by Spark, from topic {REVENUE_TOPIC}")
        table.add_column("city")
        newest = sorted(self._windows.items(), reverse=True)
        for since, _ in newest:
            table.add_column(f"{since.astimezone():%H:%M:%S}\norders", justify="right")
            table.add_column("\neuros", justify="right")
        for city in sorted({city for _, cities in newest for city in cities}):
            cells = [_cells(cities.get(city)) for _, cities in newest]
            table.add_row(city, *(cell for pair in cells for cell in pair))
        table.caption = f"Spark has read {status.rows:,} orders"
        table.caption += f", {status.lag:,} not read yet" if status.lag is not None else ""
        return table


def _cells(revenue: WindowRevenue | None) -> tuple[str, str]:
    return (f"{revenue.orders:,}", f"{revenue.euros:,.0f}") if revenue is not None else ("", "")
