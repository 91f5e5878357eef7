"""Which segments retention may delete."""

import time

import pytest

from sparrow.settings import LogSettings
from sparrow.store.log.retention import SegmentAge, dead_letter_cutoff_ms, is_due, keep_from

HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS
SETTINGS = LogSettings(retention_hours=72, disk_clean_ratio=0.75, disk_force_ratio=0.85)


def aged(*hours: float) -> list[SegmentAge]:
    """Segments of 100 bytes whose newest records have these ages."""
    return [SegmentAge(100 * n, 100 * n + 100, int(NOW_MS - age * HOUR_MS)) for n, age in enumerate(hours)]


def kept_from(segments: list[SegmentAge], *, disk_ratio: float = 0.1, archived_to: int | None = None) -> int | None:
    return keep_from(segments, SETTINGS, now_ms=NOW_MS, disk_ratio=disk_ratio, archived_to=archived_to)


@pytest.mark.parametrize(
    ("ages", "keep"),
    [
        ([], None),
        ([71], None),
        ([72], 100),
        ([73, 72, 71.9], 200),
        ([100, 50, 100], 100),  # from the oldest, up to the first that must stay
        ([50, 100], None),
    ],
)
def test_segments_are_deleted_when_all_their_messages_are_old_enough(ages, keep):
    assert kept_from(aged(*ages)) == keep


def test_a_full_disk_also_deletes_one_young_segment_after_all_old_ones():
    assert kept_from(aged(10, 9, 8), disk_ratio=0.851) == 100
    assert kept_from(aged(80, 75, 10, 9), disk_ratio=0.99) == 300
    assert kept_from(aged(10, 9, 8), disk_ratio=0.85) is None
    assert kept_from([], disk_ratio=0.99) is None


@pytest.mark.parametrize("disk_ratio", [0.1, 0.99])
def test_unarchived_segments_stay_however_full_the_disk_is(disk_ratio):
    old = aged(90, 80, 75)
    assert kept_from(old, disk_ratio=disk_ratio, archived_to=0) is None
    assert kept_from(old, disk_ratio=disk_ratio, archived_to=199) == 100
    assert kept_from(old, disk_ratio=disk_ratio, archived_to=200) == 200
    assert kept_from(old, disk_ratio=disk_ratio, archived_to=1000) == 300


def at_hour(hour: int) -> int:
    return int(time.mktime((2026, 1, 15, hour, 30, 0, 0, 0, -1))) * 1000


def test_old_segments_are_deleted_in_one_hour_of_the_day():
    due = [hour for hour in range(24) if is_due(SETTINGS, now_ms=at_hour(hour), disk_ratio=0.1, was_asked=False)]
    assert due == [4]


def test_a_filling_disk_or_a_request_does_not_wait_for_that_hour():
    noon = at_hour(12)
    assert is_due(SETTINGS, now_ms=noon, disk_ratio=0.76, was_asked=False)
    assert not is_due(SETTINGS, now_ms=noon, disk_ratio=0.75, was_asked=False)
    assert is_due(SETTINGS, now_ms=noon, disk_ratio=0.1, was_asked=True)


@pytest.mark.parametrize(("hours", "age_ms"), [(72, 72 * HOUR_MS), (0.5, HOUR_MS // 2), (0, 0)])
def test_a_dead_letter_is_readable_until_its_retention_is_over(hours, age_ms):
    settings = LogSettings(dead_letter_retention_hours=hours)
    assert dead_letter_cutoff_ms(settings, now_ms=NOW_MS) == NOW_MS - age_ms + 1
