"""`sparrow pipeline deadletters`: what groups gave up, by cause, and back to its topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparrow.cli.pipeline.forward import count_or_unknown
from sparrow.cli.pipeline.options import (
    CheckpointOption,
    ClientSettingOption,
    MasterOption,
    NameServerOption,
    SparkConfOption,
    open_session,
    parse_pairs,
)

if TYPE_CHECKING:
    from rich.table import Table

    from sparrow.spark.jobs.dead_letters import DeadLetterReport

EXAMPLES = """
Columns for --where: group, origin (the topic a letter was sent to), cause, hour, and those of a topic: tags, keys,
msg_id, store_timestamp, properties, body and so on.

Examples:

[bold]sparrow pipeline deadletters[/bold]

[bold]sparrow pipeline deadletters --group billing --where "cause LIKE 'Timeout%'" --json timeouts.json[/bold]

[bold]sparrow pipeline deadletters --group billing --where "hour >= '2026-05-01 10:00'" --redrive[/bold]
"""


def dead_letters(
    name_servers: NameServerOption = "127.0.0.1:9876",
    group: Annotated[str | None, typer.Option("--group", "-g", help="Of this group only.")] = None,
    where: Annotated[str | None, typer.Option(help="SQL: only these.")] = None,
    cause: Annotated[
        list[str] | None, typer.Option(help="A property that says why a letter died; may be repeated.")
    ] = None,
    redrive: Annotated[bool, typer.Option("--redrive", help="Send them back to their topics, each once.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before sending.")] = False,
    json: Annotated[str | None, typer.Option(help="Write the report to this file.", metavar="FILE")] = None,
    parquet: Annotated[str | None, typer.Option(help="Write it to this new folder.", metavar="DIR")] = None,
    rows: Annotated[int, typer.Option(help="Show so many lines.", min=1)] = 50,
    checkpoint: CheckpointOption = None,
    option: ClientSettingOption = None,
    master: MasterOption = None,
    conf: SparkConfOption = None,
) -> None:
    """Count dead letters by group, topic, tag, cause and hour; send a selection of them back.

    Letters that were sent back with the same --group and --where are not sent again: the checkpoint knows them.
    """
    from rich.console import Console

    from sparrow.cli.pipeline.progress_bar import show_progress
    from sparrow.spark.jobs import dead_letters as job
    from sparrow.spark.jobs.job_keys import default_checkpoint_path

    arguments = job.DeadLettersJob(
        name_servers=name_servers,
        group=group,
        where=where,
        causes=(*(cause or ()), *job.CAUSE_PROPERTIES),
        json_file=json,
        parquet=parquet,
        options=parse_pairs("--option", option),
    )
    with show_progress("dead letters") as on_progress:
        spark = open_session("deadletters", master, parse_pairs("--conf", conf))
        found = job.run(spark, arguments, on_progress=on_progress)
    Console().print(report_table(found, rows))
    if found.without_origin:
        typer.echo(f"{found.without_origin:,} of them do not say which topic they were sent to, and cannot go back")
    if not redrive or found.letters == found.without_origin:
        return
    if not yes:
        typer.confirm(f"Send {found.letters - found.without_origin:,} dead letters back to their topics?", abort=True)
    place = str(checkpoint or default_checkpoint_path("redrive", [name_servers, group, where, cause]))
    with show_progress("redrive") as on_progress:
        done = job.redrive(spark, arguments, place, on_progress=on_progress)
    typer.echo(f"{count_or_unknown(done.sent)} sent; what was sent is kept in {place}")


def report_table(found: DeadLetterReport, rows: int) -> Table:
    from rich.markup import escape
    from rich.table import Table

    more = f", the first {rows:,} lines" if len(found.lines) > rows else ""
    table = Table(title=f"{found.letters:,} dead letters{more}")
    for name in ("group", "topic", "tag", "cause", "hour (UTC)", "count", "first", "last", "ids"):
        table.add_column(name, justify="right" if name == "count" else "left")
    for line in found.lines[:rows]:
        words = (line.group, line.origin or "?", line.tag or "", line.cause or "")
        table.add_row(
            *map(escape, words),
            f"{line.hour:%Y-%m-%d %H:00}",
            f"{line.count:,}",
            f"{line.first:%H:%M:%S}",
            f"{line.last:%H:%M:%S}",
            escape("\n".join(line.samples)),
        )
    return table
