"""`sparrow pipeline audit`: was everything that was sent stored, and handled, once?"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparrow import clock
from sparrow.cli.pipeline.options import MasterOption, NameServerOption, SparkConfOption, open_session, parse_pairs
from sparrow.cli.pipeline.progress_bar import show_progress
from sparrow.model.errors import SparrowError
from sparrow.spark.options import parse_duration_ms

if TYPE_CHECKING:
    from sparrow.spark.jobs.audit.job import AuditReport

EXAMPLES = """
Leaves with 0 when all is well, with 1 when something was found, and with 2 when it could not find out.

Examples:

[bold]sparrow pipeline audit orders --group billing --since -24h[/bold]

[bold]sparrow pipeline audit orders --sent outbox.csv --id-column Id --match property:cap-msg-id[/bold]

[bold]sparrow pipeline audit orders payments -g billing --parquet ./audit --json[/bold]
"""
EXIT_CLEAN, EXIT_FINDINGS, EXIT_FAILED = 0, 1, 2


def audit(
    topic: Annotated[list[str], typer.Argument(help="The topics.")],
    name_server: NameServerOption = "127.0.0.1:9876",
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", help="Who should have handled it; may be repeated.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Judge what was sent from then on: ISO time, milliseconds, or -24h.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Up to then; otherwise up to now, less --settle.")] = None,
    settle: Annotated[str, typer.Option(help="What was sent so recently may still be on its way.")] = "1m",
    sent: Annotated[
        str,
        typer.Option(help="Who knows what was sent: trace, none, topic:NAME, or a table (.csv, .json, Parquet)."),
    ] = "trace",
    handled: Annotated[str, typer.Option(help="Who knows what was handled: trace, topic:NAME, or a table.")] = "trace",
    match: Annotated[str, typer.Option(help="What a message is known by: msg_id, keys or property:NAME.")] = "msg_id",
    id_column: Annotated[str, typer.Option(help="Where tables have the ids.")] = "msg_id",
    tag: Annotated[list[str] | None, typer.Option(help="Only messages with this tag; may be repeated.")] = None,
    ids: Annotated[int, typer.Option(help="Show so many ids of each finding and hour.", min=1)] = 5,
    parquet: Annotated[str | None, typer.Option(help="A folder for tables of all hours and all findings.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    option: Annotated[
        list[str] | None, typer.Option(help="For the client, such as sparrow.accessKey=NAME; may be repeated.")
    ] = None,
    master: MasterOption = None,
    conf: SparkConfOption = None,
) -> None:
    """Compare what was sent, what is stored and what was handled, by topic, group and hour."""
    # Late: they load NumPy and Arrow, which no other verb should wait for.
    from sparrow.spark.jobs.audit import job
    from sparrow.spark.jobs.time_span import JobTimeSpan

    try:
        end = until or str(clock.now_ms() - parse_duration_ms(settle))
        arguments = job.AuditJob(
            name_servers=name_server,
            topics=tuple(topic),
            groups=tuple(group or ()),
            span=JobTimeSpan.parse(since, end),
            sent=sent,
            handled=handled,
            match=match,
            id_column=id_column,
            tags=tuple(tag or ()),
            ids_max=ids,
            parquet=parquet,
            options=parse_pairs("--option", option),
        )
        with show_progress("audit") as on_progress:
            spark = open_session("audit", master, parse_pairs("--conf", conf))
            found = job.run(spark, arguments, on_progress=on_progress)
    except (SparrowError, ValueError) as error:
        typer.secho(f"sparrow: {error}", fg=typer.colors.RED, err=True)
        raise typer.Exit(EXIT_FAILED) from error
    if as_json:
        typer.echo(_json(found))
    else:
        Console().print(hours_table(found))
        for line in finding_lines(found):
            typer.echo(line)  # whole ids, however narrow the terminal is
        for line in note_lines(found):
            Console(stderr=True).print(line)
    raise typer.Exit(EXIT_CLEAN if found.is_clean else EXIT_FINDINGS)


def _json(found: AuditReport) -> str:
    return msgspec.json.encode({"clean": found.is_clean, **msgspec.to_builtins(found)}).decode()


def hours_table(found: AuditReport) -> Table:
    table = Table("topic", "group", "hour (UTC)", "sent", "stored", "handled", "ok", "findings")
    for hour in found.hours:
        numbers = [_count(number) for number in (hour.sent, hour.stored, hour.handled, hour.ok)]
        findings = sum(ids.count for ids in hour.findings.values())
        where = (escape(hour.topic), escape(hour.group or "-"), _when(hour.hour_ms))
        table.add_row(*where, *numbers, f"{findings:,}", style="red" if findings else None)
    return table


def finding_lines(found: AuditReport) -> list[str]:
    """The ids of the report, a finding a line. What is about a topic is said once, whatever its groups are."""
    from sparrow.spark.jobs.audit.findings import GROUP_FINDINGS

    said: dict[str, None] = {}
    for hour in found.hours:
        for finding, ids in hour.findings.items():
            where = f"{hour.topic} {hour.group}" if finding in GROUP_FINDINGS else hour.topic
            more = f" and {ids.count - len(ids.first):,} more" if ids.count > len(ids.first) else ""
            words = finding.replace("_", " ")
            said[f"{where} {_when(hour.hour_ms)}: {ids.count:,} {words}: {', '.join(ids.first)}{more}"] = None
    return list(said)


def note_lines(found: AuditReport) -> list[str]:
    said = [f"note: {note}" for note in found.notes]
    if found.without_id:
        said.append(f"note: {found.without_id:,} messages have nothing to be known by, and were not judged")
    if found.elsewhere:
        said.append(f"note: {found.elsewhere:,} handled ids are of other topics, or older")
    return said


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _when(ms: int | None) -> str:
    return "?" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:00")
