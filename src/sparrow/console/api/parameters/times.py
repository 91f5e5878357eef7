"""Times in queries: RFC 3339, or ms since 1970."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query

from sparrow.console.models.fields import TIME_MS_MAX
from sparrow.model.errors import BadRequest

FromQuery = Annotated[
    str | None,
    Query(
        alias="from",
        max_length=40,
        description="Stored at this time or later: RFC 3339, or ms since 1970.",
        examples=["2026-01-01T00:00:00Z"],
    ),
]
ToQuery = Annotated[
    str | None,
    Query(alias="to", max_length=40, description="Stored before this time: RFC 3339, or ms since 1970."),
]


def parse_time(name: str, text: str | None) -> int | None:
    """Return ms since 1970; None without a text. A time without a zone is UTC."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        found = int(text)
    else:
        try:
            parsed = datetime.fromisoformat(text)
            found = int((parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp() * 1000)
        except (ValueError, OverflowError) as cause:
            problem = f"is {text[:40]!r}: use RFC 3339 such as 2026-01-01T00:00:00Z, or ms since 1970"
            raise BadRequest("the request", name, problem) from cause
    if not 0 <= found <= TIME_MS_MAX:
        raise BadRequest("the request", name, f"is {text[:40]!r}: use a time from 1970 to 9999")
    return found
