"""`sparrow pipeline forward`: copy a backlog to another topic."""

from __future__ import annotations

from typing import Annotated

import typer

from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.pipeline.parameters.common import (
    CheckpointOption,
    ClientParameters,
    SparkParameters,
    TargetParameters,
    count_or_unknown,
)
from sparrow.cli.pipeline.parameters.stream import StreamParameters

EXAMPLES = """
Examples:

[bold]sparrow pipeline forward orders --to orders_wide --queues 32 --group forward_orders[/bold]

[bold]sparrow pipeline forward orders --to orders_eu --where "properties['region'] = 'eu'" --every 10s[/bold]

[bold]sparrow pipeline forward orders --to orders_wide --from group:billing[/bold]  (what billing has not read yet)

[bold]sparrow pipeline forward orders --to orders_backlog --to-name-servers rescue:9876[/bold]  (to other brokers)
"""


@with_parameter_groups
def forward(
    source: Annotated[list[str], typer.Argument(help="Topics to read.", metavar="TOPIC...")],
    to: Annotated[str, typer.Option("--to", help="Target topic. It is created if it does not exist.")],
    stream: StreamParameters,
    where: Annotated[str | None, typer.Option(help="SQL filter over the columns of the topic.")] = None,
    by: Annotated[
        str | None,
        typer.Option(help="SQL expression for the key that keeps its order. Default: the sharding key, then the keys."),
    ] = None,
    queues: Annotated[int, typer.Option(help="Queues on each broker, if the topic is created.", min=1)] = 16,
    checkpoint: CheckpointOption = None,
    *,
    client: ClientParameters,
    target: TargetParameters,
    spark: SparkParameters,
) -> None:
    """Copy messages to another topic, exactly once and in order for each key. The next run continues."""
    from sparrow.cli.pipeline.progress_bar import show_progress
    from sparrow.spark.jobs import forward as job
    from sparrow.spark.jobs.job_keys import default_checkpoint_path

    identity = [client.name_servers, sorted(source), to, where, stream.tags, by, *target.identity]
    progress_path = str(checkpoint or default_checkpoint_path("forward", identity))
    work = job.ForwardJob(
        name_servers=client.name_servers,
        sources=tuple(source),
        target=to,
        checkpoint=progress_path,
        group=stream.group,
        starting_offsets=stream.starting,
        where=where,
        tags=stream.tags,
        by=by,
        interval_s=stream.interval_s,
        target_queues=queues,
        target_name_servers=target.to_name_servers,
        options=client.options,
        target_options=target.options,
    )
    with show_progress(f"forward to {to}") as on_progress:
        done = job.run(spark.open_session("forward"), work, on_progress=on_progress)
    written = count_or_unknown(done.written)
    where_to = target.describe(to)
    typer.echo(f"{done.read:,} messages read, {written} written to {where_to}. Checkpoint: {progress_path}")
