"""What Spark wrote, read back: the newest windows of the demo's revenue, as a table."""

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
    """A message of the result topic: one city in one window, so far."""

    city: str
    since: datetime
    orders: int
    euros: float


class RevenueWindows:
    """The newest windows. A later word about a city in a window replaces the one before."""

    def __init__(self) -> None:
        self._windows: dict[datetime, dict[str, WindowRevenue]] = {}

    async def handle(self, message: StoredMessage) -> None:
        """For a consumer that takes each queue in order: a city is always in the same one."""
        with suppress(msgspec.DecodeError):  # anybody may write to the topic
            self.hear(msgspec.json.decode(message.body, type=WindowRevenue))

    def hear(self, revenue: WindowRevenue) -> None:
        self._windows.setdefault(revenue.since, {})[revenue.city] = revenue
        for since in sorted(self._windows)[:-WINDOWS_SHOWN_MAX]:
            del self._windows[since]

    def shown(self, word: SparkStatus, elapsed_s: float) -> Table | Text:
        """As far as there is something to show; else what Spark is doing instead."""
        if word.state == "failed":
            return Text(f"Spark {'has stopped' if self._windows else 'does not take part'}: {word.why}")
        if not self._windows:
            at_work = "reading its first orders" if word.state == "running" else "starting"
            return Text(f"Spark is {at_work}: {elapsed_s:.0f} s so far. Windows come after 10 to 20, as a rule.")
        return self._table(word)

    def _table(self, word: SparkStatus) -> Table:
        table = Table(title=f"ten seconds at a time, by Spark, from topic {REVENUE_TOPIC}")
        table.add_column("city")
        newest = sorted(self._windows.items(), reverse=True)
        for since, _ in newest:
            table.add_column(f"{since.astimezone():%H:%M:%S}\norders", justify="right")
            table.add_column("\neuros", justify="right")
        for city in sorted({city for _, cities in newest for city in cities}):
            cells = [_cells(cities.get(city)) for _, cities in newest]
            table.add_row(city, *(cell for pair in cells for cell in pair))
        table.caption = f"Spark has read {word.rows:,} orders"
        table.caption += f", {word.lag:,} were waiting" if word.lag is not None else ""
        return table


def _cells(revenue: WindowRevenue | None) -> tuple[str, str]:
    return (f"{revenue.orders:,}", f"{revenue.euros:,.0f}") if revenue is not None else ("", "")
