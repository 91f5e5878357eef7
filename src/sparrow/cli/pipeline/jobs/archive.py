"""`sparrow pipeline archive`: archive topics to Parquet files."""

from __future__ import annotations

from typing import Annotated

import typer

from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.pipeline.parameters.common import (
    CheckpointOption,
    ClientParameters,
    SparkParameters,
    TopicParameters,
    parse_interval_ms,
    pluralize,
)
from sparrow.cli.pipeline.progress_bar import show_progress
from sparrow.spark.jobs import archive as job

EXAMPLES = """
Examples:

[bold]sparrow pipeline archive ./archive --topic orders --topic payments[/bold]

[bold]sparrow pipeline archive s3a://bucket/archive --pattern 'shop[.].*' --every 1m[/bold]

With [bold]retention_group = "sparrow_archive"[/bold], a broker deletes only messages that are archived.
"""


@with_parameter_groups
def archive(
    path: Annotated[str, typer.Argument(help="The archive: a folder, or s3a://..., hdfs://...")],
    topics: TopicParameters,
    every: Annotated[
        str | None, typer.Option(help="Run until stopped, and write at this interval: 30s, 1m, ... Default: run once.")
    ] = None,
    group: Annotated[str, typer.Option(help="Consumer group to which progress is committed.")] = job.ARCHIVE_GROUP,
    starting: Annotated[
        str, typer.Option(help="Where the first run starts: earliest, latest, or offsets as JSON.")
    ] = "earliest",
    rows: Annotated[int, typer.Option(help="Maximum messages of one batch.", min=1)] = 1_000_000,
    checkpoint: CheckpointOption = None,
    *,
    client: ClientParameters,
    spark: SparkParameters,
) -> None:
    """Archive topics to Parquet files by topic, day and hour, each message once. The next run continues."""
    work = job.ArchiveJob(
        name_servers=client.name_servers,
        path=path,
        topics=tuple(topics.topic or ()),
        pattern=topics.pattern,
        group=group,
        starting_offsets=starting,
        checkpoint=None if checkpoint is None else str(checkpoint),
        interval_ms=parse_interval_ms("--every", every),
        batch_rows_max=rows,
        options=client.options,
    )
    with show_progress("archive") as on_progress:
        done = job.run(spark.open_session("archive"), work, on_progress=on_progress)
    typer.echo(f"{pluralize(done.rows, 'message')} archived to {path}.")
