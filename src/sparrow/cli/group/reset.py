"""`sparrow group reset`: move the offsets of a group, after a preview."""

from __future__ import annotations

from typing import Annotated

import typer

from sparrow.cli.admin_client import ConnectionOptions
from sparrow.cli.completion import GroupArgument, complete_topic
from sparrow.cli.output import JsonOption, YesOption, confirm, print_json, print_table
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.times import TIME_HELP, parse_time_ms
from sparrow.operations.offset_resets import ResetPlan, ResetTarget, plan_reset, reset_offsets


@with_parameter_groups
def reset(
    group: GroupArgument,
    topic: Annotated[str, typer.Argument(help="Topic.", autocompletion=complete_topic)],
    to: Annotated[str | None, typer.Option(help=f"first, last, or a time: {TIME_HELP}.")] = None,
    offset: Annotated[int | None, typer.Option(help="An offset of one queue: see --broker and --queue.", min=0)] = None,
    broker: Annotated[str | None, typer.Option(help="Broker of the queue.")] = None,
    queue: Annotated[int | None, typer.Option(help="Only this queue.", min=0)] = None,
    expect: Annotated[
        int | None, typer.Option(help="Refuse if the queue's offset is not this one any more.", min=0)
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even if members are online; they continue from the new offsets.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """Move the offsets of a group on a topic. First it shows what will be delivered again and what will be skipped.

    Examples: [bold]sparrow group reset billing orders --to 2h --dry-run[/bold]
    [bold]sparrow group reset billing orders --to first --yes[/bold]
    [bold]sparrow group reset billing orders --offset 1200 --broker sparrow --queue 3[/bold]
    """
    target = _parse_target(to, offset, broker, queue, expect)
    plan = connection.run(lambda admin: plan_reset(admin, group, topic, target))
    if not dry_run:
        if not yes:
            _print_plan(plan)
        confirm("Reset the group?", yes=yes)
        plan = connection.run(lambda admin: reset_offsets(admin, group, topic, target, plan=plan.hash, force=force))
    if as_json:
        print_json(plan)
    elif dry_run:
        _print_plan(plan)
    else:
        typer.echo(f"Group {group} is reset on {topic}: {_summary(plan)}.")


def _parse_target(
    to: str | None, offset: int | None, broker: str | None, queue: int | None, expect: int | None
) -> ResetTarget:
    if (to is None) == (offset is None):
        raise typer.BadParameter("use exactly one of --to and --offset")
    if (broker is None) != (queue is None):
        raise typer.BadParameter("one queue is named by --broker and --queue together")
    if queue is None and (offset is not None or expect is not None):
        raise typer.BadParameter("--offset and --expect are for one queue: name it with --broker and --queue")
    return ResetTarget(
        position=to if to in ("first", "last") else None,  # type: ignore[arg-type]
        time=None if to is None or to in ("first", "last") else parse_time_ms(to),
        offset=offset,
        broker=broker,
        queue_id=queue,
        expected=expect,
    )


def _print_plan(plan: ResetPlan) -> None:
    columns = ("broker", "queue", "first", "end", "offset", "new offset", "again", "skipped")
    rows = [
        (
            queue.broker,
            queue.queue_id,
            queue.first,
            queue.end,
            queue.old,
            queue.new,
            max(0, -queue.difference),
            max(0, queue.difference),
        )
        for queue in plan.queues
    ]
    print_table(columns, rows)
    typer.echo(f"{_summary(plan)}." + (f" {plan.members:,} members are online." if plan.members else ""))


def _summary(plan: ResetPlan) -> str:
    return f"{plan.again:,} messages are delivered again, {plan.skipped:,} are skipped"
