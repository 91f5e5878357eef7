"""The options of `sparrow bus` that select messages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sparrow.bus.operations.stored_event import Where

SideArgument = Annotated[str, typer.Argument(help="published or received.", metavar="published|received")]

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, kw_only=True)
class MessageFilter:
    """The options of a command that select messages by their properties. All that are given must match."""

    status: Annotated[
        str | None,
        typer.Option(
            help="Scheduled, Delayed, Enqueued, Processing, Successed, Failed, Cancelled, or Open for the first 4."
        ),
    ] = None
    name: Annotated[str | None, typer.Option(help="Topic, exactly.")] = None
    group: Annotated[str | None, typer.Option(help="Group, exactly, such as billing.v1.")] = None
    content: Annotated[str | None, typer.Option(help="Text in the headers or the payload.")] = None
    correlation_id: Annotated[
        str | None, typer.Option(help="Correlation id: the id of the first message of a conversation.")
    ] = None
    key: Annotated[str | None, typer.Option(help="Ordering key, exactly.")] = None
    error: Annotated[str | None, typer.Option("--error", help="Text in the last error.")] = None
    tenant: Annotated[str | None, typer.Option(help="Tenant, exactly.")] = None
    since: Annotated[
        str | None, typer.Option(help="Added at or after this time: 30m, 2h, 7d (ago), or ISO 8601, local time.")
    ] = None
    until: Annotated[str | None, typer.Option(help="Added before this time, in the same format.")] = None
    parked: Annotated[
        bool | None, typer.Option("--parked/--not-parked", help="Failed without further retries, or not.")
    ] = None

    def where(self) -> Where:
        """Return the condition for the operations of the bus."""
        from sparrow.bus.operations.stored_event import Where, parse_status

        return Where(
            status=None if self.status is None else parse_status(self.status),
            name=self.name,
            group=self.group,
            content=self.content,
            correlation_id=self.correlation_id,
            key=self.key,
            error=self.error,
            tenant=self.tenant,
            added_since=None if self.since is None else _parse_time(self.since),
            added_until=None if self.until is None else _parse_time(self.until),
            parked=self.parked,
        )


def _parse_time(text: str) -> datetime:
    found = _AGO.fullmatch(text.strip())
    if found is not None:
        return datetime.now().astimezone() - timedelta(**{_UNITS[found[2]]: float(found[1])})
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError as cause:
        raise typer.BadParameter(f"{text!r} is not a time: use 30m, 2h, 7d (ago), or 2024-05-01T10:00") from cause
