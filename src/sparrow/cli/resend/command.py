"""`sparrow resend`: deliver messages of a topic again, to one group or to all groups that read it."""

from __future__ import annotations

from typing import Annotated

import typer

from sparrow.cli.admin_client import ConnectionOptions
from sparrow.cli.completion import complete_group, complete_topic
from sparrow.cli.output import JsonOption, YesOption, confirm, print_json
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.times import TIME_HELP, parse_time_ms
from sparrow.operations.resends import ResendPlan, ResendQuery, plan_resend
from sparrow.operations.resends import resend as resend_messages

EXAMPLES = """
Examples:

[bold]sparrow resend orders --group billing --time 2024-05-01T10:00 2024-05-01T11:00 --dry-run[/bold]

[bold]sparrow resend orders --group billing --offsets 1200 1299 --queue 3[/bold]

[bold]sparrow resend orders --group billing --offsets 1 5 --priority low[/bold]

[bold]sparrow resend orders --key order-7 --key order-9 --yes[/bold]
"""


@with_parameter_groups
def resend(
    topic: Annotated[str, typer.Argument(help="Topic of the messages.", autocompletion=complete_topic)],
    group: Annotated[
        str | None,
        typer.Option(
            help="Group that receives them. Without it: all groups with a committed offset on the topic.",
            autocompletion=complete_group,
        ),
    ] = None,
    offsets: Annotated[
        tuple[int, int] | None,
        typer.Option("--offsets", "--ids", help="First and last queue offset, both included.", metavar="FIRST LAST"),
    ] = None,
    time: Annotated[
        tuple[str, str] | None,
        typer.Option(help=f"Store time from FROM to before TO: {TIME_HELP}.", metavar="FROM TO"),
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
    yes: YesOption = False,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """Deliver messages of a topic again, without copying them. It asks first if all groups get them."""
    begin, end = offsets or (None, None)
    from_ms, to_ms = map(parse_time_ms, time) if time else (None, None)
    selection = ResendQuery(
        group=group,
        begin=begin,
        end=end,
        queue_id=queue,
        priority=priority,
        broker=broker,
        keys=tuple(key) if key else None,
        from_ms=from_ms,
        to_ms=to_ms,
        includes_unread=force,
    )
    plan = connection.run(lambda admin: plan_resend(admin, topic, selection))
    if not dry_run:
        confirm(f"{_summary(plan, 'would be resent')} Continue?", yes=yes or group is not None)
        plan = connection.run(lambda admin: resend_messages(admin, topic, selection, plan=plan.hash))
    if as_json:
        print_json(plan)
    else:
        typer.echo(_summary(plan, "would be resent" if dry_run else "resent"))


def _summary(plan: ResendPlan, verb: str) -> str:
    missing = f" {plan.missing:,} are already deleted." if plan.missing else ""
    return f"{plan.count:,} messages {verb} to {', '.join(plan.groups)}.{missing}"
