"""Charts: axes have round numbers, gaps stay gaps, long series are averaged, nothing leaves the box."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow.console.pages.frame.charts import (
    COLUMNS_MAX,
    HEIGHT,
    POINTS_MAX,
    WIDTH,
    Series,
    bar_width,
    nice_ceiling,
    sparkline,
    time_chart,
)

NUMBERS = st.floats(min_value=0, max_value=1e12, allow_nan=False)


def show(value: float) -> str:
    return f"{value:g}"


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.e+-]+) (-?[\d.e+-]+)", path)]


@pytest.mark.parametrize(("value", "top"), [(0, 1), (0.3, 1), (1, 1), (3, 4), (73, 80), (101, 200), (2300, 2500)])
def test_the_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert nice_ceiling(value) == top


def test_a_chart_has_labels_for_its_times_and_values() -> None:
    times = [1_700_000_000_000 + 10_000 * step for step in range(7)]
    chart = time_chart(times, [Series("in", [0, 1, 2, 3, 4, 4, 4]), Series("out", [0] * 7)], show)
    assert chart.y_labels == ("0", "1", "2", "3", "4", "5")
    assert chart.x_labels == ("22:13:20", "22:13:40", "22:14:00", "22:14:20")
    assert chart.summary == "in: 4; out: 0"
    assert "in: 2" in chart.columns[2].title


def test_a_gap_splits_the_line() -> None:
    chart = time_chart(range(5), [Series("lag", [1, 2, None, 2, 1])], show)
    assert chart.lines[0].path.count("M") == 2


def test_one_sample_is_no_line() -> None:
    assert time_chart([1], [Series("lag", [1])], show).is_empty
    assert time_chart([], [Series("lag", [])], show).is_empty
    assert sparkline([]) == ("", "")


def test_a_series_that_began_later_ends_with_the_others() -> None:
    chart = time_chart(
        range(4), [Series("old", [1, 1, 1, 1]), Series("new", [2, 2]), Series("long", [9, 9, 3, 3, 3, 3])], show
    )
    assert chart.columns[0].title.endswith("old: 1\nlong: 3")
    assert chart.columns[3].title.endswith("old: 1\nnew: 2\nlong: 3")
    assert points(chart.lines[1].path)[-1][0] == WIDTH


def test_a_long_series_is_averaged() -> None:
    chart = time_chart(range(10 * POINTS_MAX), [Series("in", [1, 3] * 5 * POINTS_MAX)], show)
    assert len(points(chart.lines[0].path)) == POINTS_MAX
    assert {y for _, y in points(chart.lines[0].path)} == {20.0}  # the mean, 2, on an axis up to 2.5


@pytest.mark.parametrize("count", [2, COLUMNS_MAX, COLUMNS_MAX + 1, POINTS_MAX])
def test_strips_cover_the_plot_and_the_last_shows_the_newest_values(count: int) -> None:
    columns = time_chart(range(count), [Series("in", list(range(count)))], show).columns
    assert len(columns) <= COLUMNS_MAX
    assert columns[-1].title.endswith(f"in: {count - 1}")
    assert columns[0].x <= columns[0].width
    assert columns[-1].x + columns[-1].width >= WIDTH
    for left, right in pairwise(columns):
        assert left.x + left.width == pytest.approx(right.x, abs=left.width / 2 + 0.1)


@given(st.lists(st.none() | NUMBERS, max_size=50))
def test_every_point_lies_inside_the_box(values: list[float | None]) -> None:
    chart = time_chart(range(len(values)), [Series("x", values)], show)
    for x, y in points(chart.lines[0].path + sparkline(values)[0]):
        assert 0 <= x <= WIDTH
        assert -1e-6 <= y <= HEIGHT


@given(NUMBERS, NUMBERS)
def test_a_bar_never_leaves_its_box(value: float, most: float) -> None:
    assert 0 <= bar_width(value, most) <= WIDTH
