"""`sparrow pipeline archive`: topics to Parquet, so that brokers may forget."""

from __future__ import annotations

from typing import Annotated

import typer

from sparrow.cli.pipeline.options import (
    CheckpointOption,
    ClientSettingOption,
    MasterOption,
    NameServerOption,
    SparkConfOption,
    open_session,
    parse_pairs,
)
from sparrow.cli.pipeline.progress_bar import show_progress
from sparrow.cli.pipeline.selection_options import pluralize
from sparrow.spark.jobs import archive as job
from sparrow.spark.options import parse_duration_ms

EXAMPLES = """
Examples:

[bold]sparrow pipeline archive ./archive --topic orders --topic payments[/bold]

[bold]sparrow pipeline archive s3a://bucket/archive --pattern 'shop[.].*' --every 1m[/bold]

A broker with [bold]retention_group = "sparrow_archive"[/bold] deletes nothing that is not in the archive.
"""


def archive(
    path: Annotated[str, typer.Argument(help="The archive: a folder, or s3a://..., hdfs://...")],
    topic: Annotated[list[str] | None, typer.Option(help="A topic; may be repeated.")] = None,
    pattern: Annotated[str | None, typer.Option(help="Topics whose whole names match this expression.")] = None,
    every: Annotated[
        str | None, typer.Option(help="Go on, and write what came in each 30s, 1m, ...; else what is there now.")
    ] = None,
    group: Annotated[
        str, typer.Option(help="The consumer group that shows how far the archive is.")
    ] = job.ARCHIVE_GROUP,
    starting: Annotated[
        str, typer.Option(help="Where the first run starts: earliest, latest, or offsets as JSON.")
    ] = "earliest",
    rows: Annotated[int, typer.Option(help="Messages of one batch, at most.", min=1)] = 1_000_000,
    name_server: NameServerOption = "127.0.0.1:9876",
    checkpoint: CheckpointOption = None,
    option: ClientSettingOption = None,
    master: MasterOption = None,
    conf: SparkConfOption = None,
) -> None:
    """Copy topics to Parquet files by topic, day and hour, each message once. Run it again, and it goes on."""
    try:
        interval_ms = None if every is None else parse_duration_ms(every)
    except ValueError as cause:
        raise typer.BadParameter(f"--every {every!r}: {cause}") from cause
    work = job.ArchiveJob(
        name_servers=name_server,
        path=path,
        topics=tuple(topic or ()),
        pattern=pattern,
        group=group,
        starting_offsets=starting,
        checkpoint=None if checkpoint is None else str(checkpoint),
        interval_ms=interval_ms,
        batch_rows_max=rows,
        options=parse_pairs("--option", option),
    )
    with show_progress("archive") as on_progress:
        spark = open_session("archive", master, parse_pairs("--conf", conf))
        done = job.run(spark, work, on_progress=on_progress)
    typer.echo(f"{pluralize(done.rows, 'message')} archived to {path}.")
