"""`sparrow doctor`: check a platform and this machine, and say what to do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from sparrow import __version__
from sparrow.cli.admin_client import ConnectionOptions, silent_health_log
from sparrow.cli.doctor import machine
from sparrow.cli.doctor.groups import check_groups, fetch_groups
from sparrow.cli.doctor.replication import check_replica_set
from sparrow.cli.doctor.report import CheckResult, DoctorReport, Severity
from sparrow.cli.doctor.server_rules import (
    check_brokers,
    check_clocks,
    check_disks,
    check_name_servers,
    check_transactions,
    check_versions,
)
from sparrow.cli.doctor.servers import BrokerFacts, fetch_brokers, fetch_name_servers
from sparrow.cli.doctor.thresholds import Thresholds
from sparrow.cli.exit_codes import ExitCode
from sparrow.cli.output import JsonOption, plain, print_json
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.settings import DEFAULT_DATA_FOLDER
from sparrow.cli.times import parse_duration_ms
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.blocking.loop_thread import new_event_loop
from sparrow.model.errors import SparrowError
from sparrow.model.protocol import CHECK_LIMIT_TOPIC
from sparrow.operations.groups import count_messages
from sparrow.settings import Settings

EXAMPLES = """
Examples:

[bold]sparrow doctor[/bold]   the platform at 127.0.0.1:9876, and this machine

[bold]sparrow doctor --name-servers 'mq-1:9876;mq-2:9876' --max-lag 1000[/bold]

[bold]sparrow doctor --json | jq '.checks[].diagnoses[] | select(.severity == "problem")'[/bold]
"""
_TIMEOUT_MS = 10_000
"""A server that is only slow is not reported as away."""
_COLOURS = {Severity.PROBLEM: typer.colors.RED, Severity.WARNING: typer.colors.YELLOW}


@with_parameter_groups
def doctor(
    max_lag: Annotated[
        int, typer.Option(help="Unread messages of a group above which it is reported.", min=0)
    ] = Thresholds.lag_max,
    max_clock_skew: Annotated[
        str, typer.Option(help="Difference of clocks above which it is reported: 500ms, 2s.")
    ] = "2s",
    data: Annotated[Path, typer.Option(help="Data folder of a server on this machine.")] = DEFAULT_DATA_FOLDER,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings, too.")] = False,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """Check name servers, brokers, groups, replica sets and this machine. Each finding says what to do.

    Exit with 1 if there is a problem.
    """
    thresholds = Thresholds(lag_max=max_lag, clock_skew_ms_max=parse_duration_ms(max_clock_skew))
    settings_check, loaded = machine.check_settings()
    with silent_health_log(), asyncio.Runner(loop_factory=new_event_loop) as runner:
        checks, addresses = runner.run(_check_platform(connection, loaded, thresholds))
    checks += [settings_check, machine.check_open_files(thresholds)]
    if loaded is not None:
        checks.append(machine.check_ports(loaded, addresses))
        checks.append(machine.check_data_folder(loaded, data, thresholds))
        checks.append(machine.check_packages(loaded))
    report = DoctorReport(checks=tuple(checks))
    if as_json:
        print_json(report)
    else:
        _print(report)
    if report.problems or (strict and report.diagnoses):
        raise typer.Exit(ExitCode.FAILED)


async def _check_platform(
    connection: ConnectionOptions, loaded: Settings | None, thresholds: Thresholds
) -> tuple[list[CheckResult], set[str]]:
    """Return the checks of servers and groups, and the addresses of the servers that answer."""
    session = ClientSession(connection.name_servers, credentials=connection.credentials, timeout_ms=_TIMEOUT_MS)
    async with session, Admin(session=session) as admin:
        servers = await fetch_name_servers(admin)
        brokers = await fetch_brokers(admin, [server.brokers for server in servers if server.error is None])
        checks = [
            check_name_servers(servers),
            check_brokers(brokers, thresholds),
            check_disks(brokers, thresholds),
            check_clocks(servers, brokers, thresholds),
            check_versions(brokers, __version__),
        ]
        if any(broker.error is None for broker in brokers):
            checks += await _check_messages(admin, brokers, thresholds)
    if loaded is not None and (replica_set := await check_replica_set(loaded)) is not None:
        checks.append(replica_set)
    addresses = {server.address for server in servers if server.error is None}
    return checks, addresses | {broker.address for broker in brokers if broker.error is None}


async def _check_messages(admin: Admin, brokers: list[BrokerFacts], thresholds: Thresholds) -> list[CheckResult]:
    try:
        groups = await fetch_groups(admin, thresholds)
        given_up = await count_messages(admin, CHECK_LIMIT_TOPIC)
    except SparrowError as error:  # a broker that is away is reported already
        return [CheckResult(check="groups", seen=f"could not be checked: {error}")]
    return [check_groups(groups, thresholds), check_transactions(brokers, given_up)]


def _print(report: DoctorReport) -> None:
    for check in report.checks:
        found = {each.severity for each in check.diagnoses}
        worst = next((severity for severity in Severity if severity in found), None)
        mark, colour = ("ok", typer.colors.GREEN) if worst is None else (str(worst), _COLOURS[worst])
        typer.echo(f"{typer.style(f'{mark:8}', fg=colour)} {check.check}: {plain(check.seen)}")
    for each in report.diagnoses:
        typer.echo(f"\n{typer.style(each.severity, fg=_COLOURS[each.severity])}: {plain(each.subject)}")
        typer.echo(f"  {plain(each.text)}")
        typer.echo(f"  What to do: {plain(each.remedy)}")
    warnings = len(report.diagnoses) - report.problems
    typer.echo(f"\n{report.problems} problems, {warnings} warnings.")
