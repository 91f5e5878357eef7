"""Times of forms: browsers write no zone, and pages say UTC."""

import pytest

from sparrow.console.pages.frame.forms import utc


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-16T08:00", "2026-11-16T08:00Z"),
        ("2026-11-16T08:00:01", "2026-11-16T08:00:01Z"),
        ("2026-11-16T08:00:01Z", "2026-11-16T08:00:01Z"),
        ("2026-11-16T08:00:01+08:00", "2026-11-16T08:00:01+08:00"),
        ("", None),
        (None, None),
    ],
)
def test_a_time_without_a_zone_is_utc(text: str | None, time: str | None) -> None:
    assert utc(text) == time
