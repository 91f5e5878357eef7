"""`sparrow pipeline audit`: check that every sent message is stored and handled once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparrow import clock
from sparrow.cli.output import JsonOption, print_json
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.pipeline.parameters.common import ClientParameters, SparkParameters
from sparrow.cli.pipeline.progress_bar import show_progress
from sparrow.model.errors import SparrowError
from sparrow.spark.jobs.audit.report import AuditHour, AuditReport
from sparrow.spark.options import parse_duration_ms

EXAMPLES = """
Exit code: 0 without findings, 1 with findings, 2 if the audit failed.

Examples:

[bold]sparrow pipeline audit orders --group billing --since -24h[/bold]

[bold]sparrow pipeline audit orders --sent outbox.csv --id-column Id --match property:cap-msg-id[/bold]

[bold]sparrow pipeline audit orders payments -g billing --parquet ./audit --json[/bold]
"""
EXIT_CLEAN, EXIT_FINDINGS, EXIT_FAILED = 0, 1, 2


class AuditOutcome(msgspec.Struct, frozen=True):
    """What `sparrow pipeline audit` found."""

    clean: bool
    """Whether there are no findings."""
    hours: tuple[AuditHour, ...]
    without_id: int
    """Messages without an id, which are not audited."""
    elsewhere: int
    """Handled ids that match no message here: they belong to other topics, or are older."""
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AuditPeriodParameters:
    """The time span that is audited."""

    since: Annotated[
        str | None, typer.Option(help="Audit messages sent at this time or later: ISO time, milliseconds, or -24h.")
    ] = None
    until: Annotated[
        str | None, typer.Option(help="Audit messages sent before this time. Default: now minus --settle.")
    ] = None
    settle: Annotated[str, typer.Option(help="Skip messages sent within this time, which may still be in transit.")] = (
        "1m"
    )

    @property
    def end(self) -> str:
        """The end of the time span."""
        return self.until or str(clock.now_ms() - parse_duration_ms(self.settle))


@dataclass(frozen=True, kw_only=True)
class AuditSourceParameters:
    """The data that is compared with the stored messages."""

    sent: Annotated[
        str,
        typer.Option(help="Source of sent ids: trace, none, topic:NAME, or a table (.csv, .json, Parquet)."),
    ] = "trace"
    handled: Annotated[str, typer.Option(help="Source of handled ids: trace, topic:NAME, or a table.")] = "trace"
    match: Annotated[str, typer.Option(help="What identifies a message: msg_id, keys or property:NAME.")] = "msg_id"
    id_column: Annotated[str, typer.Option(help="Column with the ids in tables.")] = "msg_id"


@dataclass(frozen=True, kw_only=True)
class AuditReportParameters:
    """Form of the report."""

    ids: Annotated[int, typer.Option(help="Maximum ids to show per finding and hour.", min=1)] = 5
    parquet: Annotated[str | None, typer.Option(help="Folder for tables of all hours and all findings.")] = None
    as_json: JsonOption = False


@with_parameter_groups
def audit(
    topic: Annotated[list[str], typer.Argument(help="Topics to audit.")],
    period: AuditPeriodParameters,
    sources: AuditSourceParameters,
    report: AuditReportParameters,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", help="Consumer group that must have handled the messages. Repeatable."),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only messages with this tag. Repeatable.")] = None,
    *,
    client: ClientParameters,
    spark: SparkParameters,
) -> None:
    """Compare sent, stored and handled messages by topic, group and hour."""
    # Imported here: NumPy and Arrow would slow down all other commands.
    from sparrow.spark.jobs.audit import job
    from sparrow.spark.jobs.time_span import JobTimeSpan

    try:
        work = job.AuditJob(
            name_servers=client.name_servers,
            topics=tuple(topic),
            groups=tuple(group or ()),
            span=JobTimeSpan.parse(period.since, period.end),
            sent=sources.sent,
            handled=sources.handled,
            match=sources.match,
            id_column=sources.id_column,
            tags=tuple(tag or ()),
            ids_max=report.ids,
            parquet=report.parquet,
            options=client.options,
        )
        with show_progress("audit") as on_progress:
            found = job.run(spark.open_session("audit"), work, on_progress=on_progress)
    except (SparrowError, ValueError) as error:
        typer.secho(f"sparrow: {error}", fg=typer.colors.RED, err=True)
        raise typer.Exit(EXIT_FAILED) from error
    if report.as_json:
        print_json(AuditOutcome(found.is_clean, *msgspec.structs.astuple(found)))
    else:
        Console().print(hours_table(found))
        for line in finding_lines(found):
            typer.echo(line)  # not through rich, which would wrap ids in a narrow terminal
        for line in note_lines(found):
            Console(stderr=True).print(line)
    raise typer.Exit(EXIT_CLEAN if found.is_clean else EXIT_FINDINGS)


def hours_table(found: AuditReport) -> Table:
    """Return the counts of the report as a table."""
    table = Table("topic", "group", "hour (UTC)", "sent", "stored", "handled", "ok", "findings")
    for hour in found.hours:
        numbers = [_count(number) for number in (hour.sent, hour.stored, hour.handled, hour.ok)]
        findings = sum(ids.count for ids in hour.findings.values())
        where = (escape(hour.topic), escape(hour.group or "-"), _hour(hour.hour_ms))
        table.add_row(*where, *numbers, f"{findings:,}", style="red" if findings else None)
    return table


def finding_lines(found: AuditReport) -> list[str]:
    """Return one line per finding with its ids. A finding about a topic appears once, not for each group."""
    from sparrow.spark.jobs.audit.findings import GROUP_FINDINGS

    lines: dict[str, None] = {}
    for hour in found.hours:
        for finding, ids in hour.findings.items():
            where = f"{hour.topic} {hour.group}" if finding in GROUP_FINDINGS else hour.topic
            more = f" and {ids.count - len(ids.first):,} more" if ids.count > len(ids.first) else ""
            label = finding.replace("_", " ")
            lines[f"{where} {_hour(hour.hour_ms)}: {ids.count:,} {label}: {', '.join(ids.first)}{more}"] = None
    return list(lines)


def note_lines(found: AuditReport) -> list[str]:
    """Return the notes of the report, for standard error."""
    lines = [f"note: {note}" for note in found.notes]
    if found.without_id:
        lines.append(f"note: {found.without_id:,} messages have no id to match by and were not audited")
    if found.elsewhere:
        lines.append(f"note: {found.elsewhere:,} handled ids belong to other topics or are older")
    return lines


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _hour(ms: int | None) -> str:
    return "?" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:00")
