"""`sparrow group`: list, show, reset and delete consumer groups."""

from __future__ import annotations

from typing import Annotated

import typer

from sparrow.cli.admin_client import ConnectionOptions
from sparrow.cli.completion import GroupArgument
from sparrow.cli.exit_codes import ExitCode
from sparrow.cli.group.reset import reset
from sparrow.cli.output import (
    JsonOption,
    YesOption,
    confirm,
    format_duration,
    format_time,
    print_fields,
    print_json,
    print_note,
    print_table,
)
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.operations.groups import (
    GroupDeletionPlan,
    GroupDetail,
    delete_group,
    fetch_group,
    list_groups,
    plan_deletion,
)

app = typer.Typer(help="List, show, reset and delete consumer groups.", no_args_is_help=True)
app.command("reset")(reset)


@app.command("list")
@with_parameter_groups
def list_all(
    everything: Annotated[bool, typer.Option("--all", help="Include the groups of brokers and tools.")] = False,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """List groups with their members and their lag, the largest lag first.

    Examples: [bold]sparrow group list[/bold]   [bold]sparrow group list --json[/bold]
    """
    groups = [each for each in connection.run(list_groups) if everything or not each.is_system]
    groups.sort(key=lambda each: (-each.lag, each.name))
    if as_json:
        print_json(groups)
    elif groups:
        columns = ("group", "members", "lag", "retrying", "dead letters", "topics")
        rows = [(each.name, each.members, each.lag, each.retrying, each.dead_letters, each.topics) for each in groups]
        print_table(columns, rows)
    else:
        print_note("There are no consumer groups: a group appears when its first consumer starts.")


@app.command()
@with_parameter_groups
def show(
    group: GroupArgument,
    max_lag: Annotated[
        int | None, typer.Option(help="Exit with 1 if the group has more unread messages, for scripts.", min=0)
    ] = None,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """Show the members of a group, and its lag on each queue in messages and in time.

    Examples: [bold]sparrow group show billing[/bold]   [bold]sparrow group show billing --max-lag 1000[/bold]
    """
    found = connection.run(lambda admin: fetch_group(admin, group))
    if as_json:
        print_json(found)
    else:
        _print_group(found)
    if max_lag is not None and found.lag > max_lag:
        print_note(f"Group {group} has {found.lag:,} unread messages, more than {max_lag:,}.")
        raise typer.Exit(ExitCode.FAILED)


def _print_group(found: GroupDetail) -> None:
    print_fields(
        {
            "group": found.name,
            "members": len(found.members),
            "mode": None if found.message_model is None else found.message_model.lower(),
            "lag": found.lag,
            "oldest unread message waits for": format_duration(found.delay_ms),
            "messages read per second": found.out_per_s,
            "retrying": found.retrying,
            "dead letters": found.dead_letters,
        }
    )
    if found.members:
        typer.echo()
        columns = ("member", "address", "language", "queues")
        print_table(
            columns, [(each.client_id, each.address, each.language, len(each.queues)) for each in found.members]
        )
    if found.topics:
        typer.echo()
        rows = [
            (
                topic.topic,
                queue.broker,
                queue.queue_id,
                queue.committed,
                queue.end,
                queue.lag,
                format_duration(queue.delay_ms),
                format_time(queue.read_ms),
                queue.member,
            )
            for topic in found.topics
            for queue in topic.queues
        ]
        columns_of_queues = ("topic", "broker", "queue", "committed", "end", "lag", "waits", "read up to", "member")
        print_table(columns_of_queues, rows)


@app.command()
@with_parameter_groups
def delete(
    group: GroupArgument,
    yes: YesOption = False,
    force: Annotated[bool, typer.Option("--force", help="Even if members are online.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """Delete a group with its committed offsets.

    Example: [bold]sparrow group delete billing --yes[/bold]
    """
    plan = connection.run(lambda admin: plan_deletion(admin, group))
    if not dry_run:
        confirm(f"{_plan_text(plan)} Continue?", yes=yes)
        plan = connection.run(lambda admin: delete_group(admin, group, plan=plan.hash, force=force))
    if as_json:
        print_json(plan)
    else:
        typer.echo(_plan_text(plan) if dry_run else f"Deleted group {group}.")


def _plan_text(plan: GroupDeletionPlan) -> str:
    topics = f" and its offsets on {', '.join(plan.topics)}" if plan.topics else ""
    unread = f" It has {plan.lag:,} unread messages." if plan.lag else ""
    online = f" {plan.members:,} members are online." if plan.members else ""
    return f"This deletes group {plan.group}{topics}.{unread}{online}"
