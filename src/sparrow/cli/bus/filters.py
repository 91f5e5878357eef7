"""How messages are chosen on the command line, and the bus they are in."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from sparrow.cli.bus.location import open_bus, unavailable_if_unreachable

if TYPE_CHECKING:
    from sparrow.bus.aio import EventBus
    from sparrow.bus.operations.stored_event import Where

T = TypeVar("T")

SideArgument = Annotated[str, typer.Argument(help="published or received.", metavar="published|received")]
Status = Annotated[
    str | None,
    typer.Option(
        help="Scheduled, Delayed, Enqueued, Processing, Successed, Failed, Cancelled, or Open for the first 4."
    ),
]
Name = Annotated[str | None, typer.Option(help="The topic, exactly.")]
GroupName = Annotated[str | None, typer.Option(help="The group, exactly: billing.v1.")]
Content = Annotated[str | None, typer.Option(help="A piece of the headers or the payload.")]
Correlation = Annotated[str | None, typer.Option(help="The id of the message that began the conversation.")]
Key = Annotated[str | None, typer.Option(help="The order key, exactly.")]
ErrorText = Annotated[str | None, typer.Option("--error", help="A piece of the last error.")]
Tenant = Annotated[str | None, typer.Option(help="The tenant, exactly.")]
Since = Annotated[str | None, typer.Option(help="Added from then on: 30m, 2h, 7d (ago), or ISO 8601, local time.")]
Until = Annotated[str | None, typer.Option(help="Added before then; the same.")]
Parked = Annotated[bool | None, typer.Option("--parked/--not-parked", help="Failed for good, or not.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON.")]

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def with_bus(
    work: Callable[[EventBus], Awaitable[T]], bus: str | None, database: str | None, schema: str, table_prefix: str
) -> T:
    async def run() -> T:
        async with open_bus(bus, database, schema, table_prefix) as found:
            with unavailable_if_unreachable(found):
                return await work(found)

    return asyncio.run(run())


def where_of(
    status: str | None,
    name: str | None,
    group: str | None,
    content: str | None,
    correlation_id: str | None,
    key: str | None,
    error: str | None,
    tenant: str | None,
    since: str | None,
    until: str | None,
    parked: bool | None,
) -> Where:
    from sparrow.bus.operations.stored_event import Where, parse_status

    return Where(
        status=None if status is None else parse_status(status),
        name=name,
        group=group,
        content=content,
        correlation_id=correlation_id,
        key=key,
        error=error,
        tenant=tenant,
        added_since=None if since is None else _moment(since),
        added_until=None if until is None else _moment(until),
        parked=parked,
    )


def _moment(text: str) -> datetime:
    found = _AGO.fullmatch(text.strip())
    if found is not None:
        return datetime.now().astimezone() - timedelta(**{_UNITS[found[2]]: float(found[1])})
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError as cause:
        raise typer.BadParameter(f"{text!r} is no time: write 30m, 2h, 7d (ago), or 2024-05-01T10:00") from cause
