"""The retention policy: which segments and dead letters have expired. Pure: files and time are arguments."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from sparrow.settings import LogSettings

_HOUR_MS = 3_600_000


class SegmentAge(NamedTuple):
    """The range of a segment, and the store time of its newest record."""

    base: int
    end: int
    newest_ms: int


def is_due(settings: LogSettings, *, now_ms: int, disk_ratio: float, was_asked: bool) -> bool:
    """Return whether expired segments are to be deleted now."""
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
    """Return the physical offset at which the log should start; None to keep everything.

    `segments` are all but the active one, oldest first. Segments that a configured archive does not have yet
    (`archived_to`, None without an archive) stay, however full the disk is: refused writes are better than lost data.
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
        # Before its time, because the disk is full: delete only one, which may be enough.
        if not is_expired:
            break
    return keep


def dead_letter_cutoff_ms(settings: LogSettings, *, now_ms: int) -> int:
    """Return the store time before which dead letters have expired."""
    return int(now_ms - settings.dead_letter_retention_hours * _HOUR_MS) + 1
