"""`sparrow dlq`: list, show and redrive dead letters, directly from the brokers and without Spark."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from sparrow.cli.admin_client import ConnectionOptions
from sparrow.cli.completion import GroupArgument, complete_group
from sparrow.cli.exit_codes import ExitCode
from sparrow.cli.message.body_forms import format_body
from sparrow.cli.output import (
    JsonOption,
    YesOption,
    confirm,
    format_time,
    plain,
    print_fields,
    print_json,
    print_note,
    print_table,
)
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.times import TIME_HELP, parse_time_ms
from sparrow.client.aio.admin.admin import Admin
from sparrow.model.errors import Refused
from sparrow.model.protocol import DLQ_TOPIC_PREFIX
from sparrow.operations.dead_letters import (
    DeadLetterPage,
    DeadLetterView,
    RedrivePlan,
    RedriveReport,
    RedriveSelection,
    find_dead_letter,
    list_dead_letters,
    list_groups_with_dead_letters,
    plan_redrive,
)
from sparrow.operations.dead_letters import redrive as redrive_letters
from sparrow.operations.message_lines import MessageLine
from sparrow.operations.messages import SearchLimits

app = typer.Typer(help="List, show and redrive dead letters.", no_args_is_help=True)

_BODY_BYTES_SHOWN_MAX = 2_000
_CAUSE_CHARS_MAX = 120
_ERRORS_SHOWN_MAX = 10


class DeadLetterRow(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter in a list."""

    group: str
    time: str
    """When it became a dead letter."""
    topic: str
    """Where it was sent first."""
    id: str
    keys: list[str]
    attempts: int | None
    cause: str
    """The error and the reason, as far as they are known."""
    consumer: str | None
    error: str | None
    reason: str | None

    @classmethod
    def of(cls, letter: DeadLetterView) -> DeadLetterRow:
        """Return the row of a dead letter."""
        return cls(
            group=letter.group,
            time=format_time(letter.message.store_ms),
            topic=letter.topic,
            id=letter.message.id,
            keys=list(letter.message.keys),
            attempts=letter.attempts,
            cause=letter.cause,
            consumer=letter.consumer,
            error=letter.error_type,
            reason=letter.reason,
        )


class DeadLetterGroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """A group with dead letters, and the newest of them."""

    group: str
    letters: int
    newest: DeadLetterRow | None


class DeadLetterDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a dead letter."""

    letter: DeadLetterRow
    traceback: str | None
    message: MessageLine


@app.command("list")
@with_parameter_groups
def list_all(
    group: Annotated[
        str | None,
        typer.Argument(help="Consumer group. Without it: one line for each group.", autocompletion=complete_group),
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum dead letters to show, the newest first.", min=1)] = 20,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """List the groups with dead letters, or the newest dead letters of a group and why they failed.

    Examples: [bold]sparrow dlq list[/bold]   [bold]sparrow dlq list billing --limit 100[/bold]

    For a report by cause and hour over many dead letters, use [bold]sparrow pipeline deadletters[/bold].
    """
    if group is None:
        _list_groups(connection.run(_fetch_groups), as_json=as_json)
        return
    name = _checked(group)
    page = connection.run(lambda admin: _fetch_page(admin, name, limit))
    rows = [DeadLetterRow.of(letter) for letter in page.letters]
    if as_json:
        print_json(rows)
    elif rows:
        columns = ("time", "topic", "id", "attempts", "cause")
        print_table(columns, [(row.time, row.topic, row.id, row.attempts, _short(row.cause)) for row in rows])
    else:
        typer.echo(f"Group {group} has no dead letters.")


async def _fetch_page(admin: Admin, group: str, limit: int) -> DeadLetterPage:
    return await list_dead_letters(admin, group, limits=SearchLimits(found=limit, scanned=limit))


async def _fetch_groups(admin: Admin) -> list[DeadLetterGroupRow]:
    rows = []
    for found in await list_groups_with_dead_letters(admin):
        page = await _fetch_page(admin, found.group, 1)
        newest = DeadLetterRow.of(page.letters[0]) if page.letters else None
        rows.append(DeadLetterGroupRow(group=found.group, letters=found.letters, newest=newest))
    return rows


def _list_groups(rows: list[DeadLetterGroupRow], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
    elif rows:
        columns = ("group", "letters", "newest", "topic", "attempts", "cause")
        cells = [
            (
                row.group,
                row.letters,
                *((row.newest.time, row.newest.topic, row.newest.attempts) if row.newest else ("", "", None)),
                _short(row.newest.cause) if row.newest else "",
            )
            for row in rows
        ]
        print_table(columns, cells)
    else:
        typer.echo("There are no dead letters.")


@app.command()
@with_parameter_groups
def show(
    group: GroupArgument,
    message_id: Annotated[str, typer.Argument(help="Id of the dead letter, as `sparrow dlq list GROUP` shows it.")],
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """Show a dead letter: why it failed, its traceback, its properties and its body.

    Example: [bold]sparrow dlq show billing 7F00000100002A9F0000000000000000[/bold]
    """
    name = _checked(group)
    letter = connection.run(lambda admin: find_dead_letter(admin, name, message_id))
    row, line = DeadLetterRow.of(letter), MessageLine.of(letter.message)
    if as_json:
        print_json(DeadLetterDetail(letter=row, traceback=letter.traceback, message=line))
        return
    print_fields(
        {
            "group": row.group,
            "reason": row.reason or "not given",
            "error": row.error,
            "attempts": row.attempts,
            "consumer": row.consumer,
            "time": row.time,
            "topic": row.topic,
            "id": row.id,
            "keys": row.keys,
            **{f"property {name}": text for name, text in line.properties.items()},
        }
    )
    if letter.traceback:
        typer.echo(f"\n{plain(letter.traceback)}")
    typer.echo(f"\n{format_body(letter.message.body, bytes_max=_BODY_BYTES_SHOWN_MAX)}\n")


@app.command()
@with_parameter_groups
def redrive(
    group: GroupArgument,
    message_id: Annotated[list[str] | None, typer.Option("--id", help="Id of a dead letter. Repeatable.")] = None,
    since: Annotated[str | None, typer.Option(help=f"Dead letters since: {TIME_HELP}.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters of the group.")] = False,
    to_group_only: Annotated[
        bool, typer.Option("--to-group-only", help="Send them to this group only, not to their topic.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """Send dead letters to their original topics again. They stay in the dead-letter topic.

    Exit with 3 if none of the ids is a dead letter, and with 6 if some could not be sent.

    Examples: [bold]sparrow dlq redrive billing --since 2h --dry-run[/bold]
    [bold]sparrow dlq redrive billing --id 7F00000100002A9F0000000000000000 --yes[/bold]
    """
    if bool(message_id) + (since is not None) + everything != 1:
        raise typer.BadParameter("use exactly one of --id, --since and --all")
    name = _checked(group)
    selection = RedriveSelection(
        ids=tuple(message_id) if message_id else None,
        since_ms=None if since is None else parse_time_ms(since),
        everything=everything,
    )
    plan = connection.run(lambda admin: plan_redrive(admin, name, selection))
    if dry_run:
        _print_plan(plan, as_json=as_json)
        return
    confirm(f"Send {plan.count:,} dead letters of group {name} again?", yes=yes)
    result = connection.run(
        lambda admin: redrive_letters(admin, name, selection, plan=plan.hash, to_group_only=to_group_only)
    )
    _print_result(result, as_json=as_json)
    if result.failed or result.not_found:
        raise typer.Exit(_exit_code(result))


def _print_plan(plan: RedrivePlan, *, as_json: bool) -> None:
    if as_json:
        print_json(plan)
        return
    typer.echo(f"{plan.count:,} dead letters of group {plan.group} would be sent again.")
    for missing in plan.missing:
        print_note(f"{missing}: not found")


def _print_result(result: RedriveReport, *, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    typer.echo(f"{result.sent:,} dead letters of group {result.group} sent again.")
    bad = [item for item in result.items if item.state != "sent"]
    for item in bad[:_ERRORS_SHOWN_MAX]:
        print_note(f"{plain(item.id)}: {item.error or 'not found'}")
    if len(bad) > _ERRORS_SHOWN_MAX:
        print_note(f"and {len(bad) - _ERRORS_SHOWN_MAX:,} more; --json lists them")


def _exit_code(result: RedriveReport) -> ExitCode:
    if result.sent:
        return ExitCode.PARTLY_DONE
    return ExitCode.FAILED if result.failed else ExitCode.NOT_FOUND


def _checked(group: str) -> str:
    if group.startswith(DLQ_TOPIC_PREFIX):
        raise Refused(f"{group!r} is a topic, not a group: use {group.removeprefix(DLQ_TOPIC_PREFIX)}")
    return group


def _short(cause: str) -> str:
    text = " ".join(cause.split())
    return text if len(text) <= _CAUSE_CHARS_MAX else f"{text[:_CAUSE_CHARS_MAX]}…"
