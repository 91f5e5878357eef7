"""Which segments may go, and which dead letters. Pure: what is on disk and what time it is are arguments."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from sparrow.settings import LogSettings

_HOUR_MS = 3_600_000


class SegmentAge(NamedTuple):
    """A whole segment: its range, and the store time of its newest record."""

    base: int
    end: int
    newest_ms: int


def is_due(settings: LogSettings, *, now_ms: int, disk_ratio: float, was_asked: bool) -> bool:
    """Whether old segments are to be deleted now."""
    return (
        was_asked
        or disk_ratio > settings.disk_clean_ratio
        or time.localtime(now_ms / 1000).tm_hour == settings.retention_hour_of_day
    )


def keep_from(
    segments: Sequence[SegmentAge],
    settings: LogSettings,
    *,
    now_ms: int,
    disk_ratio: float,
    archived_to: int | None,
) -> int | None:
    """The physical offset the log should start at, or None to keep everything.

    `segments` are those behind the active one, oldest first. What a configured archive has not taken (`archived_to`,
    None where there is no archive) stays, however full the disk is: refusing writes is better than losing data.
    """
    keep: int | None = None
    is_forced = disk_ratio > settings.disk_force_ratio
    oldest_ms = now_ms - settings.retention_hours * _HOUR_MS
    for segment in segments:
        is_expired = segment.newest_ms <= oldest_ms
        is_archived = archived_to is None or segment.end <= archived_to
        if not is_archived or not (is_expired or is_forced):
            break
        keep = segment.end
        # Forced out before its time: one a look, since the disk may be well again after it.
        if not is_expired:
            break
    return keep


def dead_letter_cutoff_ms(settings: LogSettings, *, now_ms: int) -> int:
    """Dead letters stored before this time are no longer read."""
    return int(now_ms - settings.dead_letter_retention_hours * _HOUR_MS) + 1
