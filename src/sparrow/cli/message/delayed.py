"""`sparrow message delayed` and `recall`: list messages that wait for their delivery time, and cancel deliveries."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
import typer

from sparrow.cli.admin_client import ConnectionOptions
from sparrow.cli.completion import complete_topic
from sparrow.cli.output import JsonOption, format_time, print_json, print_note, print_table
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.times import parse_time_ms
from sparrow.cli.waiting_actions import WaitingActionOptions, carry_out
from sparrow.operations.waiting_messages.delayed_messages import (
    DelayedCursor,
    DelayedMessageView,
    list_delayed,
    plan_recall,
    recall_delayed,
)

T = TypeVar("T")

DUE_HELP = "ISO 8601 (local time), or ms since 1970"
WaitingTopicOption = Annotated[
    str | None, typer.Option("--topic", help="Only messages for this topic.", autocompletion=complete_topic)
]


class DelayedList(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that wait for their delivery time, the next to be delivered first."""

    messages: list[DelayedMessageView]
    scanned: int
    """Delayed messages that were read."""
    complete: bool
    """Whether everything was read."""
    next: DelayedCursor | None
    """What --after takes to continue; null if it is complete."""


@with_parameter_groups
def delayed(
    topic: WaitingTopicOption = None,
    due_from: Annotated[str | None, typer.Option("--from", help=f"Due at this time or later: {DUE_HELP}.")] = None,
    due_to: Annotated[str | None, typer.Option("--to", help=f"Due before this time: {DUE_HELP}.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum messages to show.", min=1, max=200)] = 50,
    after: Annotated[str | None, typer.Option(help="Continue a list with its `next`.", metavar="JSON")] = None,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """List messages that wait for their delivery time, the next to be delivered first.

    A broker reads 2,000 messages for one list; a note says if there may be more.

    Examples: [bold]sparrow message delayed[/bold]   [bold]sparrow message delayed --topic reminders --json[/bold]
    """
    cursor = None if after is None else parse_cursor(after, DelayedCursor)
    page = connection.run(
        lambda admin: list_delayed(
            admin,
            topic=topic,
            from_ms=0 if due_from is None else parse_time_ms(due_from),
            until_ms=None if due_to is None else parse_time_ms(due_to),
            limit=limit,
            after=cursor,
        )
    )
    if as_json:
        print_json(
            DelayedList(messages=list(page.messages), scanned=page.scanned, complete=page.complete, next=page.next)
        )
    elif page.messages:
        columns = ("due", "topic", "id", "keys", "tag", "handle")
        print_table(
            columns,
            [
                (format_time(each.due_ms), each.topic, each.message_id, each.keys, each.tags, each.handle)
                for each in page.messages
            ],
        )
    else:
        typer.echo("No delayed message waits." if page.complete else "None found yet.")
    print_incomplete(page.next)


@with_parameter_groups
def recall(
    handle: Annotated[
        list[str],
        typer.Argument(help="Recall handles, as `sparrow message delayed` or `sparrow send --json` shows them."),
    ],
    *,
    options: WaitingActionOptions,
    connection: ConnectionOptions,
) -> None:
    """Cancel the delivery of delayed messages, with a result for each.

    Exit with 3 if none of them waits any more, and with 6 if some could not be recalled.

    Examples: [bold]sparrow message recall djEgb3JkZXJz --dry-run[/bold]
    [bold]sparrow message recall djEgb3JkZXJz --yes[/bold]
    """
    carry_out(
        connection,
        options,
        lambda admin: plan_recall(admin, handle),
        lambda admin, plan: recall_delayed(admin, handle, plan=plan),
        question="Recall {count} delayed messages? They will never be delivered.",
        done="{count} delayed messages recalled.",
    )


def print_incomplete(following: object) -> None:
    """Print how to continue a list that is not complete."""
    if following is not None:
        print_note(f"Incomplete: continue with --after '{msgspec.json.encode(following).decode()}'.")


def parse_cursor(text: str, kind: type[T]) -> T:
    """Return the position at which a list continues."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as cause:
        raise typer.BadParameter(f"{text[:80]!r} is not the `next` of a list: {cause}") from cause
