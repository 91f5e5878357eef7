"""`sparrow tail`: follow a topic."""

from __future__ import annotations

import re
import sys
from contextlib import aclosing
from enum import StrEnum
from typing import Annotated

import typer

from sparrow.cli.admin_client import ConnectionOptions
from sparrow.cli.completion import TopicArgument
from sparrow.cli.message.body_forms import format_body, format_heading, format_hex
from sparrow.cli.output import escape_controls, print_json_line, print_note
from sparrow.cli.output_pipe import watched_output
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.times import TIME_HELP, parse_time_ms
from sparrow.client.aio.admin.admin import Admin
from sparrow.model.protocol import EXPRESSION_SQL92, EXPRESSION_TAG, SUBSCRIBE_ALL
from sparrow.operations.message_lines import MessageLine
from sparrow.operations.messages import MessageView
from sparrow.operations.tail import TailFilter, TailStart, follow_topic

EXAMPLES = """
Examples:

[bold]sparrow tail orders[/bold]   new messages, until Ctrl-C

[bold]sparrow tail orders --from last-10 --filter 'paid || shipped'[/bold]

[bold]sparrow tail orders --from 2h --sql "amount > 100 AND city = 'Oslo'"[/bold]

[bold]sparrow tail orders --from first --exit-at-end --format json > orders.jsonl[/bold]
"""
_OFFSET_MAX = 100_000_000_000
"""A larger number is a time in ms: it is after March 1973."""
_BODY_BYTES_SHOWN_MAX = 64 << 10


class TailFormat(StrEnum):
    """How messages are printed."""

    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    RAW = "raw"


@with_parameter_groups
def tail(
    topic: TopicArgument,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            help=f"first; last; last-10: 10 messages of each queue before its end; an offset; or a time: {TIME_HELP}.",
        ),
    ] = "last",
    tags: Annotated[str | None, typer.Option("--filter", help="Only these tags: 'paid || shipped'.")] = None,
    sql: Annotated[str | None, typer.Option(help="Only messages that match an SQL92 condition.")] = None,
    form: Annotated[
        TailFormat,
        typer.Option(
            "--format", help="text: a heading and the body; json: a line of JSON; hex; raw: the bytes of the bodies."
        ),
    ] = TailFormat.TEXT,
    count: Annotated[int | None, typer.Option("--count", "-c", help="Stop after this many messages.", min=1)] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", help="Stop after the newest message instead of waiting for more.")
    ] = False,
    broker: Annotated[str | None, typer.Option(help="Only queues of this broker.")] = None,
    queue: Annotated[int | None, typer.Option(help="Only this queue.", min=0)] = None,
    *,
    connection: ConnectionOptions,
) -> None:
    """Print the messages of a topic as they arrive, without joining a group.

    [bold]--format json[/bold] prints what [bold]sparrow send --jsonl[/bold] reads.
    """
    if tags is not None and sql is not None:
        raise typer.BadParameter("use --filter or --sql, not both")
    start = parse_start(from_)
    wanted = TailFilter(
        expression=sql or tags or SUBSCRIBE_ALL,
        expression_type=EXPRESSION_SQL92 if sql is not None else EXPRESSION_TAG,
        broker=broker,
        queue_id=queue,
    )

    async def work(admin: Admin) -> int:
        printed = 0
        following = follow_topic(admin, topic, start, wanted, stops_at_end=exit_at_end)
        async with watched_output(), aclosing(following) as messages:  # type: ignore[type-var]
            async for message, _ in messages:
                print_message(message, form)
                printed += 1
                if printed == count:
                    break
        return printed

    if not exit_at_end and sys.stderr.isatty():
        print_note(f"Following {topic}; Ctrl-C ends.")
    printed = connection.run(work)
    if sys.stderr.isatty():
        print_note(f"{printed:,} messages.")


def parse_start(text: str) -> TailStart:
    """Return where to begin; raise `BadParameter` for a text that is no position."""
    if text == "first":
        return TailStart(is_first=True)
    if text == "last":
        return TailStart()
    if found := re.fullmatch(r"last-(\d+)", text):
        return TailStart(newest=int(found[1]))
    if text.isdecimal() and int(text) < _OFFSET_MAX:
        return TailStart(offset=int(text))
    return TailStart(time_ms=parse_time_ms(text))


def print_message(message: MessageView, form: TailFormat) -> None:
    """Print one message, at once even into a pipe."""
    if form is TailFormat.RAW:
        sys.stdout.buffer.write(message.body + b"\n")
    elif form is TailFormat.JSON:
        print_json_line(MessageLine.of(message))
    elif form is TailFormat.HEX:
        typer.echo(f"{format_heading(message)}\n{format_hex(message.body)}")
    else:
        body = message.body
        shown = (
            escape_controls(body.decode(errors="replace"))
            if len(body) <= _BODY_BYTES_SHOWN_MAX
            else format_body(body, bytes_max=_BODY_BYTES_SHOWN_MAX)
        )
        typer.echo(f"{format_heading(message)}\n{shown}")
    sys.stdout.flush()
