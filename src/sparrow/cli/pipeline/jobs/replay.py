"""`sparrow pipeline replay`: write messages of a topic or an archive again, to another topic or to one group."""

from __future__ import annotations

from typing import Annotated

import typer

from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.pipeline.parameters.common import ClientParameters, SparkParameters, TargetParameters
from sparrow.cli.pipeline.parameters.selection import DryRunOption, SelectionParameters, copy_summary
from sparrow.cli.pipeline.progress_bar import show_progress
from sparrow.spark.jobs.copy import replay as job

EXAMPLES = """
Examples:

[bold]sparrow pipeline replay orders --to orders-check --since -2h[/bold]

[bold]sparrow pipeline replay orders --to-group billing --keys order-7,order-9[/bold]

[bold]sparrow pipeline replay orders --archive ./archive --to-group billing --keys-file lost.txt --dry-run[/bold]

[bold]sparrow pipeline replay orders --to orders --to-name-servers other:9876[/bold]  (to another cluster)

To deliver messages again that brokers still hold, without copies, use [bold]sparrow resend[/bold].
"""


@with_parameter_groups
def replay(
    topic: Annotated[list[str], typer.Argument(help="Topics whose messages are replayed.")],
    selected: SelectionParameters,
    to: Annotated[str | None, typer.Option(help="Target topic.")] = None,
    to_group: Annotated[str | None, typer.Option(help="Target consumer group; only this group gets them.")] = None,
    archive: Annotated[str | None, typer.Option(help="Read from this archive, instead of the brokers.")] = None,
    replay_id: Annotated[
        str | None,
        typer.Option("--id", help="Name of the replay, which runs once per name. Default: derived from the arguments."),
    ] = None,
    dry_run: DryRunOption = False,
    *,
    client: ClientParameters,
    target: TargetParameters,
    spark: SparkParameters,
) -> None:
    """Write messages again, with their ids, and with the properties REPLAY_ID and REPLAY_OF."""
    work = job.ReplayJob(
        name_servers=client.name_servers,
        selection=selected.selection(topic),
        archive=archive,
        to=to,
        to_group=to_group,
        replay_id=replay_id,
        to_name_servers=target.to_name_servers,
        options=client.options,
        to_options=target.options,
    )
    with show_progress("replay") as on_progress:
        done = job.run(spark.open_session("replay"), work, dry_run=dry_run, on_progress=on_progress)
    typer.echo(copy_summary(done, "replayed", target.describe(to or f"group {to_group}"), dry_run=dry_run))
