"""`sparrow bus list`, `search` and `show`: looking at messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparrow.cli.bus.filters import (
    Content,
    Correlation,
    ErrorText,
    GroupName,
    Json,
    Key,
    Name,
    Parked,
    SideArgument,
    Since,
    Status,
    Tenant,
    Until,
    where_of,
    with_bus,
)
from sparrow.cli.bus.location import BusOption, DatabaseOption, PrefixOption, SchemaOption

if TYPE_CHECKING:
    from sparrow.bus.aio import EventBus
    from sparrow.bus.operations.stored_event import StoredEvent

_WIDE = 60
_BELOW = ("headers", "value", "content")


def list_all(
    side: SideArgument,
    status: Status = None,
    name: Name = None,
    group: GroupName = None,
    content: Content = None,
    correlation_id: Correlation = None,
    key: Key = None,
    error: ErrorText = None,
    tenant: Tenant = None,
    since: Since = None,
    until: Until = None,
    parked: Parked = None,
    limit: Annotated[int, typer.Option(help="So many at most.", min=1, max=1000)] = 20,
    before: Annotated[int | None, typer.Option(help="Older than this number: the next page.")] = None,
    as_json: Json = False,
    bus: BusOption = None,
    database: DatabaseOption = None,
    schema: SchemaOption = "cap",
    table_prefix: PrefixOption = "cap",
) -> None:
    """List messages, the newest first.

    Examples: [bold]sparrow bus list published --bus shop.events:bus[/bold]
    [bold]sparrow bus list received --status failed --since 2h --database sqlite:///shop.db[/bold]
    """

    async def work(found: EventBus) -> list[StoredEvent]:
        from sparrow.bus.operations.stored_event import parse_side

        where = where_of(status, name, group, content, correlation_id, key, error, tenant, since, until, parked)
        return await found.operations.find(parse_side(side), where, limit=limit, before_id=before)

    _show_list(with_bus(work, bus, database, schema, table_prefix), limit, as_json)


def search(
    side: SideArgument,
    text: Annotated[str, typer.Argument(help="A piece of the headers or the payload, as JSON writes it.")],
    limit: Annotated[int, typer.Option(help="So many at most.", min=1, max=1000)] = 20,
    before: Annotated[int | None, typer.Option(help="Older than this number: the next page.")] = None,
    as_json: Json = False,
    bus: BusOption = None,
    database: DatabaseOption = None,
    schema: SchemaOption = "cap",
    table_prefix: PrefixOption = "cap",
) -> None:
    """Look for messages by what is in them, the newest first. Reads the table until enough are found.

    Example: [bold]sparrow bus search received '"order_id":4711' --bus shop.events:bus[/bold]
    """

    async def work(found: EventBus) -> list[StoredEvent]:
        from sparrow.bus.operations.stored_event import Where, parse_side

        return await found.operations.find(parse_side(side), Where(content=text), limit=limit, before_id=before)

    _show_list(with_bus(work, bus, database, schema, table_prefix), limit, as_json)


def show(
    side: SideArgument,
    id: Annotated[int, typer.Argument(help="The number of the message.")],
    as_json: Json = False,
    bus: BusOption = None,
    database: DatabaseOption = None,
    schema: SchemaOption = "cap",
    table_prefix: PrefixOption = "cap",
) -> None:
    """Show all that is known of one message.

    Example: [bold]sparrow bus show received 322415871234 --bus shop.events:bus[/bold]
    """

    async def work(found: EventBus) -> StoredEvent:
        from sparrow.bus.operations.stored_event import parse_side

        return await found.operations.get(parse_side(side), id)

    event = with_bus(work, bus, database, schema, table_prefix)
    if as_json:
        typer.echo(event.to_json())
        return
    console = Console()
    table = Table(show_header=False, box=None)
    shown = event.to_builtins()
    for name, value in shown.items():
        if value is not None and name not in _BELOW:
            table.add_row(f"[bold]{name}[/bold]", escape(str(value)))
    console.print(table)
    for name in _BELOW:
        if shown.get(name) not in (None, {}):
            console.print(f"[bold]{name}[/bold]")
            console.print_json(data=shown[name])


def _show_list(events: list[StoredEvent], limit: int, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode([event.to_builtins() for event in events]))
        return
    console = Console()
    if not events:
        console.print("no message is like that")
        return
    has_groups = any(event.group is not None for event in events)
    table = Table("id", "topic", *(["group"] if has_groups else []), "state", "added", "retries", "payload or error")
    for event in events:
        names = (event.name, event.group or "") if has_groups else (event.name,)
        state = event.status.value + (" (parked)" if event.parked else "")
        text = event.error if event.status == "Failed" else msgspec.json.encode(event.value).decode()
        added = event.added.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        words = (str(event.id), *names, state, added, str(event.retries), _short(text or ""))
        table.add_row(*map(escape, words))
    console.print(table)
    if len(events) == limit:
        console.print(f"older ones: --before {events[-1].id}")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDE else line[: _WIDE - 1] + "…"
