"""`sparrow send`: send messages from an argument, a file, standard input or lines of JSON."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from sparrow.cli.admin_client import ConnectionOptions
from sparrow.cli.completion import TopicArgument
from sparrow.cli.exit_codes import ExitCode, exit_code_of
from sparrow.cli.output import JsonOption, print_json_line, print_note
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.send.line_sender import SendTotals, SentLine, send_lines
from sparrow.cli.send.source import SourceLine, read_source
from sparrow.cli.times import parse_duration_ms, parse_time_ms
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.produce.producer import Producer
from sparrow.client.produce.queue_selection import by_sharding_key
from sparrow.operations.message_lines import MessageLine

EXAMPLES = """
Examples:

[bold]sparrow send orders 'a book' --tag paid --key order-7[/bold]

[bold]sparrow send orders --file invoice.pdf --property type=pdf[/bold]

[bold]cat orders.txt | sparrow send orders[/bold]   one message a line

[bold]sparrow tail orders --from first --exit-at-end --format json | sparrow send copy --jsonl[/bold]

[bold]sparrow send reminders 'call Ada' --delay 10m[/bold]
"""

_LINGER_MS = 2
"""Many messages travel in batches: they wait this long for others."""
_ERRORS_SHOWN_MAX = 10


@with_parameter_groups
def send(
    topic: TopicArgument,
    body: Annotated[
        str | None, typer.Argument(help="Body of one message. Without it: one message for each line of the input.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="File that is the body of one message; with --lines or --jsonl: the input.", exists=True),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Send each line of --file as a message.")] = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Lines are JSON objects with body or body_base64, keys, tags, properties …")
    ] = False,
    key: Annotated[list[str] | None, typer.Option(help="Key by which the message can be found. Repeatable.")] = None,
    tag: Annotated[str | None, typer.Option(help="Tag, which consumers filter by.")] = None,
    property_: Annotated[
        list[str] | None, typer.Option("--property", help="Property. Repeatable.", metavar="NAME=VALUE")
    ] = None,
    message_group: Annotated[
        str | None, typer.Option(help="Sharding key: messages with the same one go to one queue, in order.")
    ] = None,
    priority: Annotated[str | None, typer.Option(help="high, middle or low, in a topic with lanes.")] = None,
    delay: Annotated[str | None, typer.Option(help="Deliver later: 10s, 5m, 2h.")] = None,
    at: Annotated[str | None, typer.Option(help="Deliver at a time: ISO 8601 (local), or ms since 1970.")] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on after a message that cannot be sent; exit with 6.")
    ] = False,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """Send messages to a topic.

    [bold]--json[/bold] prints one object a message. Rate and failures are printed at the end, to stderr.
    """
    if body is not None and file is not None:
        raise typer.BadParameter("use a body or --file, not both")
    if lines and jsonl:
        raise typer.BadParameter("use --lines or --jsonl, not both")
    defaults = MessageLine(
        keys=key or [],
        tags=tag,
        properties=_parse_properties(property_ or []),
        message_group=message_group,
        priority=priority,
        delay_ms=None if delay is None else parse_duration_ms(delay),
        deliver_at_ms=None if at is None else parse_time_ms(at),
    )
    is_one = body is not None or (file is not None and not (lines or jsonl))
    if not is_one and file is None and sys.stdin.isatty():
        print_note("Type one message a line; Ctrl-D ends.")
    report = _Report(is_one=is_one, as_json=as_json, keeps_going=keep_going)

    async def work(admin: Admin) -> SendTotals:
        # A batch fails as a whole, so messages that may fail alone travel alone.
        options: dict[str, Any] = {} if is_one or keep_going else {"linger_ms": _LINGER_MS}
        async with Producer(session=admin.session, selector=by_sharding_key(), **options) as producer:
            source = read_source(body, file, is_jsonl=jsonl, is_lines=lines)
            with report.bar(file if not is_one else None):
                totals = await send_lines(
                    producer, topic, source, defaults, keeps_going=keep_going, on_result=report.add
                )
            if is_one and totals.first_error is not None:
                raise totals.first_error
            return totals

    totals = connection.run(work)
    if not is_one:
        print_note(f"{totals}.")
    if totals.first_error is not None:
        code = ExitCode.PARTLY_DONE if totals.sent else exit_code_of(totals.first_error)
        raise typer.Exit(code)


class _Report:
    """Prints results as they arrive."""

    def __init__(self, *, is_one: bool, as_json: bool, keeps_going: bool) -> None:
        self._is_one, self._as_json, self._keeps_going = is_one, as_json, keeps_going
        self._progress: Progress | None = None
        self._errors = 0

    def bar(self, file: Path | None) -> Any:
        """Return a context in which a bar shows how much of the input is sent, if a person watches."""
        if file is None or not sys.stderr.isatty():
            return nullcontext()
        columns = (TextColumn("sending"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._work = self._progress.add_task("", total=file.stat().st_size)
        return self._progress

    def add(self, result: SentLine, line: SourceLine) -> None:
        """Print what became of a line."""
        if self._progress is not None:
            self._progress.advance(self._work, line.size_bytes)
        if self._as_json and (result.is_sent or not self._is_one):
            print_json_line(result)
        elif result.is_sent and self._is_one:
            typer.echo(
                f"sent {result.message_id} to {result.topic}, queue {result.queue_id} of broker {result.broker}, "
                f"offset {result.queue_offset:,}"
            )
            if result.recall_handle:
                typer.echo(f"recall handle: {result.recall_handle}")
        elif not result.is_sent and not self._is_one:
            self._errors += 1
            if self._errors <= _ERRORS_SHOWN_MAX:
                print_note(f"line {result.line}: {result.error}")


def _parse_properties(pairs: list[str]) -> dict[str, str]:
    properties = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not (name and separator):
            raise typer.BadParameter(f"{pair!r} is no property: use NAME=VALUE")
        properties[name] = value
    return properties
