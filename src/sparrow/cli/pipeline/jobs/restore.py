"""`sparrow pipeline restore`: restore an archive to topics."""

from __future__ import annotations

from typing import Annotated

import typer

from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.pipeline.parameters.common import ClientParameters, SparkParameters
from sparrow.cli.pipeline.parameters.selection import DryRunOption, SelectionParameters, copy_summary
from sparrow.cli.pipeline.progress_bar import show_progress
from sparrow.spark.jobs.copy import restore as job

EXAMPLES = """
Examples:

[bold]sparrow pipeline restore ./archive --topic orders --since 2026-01-31 --until 2026-02-01 --dry-run[/bold]

[bold]sparrow pipeline restore ./archive --topic orders --to orders-again[/bold]

[bold]sparrow pipeline restore ./archive -n other:9876[/bold]  (to another cluster)

A second run with the same arguments writes nothing.
"""


@with_parameter_groups
def restore(
    path: Annotated[str, typer.Argument(help="An archive written by `sparrow pipeline archive`.")],
    selected: SelectionParameters,
    topic: Annotated[list[str] | None, typer.Option(help="Only this topic. Repeatable.")] = None,
    to: Annotated[str | None, typer.Option(help="Write to this topic, instead of the original one.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the job, which runs once per name. Default: derived from the arguments.")
    ] = None,
    dry_run: DryRunOption = False,
    *,
    client: ClientParameters,
    spark: SparkParameters,
) -> None:
    """Write archived messages to topics again, byte for byte, in the order of their queues, once."""
    work = job.RestoreJob(
        name_servers=client.name_servers,
        path=path,
        selection=selected.selection(topic),
        to=to,
        job_key=name,
        options=client.options,
    )
    with show_progress("restore") as on_progress:
        done = job.run(spark.open_session("restore"), work, dry_run=dry_run, on_progress=on_progress)
    typer.echo(copy_summary(done, "restored", to or "their topics", dry_run=dry_run))
