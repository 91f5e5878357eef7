"""What can be done to messages from the command line: by number, or by filter after a question."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

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
from sparrow.model.errors import Refused

if TYPE_CHECKING:
    from sparrow.bus.aio import EventBus
    from sparrow.bus.operations.stored_event import OperationResult

Ids = Annotated[list[int] | None, typer.Argument(help="Numbers of messages; or say which by the options below.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]
LimitOption = Annotated[int | None, typer.Option(help="At most so many.", min=1)]
Rate = Annotated[float | None, typer.Option(help="At most so many a second.", min=0.001)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before changing messages by filter.")]
Force = Annotated[bool, typer.Option("--force", help="Also open messages, unless a worker holds them.")]


def register(app: typer.Typer) -> None:
    for name, command in _COMMANDS.items():
        app.command(name)(command)


def _choosing(
    ids: Ids = None,
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
    dry_run: DryRun = False,
    limit: LimitOption = None,
    rate: Rate = None,
    yes: Yes = False,
    as_json: Json = False,
    bus: BusOption = None,
    database: DatabaseOption = None,
    schema: SchemaOption = "cap",
    table_prefix: PrefixOption = "cap",
) -> None:
    """How every command below is told which messages."""


_FILTERS = (
    "status",
    "name",
    "group",
    "content",
    "correlation_id",
    "key",
    "error",
    "tenant",
    "since",
    "until",
    "parked",
)
_PLACE = ("bus", "database", "schema", "table_prefix")


def _command(method: str, done: str, sentence: str, *, has_side: bool, forces: bool = False) -> Callable[..., None]:
    """A command with the parameters of `_choosing`."""

    def command(**given: Any) -> None:
        async def work(found: EventBus) -> OperationResult:
            from sparrow.bus.operations.stored_event import parse_side

            act: Callable[..., Awaitable[OperationResult]] = getattr(found.operations, method)
            more: dict[str, Any] = {"side": parse_side(given["side"])} if has_side else {}
            if forces:
                more["force"] = given["force"]
            where, dry_run = where_of(*(given[name] for name in _FILTERS)), given["dry_run"]
            if given["ids"]:
                if not where.matches_everything:
                    raise Refused("say which messages by their numbers or by a filter, not by both")
                return await act(*given["ids"], dry_run=dry_run, **more)
            more |= {"where": where, "limit": given["limit"]}
            if not dry_run and not given["yes"]:
                _ask(await act(dry_run=True, **more), done)
            return await act(dry_run=dry_run, rate=given["rate"], **more)

        outcome = with_bus(work, *(given[name] for name in _PLACE))
        typer.echo(msgspec.json.encode(outcome.to_builtins()) if given["as_json"] else _told(outcome, done))

    parameters = list(inspect.signature(_choosing, eval_str=True).parameters.values())
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if has_side:
        parameters.insert(0, inspect.Parameter("side", kind, annotation=SideArgument))
    if forces:
        parameters.append(inspect.Parameter("force", kind, default=False, annotation=Force))
    command.__doc__ = sentence
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


_COMMANDS = {
    "requeue": _command(
        "requeue",
        "requeued",
        """Send published messages once more. A filter that names no state means Failed.

        Examples: [bold]sparrow bus requeue 322415871234 --bus shop.events:bus[/bold]
        [bold]sparrow bus requeue --name order.created --since 2h --rate 100 --bus shop.events:bus[/bold]
        """,
        has_side=False,
    ),
    "reexecute": _command(
        "reexecute",
        "handled once more",
        """Have received messages handled once more. A filter that names no state means Failed.

        Example: [bold]sparrow bus reexecute --group billing.v1 --error TimeoutError --bus shop.events:bus[/bold]
        """,
        has_side=False,
    ),
    "cancel": _command(
        "cancel",
        "cancelled",
        """Never send messages that are Scheduled or Delayed. A filter that names no state means Delayed.

        Example: [bold]sparrow bus cancel 322415871234 --bus shop.events:bus[/bold]
        """,
        has_side=False,
    ),
    "publish-now": _command(
        "publish_now",
        "published now",
        """Let delayed messages wait no longer.

        Example: [bold]sparrow bus publish-now --name reminder.due --bus shop.events:bus[/bold]
        """,
        has_side=False,
    ),
    "delete": _command(
        "delete",
        "deleted",
        """Delete messages that are closed. A filter that names no state means Failed.

        Example: [bold]sparrow bus delete received --status cancelled --dry-run --bus shop.events:bus[/bold]
        """,
        has_side=True,
        forces=True,
    ),
    "park": _command(
        "park",
        "parked",
        """Give failed messages no further round, until they are unparked or handled once more.

        Example: [bold]sparrow bus park received --error "no such customer" --bus shop.events:bus[/bold]
        """,
        has_side=True,
    ),
    "unpark": _command(
        "unpark",
        "unparked",
        """Give parked messages their rounds again.

        Example: [bold]sparrow bus unpark received 322415871234 --bus shop.events:bus[/bold]
        """,
        has_side=True,
    ),
}


def _ask(would: OperationResult, done: str) -> None:
    if not would.count:
        return
    if not sys.stdin.isatty():
        raise Refused(f"{would.count:,} messages would be {done}: say --yes to do it, or --dry-run to see them")
    typer.confirm(f"{would.count:,} messages will be {done}. Go on?", abort=True)


def _told(outcome: OperationResult, done: str) -> str:
    noun = "message" if outcome.count == 1 else "messages"
    sample = ", ".join(str(number) for number in outcome.ids)
    more = ", …" if outcome.count > len(outcome.ids) else ""
    verb = f"would be {done}" if outcome.is_dry else done
    return f"{outcome.count:,} {noun} {verb}" + (f": {sample}{more}" if sample else "")
