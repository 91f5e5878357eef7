"""`sparrow resend`: messages of a topic once more, to a group or to all that read it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from sparrow.client.aio.admin.resend import ResendResult
from sparrow.client.blocking import Admin

EXAMPLES = """
Examples:

[bold]sparrow resend orders --group billing --time 2024-05-01T10:00 2024-05-01T11:00 --dry-run[/bold]

[bold]sparrow resend orders --group billing --ids 1200 1299 --queue 3[/bold]

[bold]sparrow resend orders --group billing --ids 1 5 --priority low[/bold]

[bold]sparrow resend orders --key order-7 --key order-9 --yes[/bold]
"""


def resend(
    topic: Annotated[str, typer.Argument(help="The topic they were sent to.")],
    group: Annotated[
        str | None, typer.Option(help="Who gets them. Without: every group that has committed an offset on the topic.")
    ] = None,
    ids: Annotated[
        tuple[int, int] | None, typer.Option(help="First and last queue offset, both included.", metavar="FIRST LAST")
    ] = None,
    time: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Stored from then on, and before: ISO 8601, or ms since 1970.", metavar="FROM TO"),
    ] = None,
    key: Annotated[list[str] | None, typer.Option(help="With this key, or this unique id; may be repeated.")] = None,
    queue: Annotated[int | None, typer.Option(help="The queue that --ids is about.")] = None,
    priority: Annotated[
        str | None, typer.Option(help="Only this lane of a topic with lanes: high, middle or low.")
    ] = None,
    broker: Annotated[str | None, typer.Option(help="Only from this broker, by its name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also messages that the group has still before it: they come twice.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before resending to all groups.")] = False,
    name_servers: Annotated[
        str, typer.Option(help="Where to find the brokers: host:port, several parted by ';'.")
    ] = "127.0.0.1:9876",
) -> None:
    """Deliver messages of a topic once more, without copying them."""
    begin, end = ids or (None, None)
    from_ms, to_ms = map(_ms, time) if time else (None, None)
    with Admin(name_servers) as admin:

        def ask(*, is_dry: bool) -> ResendResult:
            return admin.resend(
                topic,
                group=group,
                begin=begin,
                end=end,
                queue_id=queue,
                priority=priority,
                broker=broker,
                keys=key or None,
                from_ms=from_ms,
                to_ms=to_ms,
                dry_run=is_dry,
                force=force,
            )

        if group is None and not dry_run and not yes:
            typer.confirm(f"{_told(ask(is_dry=True), 'would be resent')} Go on?", abort=True)
        typer.echo(_told(ask(is_dry=dry_run), "would be resent" if dry_run else "resent"))


def _told(resent: ResendResult, what: str) -> str:
    gone = f" {resent.missing:,} are no longer there." if resent.missing else ""
    return f"{resent.count:,} messages {what} to {', '.join(resent.groups)}.{gone}"


def _ms(text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError as cause:
        raise typer.BadParameter(f"{text!r} is no time: write 2024-05-01T10:00 (local), or ms since 1970") from cause
