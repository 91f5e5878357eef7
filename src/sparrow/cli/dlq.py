"""`sparrow dlq`: list, show and redrive dead letters, directly from the brokers and without Spark."""

from __future__ import annotations

import difflib
import json
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparrow.cli.admin_client import AccessKeyOption, NameServersOption, SecretKeyOption, open_admin
from sparrow.client.aio.admin.dead_letters import known_ids
from sparrow.client.blocking.admin import Admin
from sparrow.client.options import DEFAULT_NAME_SERVERS
from sparrow.model.errors import Refused
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import (
    DLQ_TOPIC_PREFIX,
    PROPERTY_DLQ_ATTEMPT,
    PROPERTY_DLQ_CONSUMER,
    PROPERTY_DLQ_ERROR_TYPE,
    PROPERTY_DLQ_REASON,
    PROPERTY_DLQ_TRACEBACK,
)

app = typer.Typer(help="List, show and redrive dead letters.", no_args_is_help=True)

GroupArgument = Annotated[str, typer.Argument(help="Consumer group.")]
_BODY_CHARS_MAX = 2_000
_LAST_LETTER = ("time", "topic", "error", "reason")
"""What the list of groups shows of the newest dead letter of a group."""
_WIDE = ("keys", "consumer")
"""What only `--json` and `show` print, because a terminal is too narrow."""
_REASON_CHARS_MAX = 120


@app.command("list")
def list_all(
    group: Annotated[str | None, typer.Argument(help="Consumer group. Without it: one line for each group.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum dead letters to show, the newest first.", min=1)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    name_servers: NameServersOption = DEFAULT_NAME_SERVERS,
    access_key: AccessKeyOption = None,
    secret_key: SecretKeyOption = None,
) -> None:
    """List the groups with dead letters, or the newest dead letters of a group and why they failed.

    Examples: [bold]sparrow dlq list[/bold]   [bold]sparrow dlq list billing --limit 100[/bold]

    For a report by cause and hour over many dead letters, use [bold]sparrow pipeline deadletters[/bold].
    """
    with open_admin(name_servers, access_key, secret_key) as admin:
        rows = _group_rows(admin) if group is None else _letter_rows(admin, _checked(group), limit)
        if group is not None and not rows:
            _require_group(admin, group)
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False))
    elif not rows:
        typer.echo("There are no dead letters." if group is None else f"Group {group} has no dead letters.")
    else:
        Console().print(_table(rows))


@app.command()
def show(
    group: GroupArgument,
    message_id: Annotated[str, typer.Argument(help="Id of the dead letter, as `sparrow dlq list GROUP` shows it.")],
    name_servers: NameServersOption = DEFAULT_NAME_SERVERS,
    access_key: AccessKeyOption = None,
    secret_key: SecretKeyOption = None,
) -> None:
    """Show a dead letter: why it failed, its traceback, its properties and its body.

    Example: [bold]sparrow dlq show billing 7F00000100002A9F0000000000000000[/bold]
    """
    with open_admin(name_servers, access_key, secret_key) as admin:
        letters = [letter for letter in admin.dead_letters(_checked(group)) if message_id in known_ids(letter)]
    if not letters:
        raise Refused(
            f"group {group!r} has no dead letter with the id {message_id!r}: `sparrow dlq list {group}` lists them"
        )
    for letter in letters:
        _print_letter(letter)


