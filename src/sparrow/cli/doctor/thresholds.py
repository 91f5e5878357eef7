"""The limits beyond which `sparrow doctor` reports something."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Limits that options of the command may change, and those that nobody needs to."""

    lag_max: int = 10_000
    """Unread messages of a group, or of one lane."""
    clock_skew_ms_max: int = 2_000
    """Difference between the clock of a server and that of this machine."""
    open_files_min: int = 4_096
    """What a process that serves clients should be allowed to open."""
    open_files_ratio_max: float = 0.8
    """Part of the allowed files that a broker has open."""
    segments_free_min: int = 2
    """Files of the commit log that must fit on the disk."""
