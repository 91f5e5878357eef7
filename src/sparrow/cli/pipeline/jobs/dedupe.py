"""`sparrow pipeline dedupe`: copy a topic or an archive without repeated messages."""

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
    parse_interval_ms,
)
from sparrow.cli.pipeline.parameters.stream import StreamParameters

EXAMPLES = """
Examples:

[bold]sparrow pipeline dedupe orders --to orders_once --within 30m --every 10s[/bold]

[bold]sparrow pipeline dedupe clicks --to clicks_once --by "properties['click']" --large-state[/bold]

[bold]sparrow pipeline dedupe --archive s3a://lake/topics --to s3a://lake/topics_once[/bold]
"""


@with_parameter_groups
def dedupe(
    to: Annotated[str, typer.Option("--to", help="Target topic; with --archive, the target folder.")],
    stream: StreamParameters,
    source: Annotated[list[str] | None, typer.Argument(help="Topics to read.", metavar="TOPIC...")] = None,
    archive: Annotated[
        str | None, typer.Option(help="Read an archive instead of topics; the message stored first is kept.")
    ] = None,
    by: Annotated[
        str, typer.Option(help="SQL expression; messages with the same value are repeats of each other.")
    ] = "msg_id",
    within: Annotated[str, typer.Option(help="Time within which repeats are detected.")] = "10m",
    in_order: Annotated[
        bool, typer.Option("--in-order", help="Keep the order of each key, at the cost of one more shuffle.")
    ] = False,
    large_state: Annotated[
        bool,
        typer.Option("--large-state", help="Keep the state in RocksDB, for more than a few million messages. Slower."),
    ] = False,
    queues: Annotated[int, typer.Option(help="Queues on each broker, if the topic is created.", min=1)] = 4,
    checkpoint: CheckpointOption = None,
    *,
    client: ClientParameters,
    target: TargetParameters,
    spark: SparkParameters,
) -> None:
    """Copy a topic without repeated messages, exactly once. The next run continues."""
    from sparrow.cli.pipeline.progress_bar import show_progress
    from sparrow.spark.jobs import dedupe as job
    from sparrow.spark.jobs.job_keys import default_checkpoint_path

    if (archive is None) == (not source):
        raise typer.BadParameter("name either the topics to read, or --archive FOLDER")
    if archive is not None:
        if target.to_name_servers is not None:
            raise typer.BadParameter("a folder has no name servers: unset --to-name-servers or its variable")
        with show_progress(f"dedupe to {to}") as on_progress:
            done = job.run_archive(spark.open_session("dedupe"), archive, to, by=by, on_progress=on_progress)
    else:
        topics, within_ms = tuple(source or ()), parse_interval_ms("--within", within) or 0
        identity = [client.name_servers, sorted(topics), to, by, within_ms / 1000, stream.tags, *target.identity]
        work = job.DedupeJob(
            name_servers=client.name_servers,
            sources=topics,
            target=to,
            checkpoint=str(checkpoint or default_checkpoint_path("dedupe", identity)),
            by=by,
            within_ms=within_ms,
            in_order=in_order,
            large_state=large_state,
            group=stream.group,
            starting_offsets=stream.starting,
            tags=stream.tags,
            interval_s=stream.interval_s,
            target_queues=queues,
            target_name_servers=target.to_name_servers,
            options=client.options,
            target_options=target.options,
        )
        with show_progress(f"dedupe to {to}") as on_progress:
            done = job.run(spark.open_session("dedupe"), work, on_progress=on_progress)
    typer.echo(f"{done.read:,} messages read, {count_or_unknown(done.dropped)} repeats dropped.")
