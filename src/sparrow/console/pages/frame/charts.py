"""Geometry of the charts that pages draw as SVG: time series with axes, sparklines, bars.

Pure functions from samples to path strings and tick labels; `templates/charts.html` draws them. Every chart lives in a
box of `WIDTH` by `HEIGHT` units that the browser stretches to the space there is; axis labels are text beside it, so
they keep their size on a phone. Colours are classes of the style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

WIDTH, HEIGHT = 1000, 100
Y_TICKS = 4
"""Intervals of the vertical axis at most."""
X_LABELS = 4
SERIES_COLOURS = 4
SPARKLINE_SAMPLES = 60
"""The newest samples, ten minutes at the usual interval, which a sparkline shows."""
HEADROOM = 1.02
"""A line that is level does not lie on the edge of the plot."""
POINTS_MAX = 360
"""Points of a line. A longer series is averaged: one hour at 10 s fits."""
COLUMNS_MAX = 120
"""Strips that show their values under a pointer. More are narrower than a pointer can aim at, and most of the page."""


@dataclass(frozen=True)
class Series:
    """A named line; `None` is a gap."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Line:
    """One drawn series."""

    name: str
    colour: int
    path: str
    area: str
    last: str


@dataclass(frozen=True)
class ChartColumn:
    """The strip of the plot that belongs to one time, with the text that a pointer above it shows."""

    x: float
    width: float
    title: str


@dataclass(frozen=True)
class TimeChart:
    """A chart of one or more series over time, ready to draw."""

    lines: tuple[Line, ...]
    rules: tuple[float, ...]
    y_labels: tuple[str, ...]
    x_labels: tuple[str, ...]
    columns: tuple[ChartColumn, ...]
    summary: str

    @property
    def is_empty(self) -> bool:
        """Whether no series has two values to connect."""
        return not any(line.path for line in self.lines)


def time_chart(
    times_ms: Sequence[float],
    series: Sequence[Series],
    show: Callable[[float], str],
    timezone: tzinfo = UTC,
) -> TimeChart:
    """Return the chart of `series`; `show` writes a value with its unit.

    The last value of a series belongs to the last time: a series may have begun later than others.
    """
    times, averaged = _thin(times_ms, [Series(one.name, _align(one.values, len(times_ms))) for one in series])
    most = max((value for one in averaged for value in one.values if value is not None), default=0.0)
    top = nice_ceiling(most * HEADROOM)
    steps = _steps(top)
    lines = tuple(_line(number, one, top, show, has_area=len(averaged) <= 2) for number, one in enumerate(averaged))
    return TimeChart(
        lines=lines,
        rules=tuple(HEIGHT - HEIGHT * step / top for step in steps),
        y_labels=tuple(show(step) for step in steps),
        x_labels=_time_labels(times, timezone),
        columns=_columns(times, averaged, show, timezone),
        summary="; ".join(f"{line.name}: {line.last}" for line in lines),
    )


def sparkline(values: Sequence[float | None]) -> tuple[str, str]:
    """Return the paths of a line and of the area below it, scaled to its largest value; empty without two values."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    return _paths(values, top)


def bar_width(value: float, most: float) -> float:
    """Return how wide the bar of `value` is when that of `most` fills the box."""
    return 0.0 if most <= 0 else round(min(max(value / most, 0.0), 1.0) * WIDTH, 1)


def nice_ceiling(value: float) -> float:
    """Return the smallest 1, 2, 2.5, 4, 5 or 8 times a power of ten that is not below `value`, and at least 1."""
    if value <= 1 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 2.5, 4, 5, 8, 10) if power * factor >= value)


def _align(values: Sequence[float | None], count: int) -> Sequence[float | None]:
    """Return the last `count` values, with gaps before them if there are fewer."""
    return [None] * (count - len(values)) + list(values[max(len(values) - count, 0) :])


def _steps(top: float) -> list[float]:
    """Return the values of the horizontal rules; whole numbers as long as the axis is short."""
    count = next((count for count in (Y_TICKS, 5, 3, 2, 1) if (top / count).is_integer()), Y_TICKS)
    return [top * step / count for step in range(count + 1)]


def _x(index: int, count: int) -> float:
    return round(index * WIDTH / max(count - 1, 1), 1)


def _runs(values: Sequence[float | None], top: float) -> list[list[tuple[float, float]]]:
    """Return the points of each stretch without gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((_x(index, len(values)), round(HEIGHT - HEIGHT * max(value, 0) / top, 2)))
    return [run for run in runs if len(run) > 1]


def _line(number: int, one: Series, top: float, show: Callable[[float], str], *, has_area: bool) -> Line:
    path, area = _paths(one.values, top)
    colour = number % SERIES_COLOURS + 1
    return Line(one.name, colour, path, area if has_area else "", _last(one.values, show))  # more areas hide each other


def _paths(values: Sequence[float | None], top: float) -> tuple[str, str]:
    """Return the paths of a line and of the area below it."""
    line, area = "", ""
    for run in _runs(values, top):
        points = "L".join([f"{x:g} {y:g}" for x, y in run])
        line += "M" + points
        area += f"M{run[0][0]:g} {HEIGHT}L{points}L{run[-1][0]:g} {HEIGHT}Z"
    return line, area


def _last(values: Sequence[float | None], show: Callable[[float], str]) -> str:
    return "–" if not values or values[-1] is None else show(values[-1])


def _columns(
    times: Sequence[float], series: Sequence[Series], show: Callable[[float], str], timezone: tzinfo
) -> tuple[ChartColumn, ...]:
    """Return strips side by side, each around the time whose values it shows."""
    step = max(math.ceil(len(times) / COLUMNS_MAX), 1)
    width = step * WIDTH / max(len(times) - 1, 1)
    columns = []
    for index in range(len(times) - 1, -1, -step):  # from the newest, which everybody looks at
        known = [(one.name, one.values[index]) for one in series]
        values = [f"{name}: {show(value)}" for name, value in known if value is not None]
        x = max(_x(index, len(times)) - width / 2, 0)
        columns.append(ChartColumn(round(x, 1), round(width, 1), "\n".join([_clock(times[index], timezone), *values])))
    return tuple(reversed(columns))


def _time_labels(times: Sequence[float], timezone: tzinfo) -> tuple[str, ...]:
    if len(times) < 2:  # a line needs two points
        return ()
    count = min(X_LABELS, len(times))
    seconds = times[-1] - times[0] < 10 * 60_000
    return tuple(
        _clock(times[round(index * (len(times) - 1) / (count - 1))], timezone, seconds=seconds)
        for index in range(count)
    )


def _clock(time_ms: float, timezone: tzinfo, *, seconds: bool = True) -> str:
    return datetime.fromtimestamp(time_ms / 1000, timezone).strftime("%H:%M:%S" if seconds else "%H:%M")


def _thin(times: Sequence[float], series: Sequence[Series]) -> tuple[Sequence[float], Sequence[Series]]:
    """Return at most `POINTS_MAX` points: each is the mean of the known values of its stretch."""
    width = math.ceil(len(times) / POINTS_MAX)
    if width <= 1:
        return times, series
    starts = range(0, len(times), width)
    return (
        [times[start] for start in starts],
        [Series(one.name, [_mean(one.values[start : start + width]) for start in starts]) for one in series],
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
