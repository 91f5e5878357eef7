"""`sparrow message`: get a message by id, find messages by key, time, tag or text; delayed messages (`delayed`)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import typer

from sparrow.cli.admin_client import ConnectionOptions
from sparrow.cli.completion import TopicArgument, complete_topic
from sparrow.cli.exit_codes import ExitCode
from sparrow.cli.message.body_forms import BodyForm, format_body
from sparrow.cli.message.delayed import delayed, recall
from sparrow.cli.output import (
    JsonOption,
    escape_controls,
    format_bytes,
    format_time,
    print_fields,
    print_json,
    print_note,
    print_table,
)
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.times import TIME_HELP, parse_time_ms
from sparrow.client.aio.admin.admin import Admin
from sparrow.operations.message_lines import MessageLine
from sparrow.operations.messages import (
    KEY_MATCHES_MAX,
    MessageView,
    SearchFilter,
    SearchLimits,
    SearchResult,
    find_by_key,
    find_message,
    search_messages,
)

app = typer.Typer(
    help="Get a message by id; find messages by key, time, tag or text; list and recall delayed ones.",
    no_args_is_help=True,
)
app.command("delayed")(delayed)
app.command("recall")(recall)

BODY_BYTES_SHOWN_MAX = 64 << 10
_CELL_CHARS_MAX = 60

FormOption = Annotated[
    str | None, typer.Option("--format", help="Body as json, text or hex; default: what fits it.", metavar="FORM")
]


class MessageSearch(msgspec.Struct, frozen=True, kw_only=True):
    """What `sparrow message find --json` prints."""

    messages: list[MessageLine]
    scanned: int
    """Messages that were read; 0 if the index of keys was asked."""
    complete: bool
    """Whether everything was read."""
    next: dict[str, int] | None
    """Where to continue: the argument of --after."""


@app.command()
@with_parameter_groups
def get(
    message_id: Annotated[str, typer.Argument(help="Offset id, or with --topic the id that the sender assigned.")],
    topic: Annotated[str | None, typer.Option(help="Topic of the message.", autocompletion=complete_topic)] = None,
    form: FormOption = None,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """Show a message: where it is stored, its keys and properties, and its body.

    Example: [bold]sparrow message get 7F0000011A668BFC57735245EE120000 --topic orders[/bold]
    """
    chosen = _parse_form(form)
    message = connection.run(lambda admin: find_message(admin, message_id, topic=topic))
    if as_json:
        print_json(MessageLine.of(message))
    else:
        print_message(message, chosen)


@app.command()
@with_parameter_groups
def find(
    topic: TopicArgument,
    key: Annotated[str | None, typer.Option(help="Messages with this key or id.")] = None,
    from_: Annotated[str | None, typer.Option("--from", help=f"Stored since: {TIME_HELP}.")] = None,
    to: Annotated[str | None, typer.Option(help="Stored before, in the same form.")] = None,
    tag: Annotated[str | None, typer.Option(help="Messages with this tag.")] = None,
    text: Annotated[str | None, typer.Option(help="Messages with this text in the body.")] = None,
    order: Annotated[Literal["newest", "oldest"], typer.Option(help="Which messages come first.")] = "newest",
    limit: Annotated[int, typer.Option(help="Most messages to show.", min=1, max=1_000)] = 20,
    scan: Annotated[int, typer.Option(help="Most messages to read.", min=1)] = 20_000,
    seconds: Annotated[float, typer.Option(help="Longest time to read.", min=0.1)] = 5.0,
    after: Annotated[str | None, typer.Option(help="Continue an incomplete search: its `next`.")] = None,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """Find messages of a topic. Exit with 3 if there are none.

    A key alone is looked up in the brokers' index. Everything else reads messages up to the limits of --scan and
    --seconds; an incomplete search says so, and can be continued.

    Examples: [bold]sparrow message find orders --key order-7[/bold]
    [bold]sparrow message find orders --from 2h --to 1h --tag paid[/bold]
    [bold]sparrow message find orders --text Oslo --scan 1000000 --seconds 60[/bold]
    """
    wanted = SearchFilter(
        from_ms=None if from_ is None else parse_time_ms(from_),
        to_ms=None if to is None else parse_time_ms(to),
        tag=tag,
        key=key,
        text=text,
    )
    cursor = None if after is None else _parse_cursor(after)

    async def work(admin: Admin) -> SearchResult:
        if key is not None and tag is None and text is None and cursor is None:
            return await _find_by_key(admin, topic, wanted, limit)
        limits = SearchLimits(found=limit, scanned=scan, seconds=seconds)
        return await search_messages(admin, topic, wanted, order=order, limits=limits, after=cursor)

    result = connection.run(work)
    if as_json:
        lines = [MessageLine.of(message) for message in result.messages]
        print_json(MessageSearch(messages=lines, scanned=result.scanned, complete=result.complete, next=result.next))
    elif result.messages:
        columns = ("stored", "broker", "queue", "offset", "id", "tag", "keys", "size", "body")
        print_table(columns, [_row(message) for message in result.messages])
    _print_note(result)
    if not result.messages:
        raise typer.Exit(ExitCode.NOT_FOUND)


async def _find_by_key(admin: Admin, topic: str, wanted: SearchFilter, limit: int) -> SearchResult:
    assert wanted.key is not None
    count_max = min(limit, KEY_MATCHES_MAX)
    found = await find_by_key(admin, topic, wanted.key, limit=count_max, from_ms=wanted.from_ms, to_ms=wanted.to_ms)
    return SearchResult(messages=tuple(found), scanned=0, scanned_bytes=0, complete=len(found) < count_max, next=None)


def _print_note(result: SearchResult) -> None:
    count = len(result.messages)
    found = f"{count:,} messages found" if count else "No message found"
    if result.scanned:
        found += f"; {result.scanned:,} read ({format_bytes(result.scanned_bytes)})"
    if result.complete:
        print_note(f"{found}.")
    elif result.next is not None:
        cursor = msgspec.json.encode(result.next).decode()
        print_note(f"{found}; incomplete. Raise --limit, --scan or --seconds, or continue with --after '{cursor}'.")
    else:
        print_note(f"{found}; there may be more: raise --limit, or narrow the time with --from and --to.")


def _row(message: MessageView) -> tuple[object, ...]:
    body = " ".join(format_body(message.body[: 4 * _CELL_CHARS_MAX], "text").split())
    return (
        format_time(message.store_ms),
        message.broker or message.store_host,
        message.queue_id,
        message.queue_offset,
        message.id,
        message.tags,
        message.keys,
        format_bytes(len(message.body)),
        body if len(body) <= _CELL_CHARS_MAX else f"{body[:_CELL_CHARS_MAX]}…",
    )


def print_message(message: MessageView, form: BodyForm | None) -> None:
    """Print everything about a message, and its body in the form that fits it."""
    own = MessageLine.of(message).properties
    print_fields(
        {
            "id": message.id,
            "offset id": message.offset_id,
            "topic": message.topic,
            "broker": message.broker or message.store_host,
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "stored": format_time(message.store_ms),
            "born": f"{format_time(message.born_ms)} at {message.born_host}",
            "tag": message.tags,
            "keys": message.keys,
            "retries": message.reconsume_times or None,
            **{f"property {name}": value for name, value in own.items()},
            "body": format_bytes(len(message.body)),
        }
    )
    typer.echo(f"\n{format_body(message.body, form, bytes_max=BODY_BYTES_SHOWN_MAX)}")


def _parse_form(text: str | None) -> BodyForm | None:
    if text is None or text in ("json", "text", "hex"):
        return text  # type: ignore[return-value]
    raise typer.BadParameter(f"{text!r} is no form of a body: use json, text or hex")


def _parse_cursor(text: str) -> dict[str, int]:
    try:
        return msgspec.json.decode(text, type=dict[str, int])
    except msgspec.DecodeError as cause:
        raise typer.BadParameter(f"{escape_controls(text[:80])!r} is not the `next` of a search: {cause}") from cause
