"""`sparrow bus list`, `search` and `show`: print messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparrow.cli.bus.filters import MessageFilter, SideArgument
from sparrow.cli.bus.location import BusLocation
from sparrow.cli.output import JsonOption, print_json
from sparrow.cli.parameter_groups import with_parameter_groups

if TYPE_CHECKING:
    from sparrow.bus.aio import EventBus
    from sparrow.bus.operations.stored_event import StoredEvent

_CELL_CHARS_MAX = 60
_STRUCTURED_FIELDS = ("headers", "value", "content")


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """The options of a command that prints messages, the newest first."""

    limit: Annotated[int, typer.Option(help="Most messages to print.", min=1, max=1000)] = 20
    before: Annotated[int | None, typer.Option(help="Only ids below this one: the next page.")] = None
    as_json: JsonOption = False


@with_parameter_groups
def list_all(side: SideArgument, selected: MessageFilter, page: PageOptions, location: BusLocation) -> None:
    """List messages, the newest first.

    Examples: [bold]sparrow bus list published --bus shop.events:bus[/bold]
    [bold]sparrow bus list received --status failed --since 2h --database sqlite:///shop.db[/bold]
    """

    async def work(bus: EventBus) -> list[StoredEvent]:
        from sparrow.bus.operations.stored_event import parse_side

        return await bus.operations.find(parse_side(side), selected.where(), limit=page.limit, before_id=page.before)

    _print_list(location.run(work), page)


@with_parameter_groups
def search(
    side: SideArgument,
    text: Annotated[str, typer.Argument(help="Text in the headers or the payload, as JSON writes it.")],
    page: PageOptions,
    location: BusLocation,
) -> None:
    """Search the content of messages, the newest first. Reads the table until the limit is reached.

    Example: [bold]sparrow bus search received '"order_id":4711' --bus shop.events:bus[/bold]
    """

    async def work(bus: EventBus) -> list[StoredEvent]:
        from sparrow.bus.operations.stored_event import Where, parse_side

        return await bus.operations.find(parse_side(side), Where(content=text), limit=page.limit, before_id=page.before)

    _print_list(location.run(work), page)


@with_parameter_groups
def show(
    side: SideArgument,
    id: Annotated[int, typer.Argument(help="Id of the message.")],
    location: BusLocation,
    as_json: JsonOption = False,
) -> None:
    """Print one message with its headers and payload.

    Example: [bold]sparrow bus show received 322415871234 --bus shop.events:bus[/bold]
    """

    async def work(bus: EventBus) -> StoredEvent:
        from sparrow.bus.operations.stored_event import parse_side

        return await bus.operations.get(parse_side(side), id)

    event = location.run(work)
    if as_json:
        from sparrow.cli.bus.json_rows import message_row

        print_json(message_row(event))
        return
    console = Console()
    table = Table(show_header=False, box=None)
    fields = event.to_builtins()
    for name, value in fields.items():
        if value is not None and name not in _STRUCTURED_FIELDS:
            table.add_row(f"[bold]{name}[/bold]", escape(str(value)))
    console.print(table)
    for name in _STRUCTURED_FIELDS:
        if fields.get(name) not in (None, {}):
            console.print(f"[bold]{name}[/bold]")
            console.print_json(data=fields[name])


def _print_list(events: list[StoredEvent], page: PageOptions) -> None:
    if page.as_json:
        from sparrow.cli.bus.json_rows import message_row

        print_json([message_row(event) for event in events])
        return
    console = Console()
    if not events:
        console.print("no message matches")
        return
    has_groups = any(event.group is not None for event in events)
    table = Table("id", "topic", *(["group"] if has_groups else []), "state", "added", "retries", "payload or error")
    for event in events:
        names = (event.name, event.group or "") if has_groups else (event.name,)
        state = event.status.value + (" (parked)" if event.parked else "")
        is_failing = event.error is not None and event.status != "Successed"
        text = event.error if is_failing else msgspec.json.encode(event.value).decode()
        added = event.added.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        cells = (str(event.id), *names, state, added, str(event.retries), _shorten(text or ""))
        table.add_row(*map(escape, cells))
    console.print(table)
    if len(events) == page.limit:
        console.print(f"for older messages, add --before {events[-1].id}")


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _CELL_CHARS_MAX else line[: _CELL_CHARS_MAX - 1] + "…"
