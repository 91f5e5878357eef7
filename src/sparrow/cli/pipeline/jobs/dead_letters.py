"""`sparrow pipeline deadletters`: report dead letters by cause, and redrive them to their topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from sparrow.cli.output import JsonOption, YesOption, confirm, print_json
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.pipeline.parameters.common import (
    CheckpointOption,
    ClientParameters,
    SparkParameters,
    count_or_unknown,
    pluralize,
)
from sparrow.spark.jobs.dead_letters import DeadLetterReport

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = """
For a quick look without Spark, use [bold]sparrow dlq list[/bold].

Columns for --where: group, origin (the original topic), cause, consumer, attempts, hour, and those of a topic: tags,
keys, msg_id, store_timestamp, properties, body and so on.

Examples:

[bold]sparrow pipeline deadletters[/bold]

[bold]sparrow pipeline deadletters --group billing --where "cause LIKE 'Timeout%'" --json-file timeouts.json[/bold]

[bold]sparrow pipeline deadletters --group billing --where "hour >= '2026-05-01 10:00'" --redrive[/bold]
"""


class DeadLetterOutcome(msgspec.Struct, frozen=True):
    """What `sparrow pipeline deadletters` found and sent."""

    report: DeadLetterReport
    sent: int | None = None
    """Letters that were redriven; null without --redrive, or if Spark no longer has the number."""
    checkpoint: str | None = None
    """The folder that records what was redriven; null without --redrive."""


@dataclass(frozen=True, kw_only=True)
class DeadLetterReportParameters:
    """Where the report goes."""

    json_file: Annotated[
        str | None, typer.Option("--json-file", help="Write the report to this file as JSON.", metavar="FILE")
    ] = None
    parquet: Annotated[str | None, typer.Option(help="Write the report to this new folder.", metavar="DIR")] = None
    rows: Annotated[int, typer.Option(help="Maximum lines to show.", min=1)] = 50


@with_parameter_groups
def dead_letters(
    report: DeadLetterReportParameters,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Only this consumer group.")] = None,
    where: Annotated[str | None, typer.Option(help="SQL filter.")] = None,
    cause: Annotated[list[str] | None, typer.Option(help="Property that contains the cause. Repeatable.")] = None,
    redrive: Annotated[
        bool, typer.Option("--redrive", help="Send the letters to their original topics, each once.")
    ] = False,
    yes: YesOption = False,
    checkpoint: CheckpointOption = None,
    as_json: JsonOption = False,
    *,
    client: ClientParameters,
    spark: SparkParameters,
) -> None:
    """Count dead letters by group, topic, tag, cause and hour, and optionally send them to their topics again.

    Letters that were redriven with the same --group and --where are not sent again; the checkpoint records them.
    """
    from rich.console import Console

    from sparrow.cli.pipeline.progress_bar import show_progress
    from sparrow.spark.jobs import dead_letters as job
    from sparrow.spark.jobs.job_keys import default_checkpoint_path

    work = job.DeadLettersJob(
        name_servers=client.name_servers,
        group=group,
        where=where,
        causes=(*(cause or ()), *job.CAUSE_PROPERTIES),
        json_file=report.json_file,
        parquet=report.parquet,
        options=client.options,
    )
    with show_progress("dead letters") as on_progress:
        session = spark.open_session("deadletters")
        found = job.run(session, work, on_progress=on_progress)
    if not as_json:
        Console().print(report_table(found, report.rows))
        if found.without_origin:
            letters = pluralize(found.without_origin, "dead letter")
            typer.echo(f"{letters} without an original topic cannot be redriven.")
    sent, progress_path = None, None
    count = found.letters - found.without_origin
    if redrive and count:
        confirm(f"Send {count:,} dead letters to their original topics?", yes=yes)
        identity = [client.name_servers, group, where, cause]
        progress_path = str(checkpoint or default_checkpoint_path("redrive", identity))
        with show_progress("redrive") as on_progress:
            sent = job.redrive(session, work, progress_path, on_progress=on_progress).sent
    if as_json:
        shown = msgspec.structs.replace(found, lines=found.lines[: report.rows])
        print_json(DeadLetterOutcome(shown, sent, progress_path))
    elif progress_path is not None:
        typer.echo(f"{count_or_unknown(sent)} sent. Checkpoint: {progress_path}")


def report_table(found: DeadLetterReport, rows: int) -> Table:
    """Return the first lines of the report as a table."""
    from rich.markup import escape
    from rich.table import Table

    more = f", first {rows:,} lines" if len(found.lines) > rows else ""
    table = Table(title=f"{found.letters:,} dead letters{more}")
    for name in ("group", "topic", "tag", "cause", "hour (UTC)", "count", "attempts", "first", "last", "ids"):
        table.add_column(name, justify="right" if name in ("count", "attempts") else "left")
    for line in found.lines[:rows]:
        table.add_row(
            *map(escape, (line.group, line.origin or "?", line.tag or "", line.cause or "")),
            f"{line.hour:%Y-%m-%d %H:00}",
            f"{line.count:,}",
            "" if line.attempts is None else f"{line.attempts:,}",
            f"{line.first:%H:%M:%S}",
            f"{line.last:%H:%M:%S}",
            escape("\n".join(line.samples)),
        )
    return table
