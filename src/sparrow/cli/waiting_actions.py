"""What commands that act on waiting messages have in common: the plan, the question, the results and the exit code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from sparrow.cli.admin_client import ConnectionOptions
from sparrow.cli.exit_codes import ExitCode
from sparrow.cli.output import JsonOption, YesOption, confirm, plain, print_json, print_note
from sparrow.client.aio.admin.admin import Admin
from sparrow.operations.waiting_messages.actions import WaitingPlan, WaitingReport, WaitingState


@dataclass(frozen=True, kw_only=True)
class WaitingActionOptions:
    """The options of every command that acts on waiting messages."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which messages wait.")] = False
    yes: YesOption = False
    as_json: JsonOption = False


def carry_out(
    connection: ConnectionOptions,
    options: WaitingActionOptions,
    plan: Callable[[Admin], Awaitable[WaitingPlan]],
    act: Callable[[Admin, str], Awaitable[WaitingReport]],
    *,
    question: str,
    done: str,
) -> None:
    """Print a plan; unless it is a dry run, ask, act as planned, and exit with the code that the results have.

    `question` and `done` are sentences with `{count}`.
    """
    planned = connection.run(plan)
    if options.dry_run:
        _print_plan(planned, as_json=options.as_json)
        return
    confirm(question.format(count=f"{planned.count:,}"), yes=options.yes)
    report = connection.run(lambda admin: act(admin, planned.hash))
    if options.as_json:
        print_json(report)
    else:
        typer.echo(done.format(count=f"{report.done:,}"))
        for item in report.items:
            if item.state in (WaitingState.NOT_FOUND, WaitingState.FAILED):
                print_note(f"{plain(item.message_id or item.id)}: {item.error or 'it does not wait any more'}")
    if report.failed or report.not_found:
        raise typer.Exit(_exit_code(report))


def _print_plan(plan: WaitingPlan, *, as_json: bool) -> None:
    if as_json:
        print_json(plan)
        return
    for item in plan.items:
        state = item.error or ("waits" if item.state is WaitingState.WAITING else "does not wait any more")
        typer.echo(f"{plain(item.message_id or item.id)}: {state}")


def _exit_code(report: WaitingReport) -> ExitCode:
    if report.done:
        return ExitCode.PARTLY_DONE
    return ExitCode.FAILED if report.failed else ExitCode.NOT_FOUND
