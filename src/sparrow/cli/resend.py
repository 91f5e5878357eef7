"""`sparrow resend`: deliver messages of a topic again, to one group or to all groups that read it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from sparrow.cli.admin_client import NameServersOption, open_admin
from sparrow.client.aio.admin.resend import ResendResult
from sparrow.client.options import DEFAULT_NAME_SERVERS

EXAMPLES = """
Examples:

[bold]sparrow resend orders --group billing --time 2024-05-01T10:00 2024-05-01T11:00 --dry-run[/bold]

[bold]sparrow resend orders --group billing --offsets 1200 1299 --queue 3[/bold]

[bold]sparrow resend orders --group billing --offsets 1 5 --priority low[/bold]

[bold]sparrow resend orders --key order-7 --key order-9 --yes[/bold]
"""


def resend(
    topic: Annotated[str, typer.Argument(help="Topic of the messages.")],
    group: Annotated[
        str | None,
        typer.Option(help="Group that receives them. Without it: all groups with a committed offset on the topic."),
    ] = None,
    offsets: Annotated[
        tuple[int, int] | None,
        typer.Option("--offsets", "--ids", help="First and last queue offset, both included.", metavar="FIRST LAST"),
    ] = None,
    time: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Store time from FROM to before TO: ISO 8601, or ms since 1970.", metavar="FROM TO"),
    ] = None,
    key: Annotated[list[str] | None, typer.Option(help="A key or unique id; may be repeated.")] = None,
    queue: Annotated[int | None, typer.Option(help="The queue of --offsets.")] = None,
    priority: Annotated[
        str | None, typer.Option(help="Only this lane of a topic with lanes: high, middle or low.")
    ] = None,
    broker: Annotated[str | None, typer.Option(help="Only messages of the broker with this name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Include messages that the group has not read yet; it gets them twice.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Resend to all groups without confirmation.")] = False,
    name_servers: NameServersOption = DEFAULT_NAME_SERVERS,
) -> None:
    """Deliver messages of a topic again, without copying them."""
    begin, end = offsets or (None, None)
    from_ms, to_ms = map(_parse_ms, time) if time else (None, None)
    with open_admin(name_servers) as admin:

        def request(*, dry_run: bool) -> ResendResult:
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
                dry_run=dry_run,
                force=force,
            )

        if group is None and not dry_run and not yes:
            typer.confirm(f"{_summary(request(dry_run=True), 'would be resent')} Continue?", abort=True)
        typer.echo(_summary(request(dry_run=dry_run), "would be resent" if dry_run else "resent"))


def _summary(result: ResendResult, verb: str) -> str:
    missing = f" {result.missing:,} are already deleted." if result.missing else ""
    return f"{result.count:,} messages {verb} to {', '.join(result.groups)}.{missing}"


def _parse_ms(text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError as cause:
        raise typer.BadParameter(f"{text!r} is not a time: use 2024-05-01T10:00 (local), or ms since 1970") from cause