@app.command()
def redrive(
    group: GroupArgument,
    message_id: Annotated[list[str] | None, typer.Option("--id", help="Id of a dead letter. Repeatable.")] = None,
    since: Annotated[
        datetime | None, typer.Option(help="Dead letters since this local time, such as 2026-05-01T10:00:00.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters of the group.")] = False,
    to_group_only: Annotated[
        bool, typer.Option("--to-group-only", help="Send them to this group only, not to their topic.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    name_servers: NameServersOption = DEFAULT_NAME_SERVERS,
    access_key: AccessKeyOption = None,
    secret_key: SecretKeyOption = None,
) -> None:
    """Send dead letters to their original topics again. They stay in the dead-letter topic.

    Example: [bold]sparrow dlq redrive billing --since 2026-05-01T10:00:00[/bold]
    """
    if bool(message_id) + (since is not None) + everything != 1:
        raise typer.BadParameter("use exactly one of --id, --since and --all")
    if not yes:
        which = "these" if message_id else "all" if everything else "the newer"
        typer.confirm(f"Send {which} dead letters of group {group} again?", abort=True)
    with open_admin(name_servers, access_key, secret_key) as admin:
        count = admin.redrive(
            _checked(group), ids=message_id or None, since=since, everything=everything, to_group_only=to_group_only
        )
    typer.echo(f"{count:,} dead letters of group {group} sent again.")


def _checked(group: str) -> str:
    if group.startswith(DLQ_TOPIC_PREFIX):
        raise Refused(f"{group!r} is a topic, not a group: use {group.removeprefix(DLQ_TOPIC_PREFIX)}")
    return group


def _require_group(admin: Admin, group: str) -> None:
    """Raise `Refused` for a group that does not exist, mostly a misspelled one."""
    known = [name for name in admin.groups() if not name.startswith("CID_")]
    if group not in known:
        near = difflib.get_close_matches(group, known, 3)
        meant = f"did you mean {' or '.join(map(repr, near))}?" if near else "check its name"
        raise Refused(f"group {group!r} does not exist: {meant}")


def _group_rows(admin: Admin) -> list[dict[str, Any]]:
    rows = []
    for topic in sorted(name for name in admin.topics() if name.startswith(DLQ_TOPIC_PREFIX)):
        group = topic.removeprefix(DLQ_TOPIC_PREFIX)
        count = sum(bounds.end - bounds.first for bounds in admin.topic_bounds(topic).values())
        if count:
            last = _letter_rows(admin, group, 1)[0]
            rows.append({"group": group, "letters": count} | {name: last[name] for name in _LAST_LETTER})
    return rows


def _letter_rows(admin: Admin, group: str, limit: int) -> list[dict[str, Any]]:
    letters = sorted(admin.dead_letters(group, newest=limit), key=lambda letter: letter.store_ms, reverse=True)
    return [
        {
            "time": _time(letter.store_ms),
            "topic": letter.topic,
            "id": letter.unique_key or "",
            "keys": " ".join(letter.keys),
            "attempt": letter.properties.get(PROPERTY_DLQ_ATTEMPT, str(letter.reconsume_times)),
            "consumer": letter.properties.get(PROPERTY_DLQ_CONSUMER, ""),
            "error": letter.properties.get(PROPERTY_DLQ_ERROR_TYPE, ""),
            "reason": letter.properties.get(PROPERTY_DLQ_REASON, ""),
        }
        for letter in letters[:limit]
    ]


def _table(rows: list[dict[str, Any]]) -> Table:
    columns = [name for name in rows[0] if name not in _WIDE]
    table = Table(*columns)
    for row in rows:
        table.add_row(*(escape(_one_line(row[name])) for name in columns))
    return table


def _one_line(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else " ".join(str(value).split())
    return text if len(text) <= _REASON_CHARS_MAX else f"{text[:_REASON_CHARS_MAX]}…"


def _print_letter(letter: StoredMessage) -> None:
    properties = dict(letter.properties)
    traceback = properties.pop(PROPERTY_DLQ_TRACEBACK, "")
    lines = {
        "reason": properties.pop(PROPERTY_DLQ_REASON, "not given"),
        "error": properties.pop(PROPERTY_DLQ_ERROR_TYPE, ""),
        "attempt": properties.pop(PROPERTY_DLQ_ATTEMPT, str(letter.reconsume_times)),
        "consumer": properties.pop(PROPERTY_DLQ_CONSUMER, ""),
        "time": _time(letter.store_ms),
        "topic": letter.topic,
        "id": letter.unique_key or "",
        **{f"property {name}": text for name, text in properties.items()},
    }
    # Not through rich, which would wrap ids and the body in a narrow terminal.
    for name, text in lines.items():
        typer.echo(f"{name}: {text}")
    if traceback:
        typer.echo(f"\n{traceback}")
    body = letter.body.decode(errors="replace")
    more = f"… ({len(letter.body):,} bytes)" if len(body) > _BODY_CHARS_MAX else ""
    typer.echo(f"\n{body[:_BODY_CHARS_MAX]}{more}\n")


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="seconds")
