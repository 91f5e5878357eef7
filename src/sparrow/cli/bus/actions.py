"""Commands of `sparrow bus` that change messages: given by id, or by filter after a confirmation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from sparrow.cli.bus.filters import MessageFilter, SideArgument
from sparrow.cli.bus.location import BusLocation
from sparrow.cli.output import JsonOption, print_json
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.model.errors import Refused

if TYPE_CHECKING:
    from sparrow.bus.aio import EventBus
    from sparrow.bus.operations.stored_event import OperationResult

ForceOption = Annotated[bool, typer.Option("--force", help="Include open messages that no worker holds.")]


@dataclass(frozen=True, kw_only=True)
class ActionOptions:
    """The options that all commands of this module share."""

    ids: Annotated[list[int] | None, typer.Argument(help="Message ids; or select messages with the options.")] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False
    limit: Annotated[int | None, typer.Option(help="Most messages to change.", min=1)] = None
    rate: Annotated[float | None, typer.Option(help="Most messages per second.", min=0.001)] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Change messages by filter without confirmation.")] = False
    as_json: JsonOption = False


class Action(NamedTuple):
    """An operation of the bus as a command."""

    method: str
    done: str
    """Past participle, for messages to the user."""
    help: str


def register(app: typer.Typer) -> None:
    """Add the commands to `sparrow bus`."""
    for name, action in ACTIONS.items():
        app.command(name)(_command(action))
    for name, action in SIDE_ACTIONS.items():
        app.command(name)(_side_command(action))
    app.command("delete")(_delete_command(DELETE))


def _command(action: Action) -> Callable[..., None]:
    def command(options: ActionOptions, selected: MessageFilter, location: BusLocation) -> None:
        _act(action, options, selected, location)

    command.__doc__ = action.help
    return with_parameter_groups(command)


def _side_command(action: Action) -> Callable[..., None]:
    def command(side: SideArgument, options: ActionOptions, selected: MessageFilter, location: BusLocation) -> None:
        _act(action, options, selected, location, side=side)

    command.__doc__ = action.help
    return with_parameter_groups(command)


def _delete_command(action: Action) -> Callable[..., None]:
    def command(
        side: SideArgument,
        options: ActionOptions,
        selected: MessageFilter,
        location: BusLocation,
        force: ForceOption = False,
    ) -> None:
        _act(action, options, selected, location, side=side, force=force)

    command.__doc__ = action.help
    return with_parameter_groups(command)


def _act(
    action: Action,
    options: ActionOptions,
    selected: MessageFilter,
    location: BusLocation,
    *,
    side: str | None = None,
    **arguments: Any,
) -> None:
    async def work(bus: EventBus) -> OperationResult:
        from sparrow.bus.operations.stored_event import parse_side

        operation = getattr(bus.operations, action.method)
        if side is not None:
            arguments["side"] = parse_side(side)
        where = selected.where()
        if options.ids:
            if not where.matches_everything:
                raise Refused("give either message ids or a filter, not both")
            by_id: OperationResult = await operation(*options.ids, dry_run=options.dry_run, **arguments)
            return by_id
        arguments.update(where=where, limit=options.limit)
        if not options.dry_run and not options.yes:
            _confirm(await operation(dry_run=True, **arguments), action)
        by_filter: OperationResult = await operation(dry_run=options.dry_run, rate=options.rate, **arguments)
        return by_filter

    result = location.run(work)
    if options.as_json:
        from sparrow.cli.bus.json_rows import action_result

        print_json(action_result(result))
    else:
        typer.echo(_summary(result, action))


def _confirm(expected: OperationResult, action: Action) -> None:
    if not expected.count:
        return
    if not sys.stdin.isatty():
        raise Refused(
            f"{expected.count:,} messages would be {action.done}: add --yes to do it, or --dry-run to see them"
        )
    typer.confirm(f"{expected.count:,} messages will be {action.done}. Continue?", abort=True)


def _summary(result: OperationResult, action: Action) -> str:
    noun = "message" if result.count == 1 else "messages"
    verb = f"would be {action.done}" if result.is_dry else action.done
    ids = ", ".join(map(str, result.ids)) + (", …" if result.count > len(result.ids) else "")
    return f"{result.count:,} {noun} {verb}" + (f": {ids}" if result.ids else "")


ACTIONS = {
    "requeue": Action(
        "requeue",
        "requeued",
        """Send published messages again. A filter without --status selects Failed ones.

        Examples: [bold]sparrow bus requeue 322415871234 --bus shop.events:bus[/bold]
        [bold]sparrow bus requeue --name order.created --since 2h --rate 100 --bus shop.events:bus[/bold]
        """,
    ),
    "reexecute": Action(
        "reexecute",
        "handled again",
        """Handle received messages again. A filter without --status selects Failed ones.

        Example: [bold]sparrow bus reexecute --group billing.v1 --error TimeoutError --bus shop.events:bus[/bold]
        """,
    ),
    "cancel": Action(
        "cancel",
        "cancelled",
        """Cancel Scheduled or Delayed messages before they are sent. A filter without --status selects Delayed ones.

        Example: [bold]sparrow bus cancel 322415871234 --bus shop.events:bus[/bold]
        """,
    ),
    "publish-now": Action(
        "publish_now",
        "published now",
        """Publish Delayed messages without further delay.

        Example: [bold]sparrow bus publish-now --name reminder.due --bus shop.events:bus[/bold]
        """,
    ),
}
SIDE_ACTIONS = {
    "park": Action(
        "park",
        "parked",
        """Stop the retries of Failed messages until they are unparked or handled again.

        Example: [bold]sparrow bus park received --error "no such customer" --bus shop.events:bus[/bold]
        """,
    ),
    "unpark": Action(
        "unpark",
        "unparked",
        """Allow the retries of parked messages again.

        Example: [bold]sparrow bus unpark received 322415871234 --bus shop.events:bus[/bold]
        """,
    ),
}
DELETE = Action(
    "delete",
    "deleted",
    """Delete closed messages. A filter without --status selects Failed ones.

    Example: [bold]sparrow bus delete received --status cancelled --dry-run --bus shop.events:bus[/bold]
    """,
)
