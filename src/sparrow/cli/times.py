"""Times and durations on the command line."""

from __future__ import annotations

import re
from datetime import datetime

import typer

from sparrow import clock

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

TIME_HELP = "30m, 2h, 7d (ago), ISO 8601 (local time), or ms since 1970"


def parse_time_ms(text: str) -> int:
    """Return a time in ms since 1970: a duration means that long ago."""
    text = text.strip()
    if text.isdecimal():
        return int(text)
    if _DURATION.fullmatch(text):
        return clock.now_ms() - parse_duration_ms(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError) as cause:
        raise typer.BadParameter(
            f"{text!r} is not a time: use 30m, 2h, 7d (ago), 2024-05-01T10:00 (local), or ms since 1970"
        ) from cause


def parse_duration_ms(text: str) -> int:
    """Return a duration such as `500ms`, `10s`, `5m`, `2h` or `1d` in ms."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration: use 500ms, 10s, 5m, 2h or 1d")
    return int(float(found[1]) * _UNIT_MS[found[2]])
