"""`sparrow transaction`: list half messages and end them by force, and list the transactions that brokers gave up."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from sparrow.cli.admin_client import ConnectionOptions
from sparrow.cli.message.delayed import WaitingTopicOption, parse_cursor, print_incomplete
from sparrow.cli.output import JsonOption, format_time, print_json, print_table
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.waiting_actions import WaitingActionOptions, carry_out
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import PROPERTY_CHECK_TIMES, PROPERTY_PRODUCER_GROUP
from sparrow.operations.waiting_messages.actions import WaitingAction
from sparrow.operations.waiting_messages.half_messages import (
    HalfCursor,
    HalfMessageView,
    end_half_messages,
    list_half_messages,
    plan_end,
)

app = typer.Typer(help="List half messages, end transactions, and list those that were given up.", no_args_is_help=True)

HalfIdArgument = Annotated[
    list[str], typer.Argument(help="Ids of half messages, as `sparrow transaction half` shows them: broker@offset.")
]


class GivenUpTransaction(msgspec.Struct, frozen=True):
    """A transaction that no producer ended."""

    given_up: str
    """When the broker rolled it back."""
    topic: str
    """The topic that its message was meant for."""
    producer_group: str
    id: str
    keys: str
    checks: str
    """How often the broker checked back."""

    @classmethod
    def of(cls, message: StoredMessage) -> GivenUpTransaction:
        """Return the transaction of a half message."""
        return cls(
            format_time(message.store_ms),
            message.topic,
            message.properties.get(PROPERTY_PRODUCER_GROUP, ""),
            message.unique_key or "",
            " ".join(message.keys),
            message.properties.get(PROPERTY_CHECK_TIMES, ""),
        )


class HalfList(msgspec.Struct, frozen=True, kw_only=True):
    """Half messages whose transaction is not ended, the oldest first."""

    messages: list[HalfMessageView]
    scanned: int
    """Half messages that were looked at."""
    complete: bool
    """Whether everything was read."""
    next: HalfCursor | None
    """What --after takes to continue; null if it is complete."""


@app.command("list")
@with_parameter_groups
def list_all(
    limit: Annotated[int, typer.Option(help="Maximum transactions to show, the newest first.", min=1)] = 20,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """List the transactions that no producer ended, and that the brokers rolled back after the last check-back.

    Their messages are in the topic TRANS_CHECK_MAX_TIME_TOPIC.

    Example: [bold]sparrow transaction list --limit 100[/bold]
    """
    messages = connection.run(lambda admin: admin.given_up_transactions(newest=limit))
    newest = sorted(messages, key=lambda each: each.store_ms, reverse=True)[:limit]
    rows = [GivenUpTransaction.of(message) for message in newest]
    if as_json:
        print_json(rows)
    elif not rows:
        typer.echo("No transaction was given up.")
    else:
        columns = ("given up", "topic", "producer group", "id", "keys", "checks")
        print_table(columns, [msgspec.structs.astuple(row) for row in rows])


@app.command()
@with_parameter_groups
def half(
    topic: WaitingTopicOption = None,
    limit: Annotated[int, typer.Option(help="Maximum half messages to show.", min=1, max=200)] = 50,
    after: Annotated[str | None, typer.Option(help="Continue a list with its `next`.", metavar="JSON")] = None,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """List half messages: transactions that no producer has ended yet, the oldest first.

    Examples: [bold]sparrow transaction half[/bold]   [bold]sparrow transaction half --topic payments[/bold]
    """
    cursor = None if after is None else parse_cursor(after, HalfCursor)
    page = connection.run(lambda admin: list_half_messages(admin, topic=topic, limit=limit, after=cursor))
    if as_json:
        print_json(HalfList(messages=list(page.messages), scanned=page.scanned, complete=page.complete, next=page.next))
    elif page.messages:
        columns = ("id", "begun", "topic", "producer group", "message id", "keys", "checks", "next check")
        rows = [
            (
                each.id,
                format_time(each.store_ms),
                each.topic,
                each.producer_group,
                each.message_id,
                each.keys,
                f"{each.checks} of {each.checks_max}",
                format_time(each.next_check_ms),
            )
            for each in page.messages
        ]
        print_table(columns, rows)
    else:
        typer.echo("No half message waits for its end." if page.complete else "None found yet.")
    print_incomplete(page.next)


@app.command()
@with_parameter_groups
def commit(
    half_id: HalfIdArgument,
    *,
    options: WaitingActionOptions,
    connection: ConnectionOptions,
) -> None:
    """Commit transactions although their producers did not: their messages are delivered.

    Exit with 3 if none of them waits any more, and with 6 if some could not be committed.

    Example: [bold]sparrow transaction commit sparrow@7 --dry-run[/bold]
    """
    question = "Commit {count} transactions? Their messages will be delivered."
    _end(connection, options, half_id, WaitingAction.COMMIT, question, "{count} transactions committed.")


@app.command()
@with_parameter_groups
def rollback(
    half_id: HalfIdArgument,
    *,
    options: WaitingActionOptions,
    connection: ConnectionOptions,
) -> None:
    """Roll transactions back: their messages are never delivered, and a later commit has no effect.

    Exit with 3 if none of them waits any more, and with 6 if some could not be rolled back.

    Example: [bold]sparrow transaction rollback sparrow@7 sparrow@8 --yes[/bold]
    """
    question = "Roll back {count} transactions? Their messages will never be delivered."
    _end(connection, options, half_id, WaitingAction.ROLLBACK, question, "{count} transactions rolled back.")


def _end(
    connection: ConnectionOptions,
    options: WaitingActionOptions,
    ids: list[str],
    action: WaitingAction,
    question: str,
    done: str,
) -> None:
    carry_out(
        connection,
        options,
        lambda admin: plan_end(admin, ids, action),
        lambda admin, plan: end_half_messages(admin, ids, action, plan=plan),
        question=question,
        done=done,
    )
