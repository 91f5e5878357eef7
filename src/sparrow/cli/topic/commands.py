"""`sparrow topic`: list, show, create, change and delete topics."""

from __future__ import annotations

from typing import Annotated

import typer

from sparrow.cli.admin_client import ConnectionOptions
from sparrow.cli.completion import TopicArgument
from sparrow.cli.output import (
    JsonOption,
    YesOption,
    confirm,
    format_bytes,
    format_time,
    print_fields,
    print_json,
    print_note,
    print_table,
)
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.client.aio.admin.admin import Admin
from sparrow.model.protocol import PERM_READ, PERM_WRITE
from sparrow.operations.topics import (
    TopicDeletionPlan,
    TopicDetail,
    TopicKind,
    TopicSummary,
    delete_topic,
    fetch_topic,
    list_topics,
    plan_deletion,
    put_topic,
)

app = typer.Typer(help="List, show, create, change and delete topics.", no_args_is_help=True)

_PERMISSIONS = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE}

PermissionOption = Annotated[
    str | None, typer.Option("--permission", help="rw; r: no sends; w: no reads.", metavar="rw|r|w")
]


@app.command("list")
@with_parameter_groups
def list_all(
    everything: Annotated[bool, typer.Option("--all", help="Include retry, dead-letter and system topics.")] = False,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """List topics with their queues and stored messages.

    Examples: [bold]sparrow topic list[/bold]   [bold]sparrow topic list --all --json[/bold]
    """
    kinds = None if everything else frozenset({TopicKind.NORMAL})
    topics = connection.run(lambda admin: list_topics(admin, kinds=kinds))
    if as_json:
        print_json(topics)
    elif topics:
        columns = ("topic", "kind", "queues", "messages", "access", "brokers")
        print_table(
            columns,
            [(each.name, _kind(each), each.queues, each.messages, _access(each), each.brokers) for each in topics],
        )
    else:
        print_note("There are no topics: create one with `sparrow topic create NAME`, or send a message.")


@app.command()
@with_parameter_groups
def show(topic: TopicArgument, as_json: JsonOption = False, *, connection: ConnectionOptions) -> None:
    """Show the queues of a topic, the offsets they hold, and the groups that read it.

    Example: [bold]sparrow topic show orders[/bold]
    """
    found = connection.run(lambda admin: fetch_topic(admin, topic))
    if as_json:
        print_json(found)
        return
    summary = found.summary
    print_fields(
        {
            "topic": summary.name,
            "kind": _kind(summary),
            "access": _access(summary),
            "brokers": summary.brokers,
            "messages": summary.messages,
            "messages in per second": found.in_per_s,
            "read by": found.groups or "no group",
        }
    )
    _print_queues(found)


def _print_queues(found: TopicDetail) -> None:
    has_lanes = found.summary.has_lanes
    columns = ["broker", "queue", *(["lane"] if has_lanes else []), "first", "end", "messages", "newest", "mean size"]
    rows = [
        [
            queue.broker,
            queue.queue_id,
            *([queue.lane] if has_lanes else []),
            queue.first,
            queue.end,
            queue.messages,
            format_time(queue.newest_ms),
            "" if queue.mean_bytes is None else format_bytes(queue.mean_bytes),
        ]
        for queue in found.queues
    ]
    print_table(columns, rows)


@app.command()
@with_parameter_groups
def create(
    topic: Annotated[str, typer.Argument(help="Name of the new topic.")],
    queues: Annotated[int, typer.Option(help="Queues on each broker.", min=1, max=65_536)] = 8,
    lanes: Annotated[bool, typer.Option("--lanes", help="Messages have priorities: high, middle and low.")] = False,
    permission: PermissionOption = None,
    message_type: Annotated[
        str | None,
        typer.Option("--type", help="Accept only this kind: NORMAL, FIFO, DELAY, TRANSACTION or PRIORITY."),
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="Only on the brokers of this cluster.")] = None,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """Create a topic. One that exists is refused.

    Examples: [bold]sparrow topic create orders --queues 16[/bold]   [bold]sparrow topic create alarms --lanes[/bold]
    """
    created = connection.run(
        lambda admin: put_topic(
            admin,
            topic,
            queues=queues,
            has_lanes=lanes,
            permission=_parse_permission(permission or "rw"),
            message_type=message_type,
            cluster=cluster,
            is_new=True,
        )
    )
    _print_change("created", created, as_json=as_json)


@app.command()
@with_parameter_groups
def update(
    topic: TopicArgument,
    queues: Annotated[int | None, typer.Option(help="Queues on each broker.", min=1, max=65_536)] = None,
    permission: PermissionOption = None,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """Change the queues or the access of a topic; what is not given stays as it is.

    Examples: [bold]sparrow topic update orders --queues 32[/bold]
    [bold]sparrow topic update orders --permission r[/bold]
    """
    if queues is None and permission is None:
        raise typer.BadParameter("nothing to change: use --queues or --permission")

    async def work(admin: Admin) -> TopicSummary:
        found = await fetch_topic(admin, topic)
        configs = list(found.configs.values())
        return await put_topic(
            admin,
            topic,
            queues=queues or max(config.write_queues for config in configs),
            has_lanes=found.summary.has_lanes,
            permission=configs[0].permission if permission is None else _parse_permission(permission),
            is_new=False,
        )

    _print_change("changed", connection.run(work), as_json=as_json)


@app.command()
@with_parameter_groups
def delete(
    topic: TopicArgument,
    yes: YesOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """Delete a topic with its messages and the offsets of its groups.

    Examples: [bold]sparrow topic delete orders[/bold]   [bold]sparrow topic delete orders --yes[/bold]
    """
    plan = connection.run(lambda admin: plan_deletion(admin, topic))
    if not dry_run:
        confirm(f"{_plan_text(plan)} Continue?", yes=yes)
        plan = connection.run(lambda admin: delete_topic(admin, topic, plan=plan.hash))
    if as_json:
        print_json(plan)
    else:
        typer.echo(_plan_text(plan) if dry_run else f"Deleted topic {topic} with {plan.messages:,} messages.")


def _plan_text(plan: TopicDeletionPlan) -> str:
    groups = f", and the offsets of {', '.join(plan.groups)}" if plan.groups else ""
    return f"This deletes topic {plan.topic} with {plan.messages:,} messages on {', '.join(plan.brokers)}{groups}."


def _print_change(verb: str, summary: TopicSummary, *, as_json: bool) -> None:
    if as_json:
        print_json(summary)
    else:
        brokers = ", ".join(summary.brokers)
        typer.echo(f"Topic {summary.name} {verb}: {summary.queues} queues on {brokers}, access {_access(summary)}.")


def _parse_permission(text: str) -> int:
    if text not in _PERMISSIONS:
        raise typer.BadParameter(f"{text!r} is no permission: use rw, r or w")
    return _PERMISSIONS[text]


def _access(summary: TopicSummary) -> str:
    return ("r" if summary.is_readable else "") + ("w" if summary.is_writable else "") or "none"


def _kind(summary: TopicSummary) -> str:
    kind = summary.message_type.lower() if summary.message_type else str(summary.kind)
    return f"{kind}, lanes" if summary.has_lanes else kind
