"""How pages write numbers, sizes, durations and times: humanised, with the exact value at hand for a tooltip."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

DASH = "–"
HEX_SHOWN_BYTES = 4096
HEX_COLUMNS = 16
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
"""From ten thousand on a number is shortened; below, every digit fits."""


def count(value: float | None) -> str:
    """Write a count: `1,234`, `56.8k`, `1.2M`."""
    if value is None:
        return DASH
    if abs(value) < _SCALES[-1][0]:
        return f"{value:,.0f}"
    rounded = float(f"{value:.3g}")
    for scale, letter in _SCALES:
        if abs(rounded) >= scale:
            return f"{rounded / (1e3 if letter == 'k' else scale):.3g}{letter}"
    raise AssertionError("the smallest scale is that of the shortened numbers")


def exact(value: float | None) -> str:
    """Write every digit, with separators."""
    return DASH if value is None else f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def rate(value: float | None) -> str:
    """Write a number per second: a decimal place below 10, unless it is a whole number."""
    if value is None:
        return DASH
    return f"{value:.1f}" if abs(value) < 10 and not float(value).is_integer() else count(value)


def size(value: float | None) -> str:
    """Write a number of bytes with a binary unit."""
    if value is None:
        return DASH
    amount = float(value)
    for unit in _BYTE_UNITS:
        if abs(amount) < 1024 or unit == _BYTE_UNITS[-1]:  # binary units
            return (
                f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}" if amount < 100 else f"{amount:.0f} {unit}"
            )
        amount /= 1024
    raise AssertionError("the last unit has no limit")


def duration(value_ms: float | None) -> str:
    """Write a duration with its two largest units: `850 ms`, `12.5 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`."""
    if value_ms is None:
        return DASH
    if abs(value_ms) < 1000:  # milliseconds of a second
        return f"{value_ms:.0f} ms" if abs(value_ms) >= 10 or value_ms == 0 else f"{value_ms:.1f} ms"
    seconds = value_ms / 1000
    if abs(seconds) < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    minutes, second = divmod(int(abs(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    sign = "−" if seconds < 0 else ""
    if days:
        return f"{sign}{days} d {hour} h"
    return f"{sign}{hours} h {minute} min" if hours else f"{sign}{minute} min {second} s"


def percent(value: float | None) -> str:
    """Write a fraction of 1 as a percentage."""
    return DASH if value is None else f"{value * 100:.0f} %" if value >= 0.1 or value == 0 else f"{value * 100:.1f} %"


def moment(value: Any) -> str:
    """Write a time in UTC: `2026-11-16 23:05:01`."""
    at = to_datetime(value)
    return DASH if at is None else at.strftime("%Y-%m-%d %H:%M:%S")


def iso(value: Any) -> str:
    """Write a time as RFC 3339, for the `datetime` attribute of `<time>`."""
    at = to_datetime(value)
    return "" if at is None else at.isoformat(timespec="milliseconds")


def to_datetime(value: Any) -> datetime | None:
    """Return the time of epoch milliseconds, RFC 3339 text or an object of the API with both; `None` for no time."""
    if isinstance(value, dict):
        value = value.get("ms")
    if value is None or value == "" or value == 0:
        return None
    try:
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value / 1000, UTC)
        parsed = datetime.fromisoformat(str(value))
    except (ValueError, OverflowError, OSError):
        return None
    return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def pretty_json(text: str) -> str | None:
    """Return JSON text indented, keeping the order and the digits of its numbers; `None` if it is not JSON."""
    stripped = text.strip()
    if not stripped or stripped[0] not in "{[":
        return None
    try:
        value = json.loads(stripped, parse_float=_Digits, parse_int=_Digits)
        return _indent(value)
    except (ValueError, RecursionError):
        return None


class _Digits(str):
    """A number of a JSON text, as it was written: parsing would round large ones."""

    __slots__ = ()


def _indent(value: Any, level: int = 0) -> str:
    pad, end = "  " * (level + 1), "  " * level
    match value:
        case _Digits():
            return str(value)
        case dict() if value:
            items = [
                f"{pad}{json.dumps(key, ensure_ascii=False)}: {_indent(item, level + 1)}" for key, item in value.items()
            ]
            return "{\n" + ",\n".join(items) + f"\n{end}}}"
        case list() if value:
            return "[\n" + ",\n".join(pad + _indent(item, level + 1) for item in value) + f"\n{end}]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def hex_dump(body: bytes) -> str:
    """Return the first bytes as lines of offset, hexadecimal digits and printable ASCII."""
    lines = []
    for start in range(0, min(len(body), HEX_SHOWN_BYTES), HEX_COLUMNS):
        part = body[start : start + HEX_COLUMNS]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in part)  # printable ASCII
        lines.append(f"{start:08x}  {part.hex(' '):<{HEX_COLUMNS * 3 - 1}}  {text}")
    return "\n".join(lines)
