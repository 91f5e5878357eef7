"""`sparrow pipeline forward`: a backlog to another topic."""

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

EXAMPLES = """
Examples:

[bold]sparrow pipeline forward orders --to orders_wide --queues 32 --group forward_orders[/bold]

[bold]sparrow pipeline forward orders --to orders_eu --where "properties['region'] = 'eu'" --every 10s[/bold]

[bold]sparrow pipeline forward orders --to orders_wide --from group:billing[/bold]  what billing has not read yet
"""
SourcesArgument = Annotated[list[str], typer.Argument(help="The topics to read.", metavar="TOPIC...")]
TargetOption = Annotated[str, typer.Option("--to", help="The topic to write. It is made if it is not there.")]
GroupOption = Annotated[
    str | None, typer.Option("--group", "-g", help="A consumer group that shows how far the job is, so lag is seen.")
]
StartingOption = Annotated[
    str, typer.Option("--from", help="Where the first run starts: earliest, latest, group:NAME, or JSON.")
]
TagsOption = Annotated[str | None, typer.Option(help="Only messages with these tags: 'A || B'.")]
EveryOption = Annotated[
    str | None, typer.Option(help="Go on for ever, and look so often (10s, 1m). Without: what is there.")
]


def forward(
    source: SourcesArgument,
    to: TargetOption,
    name_servers: NameServerOption = "127.0.0.1:9876",
    where: Annotated[str | None, typer.Option(help="SQL over the topic's columns: only these messages.")] = None,
    tags: TagsOption = None,
    by: Annotated[
        str | None, typer.Option(help="SQL for the key that keeps its order; else the sharding key, or the keys.")
    ] = None,
    group: GroupOption = None,
    starting: StartingOption = "earliest",
    every: EveryOption = None,
    queues: Annotated[int, typer.Option(help="On each broker, if the topic has to be made.", min=1)] = 16,
    checkpoint: CheckpointOption = None,
    option: ClientSettingOption = None,
    master: MasterOption = None,
    conf: SparkConfOption = None,
) -> None:
    """Forward messages to another topic, exactly once, in order for each key. Run it again and it goes on."""
    from sparrow.cli.pipeline.progress_bar import show_progress
    from sparrow.spark.jobs import forward as job
    from sparrow.spark.jobs.job_keys import default_checkpoint_path

    place = str(checkpoint or default_checkpoint_path("forward", [name_servers, sorted(source), to, where, tags, by]))
    arguments = job.ForwardJob(
        name_servers=name_servers,
        sources=tuple(source),
        target=to,
        checkpoint=place,
        group=group,
        starting_offsets=starting,
        where=where,
        tags=tags,
        by=by,
        interval_s=parse_seconds(every),
        target_queues=queues,
        options=parse_pairs("--option", option),
    )
    with show_progress(f"forward to {to}") as on_progress:
        spark = open_session("forward", master, parse_pairs("--conf", conf))
        done = job.run(spark, arguments, on_progress=on_progress)
    typer.echo(
        f"{done.read:,} messages read, {count_or_unknown(done.written)} written to {to}; progress is kept in {place}"
    )


def parse_seconds(every: str | None) -> float | None:
    """Of `10s` or `1m`."""
    from sparrow.spark.options import parse_duration_ms

    try:
        return None if every is None else parse_duration_ms(every) / 1000
    except ValueError as cause:
        raise typer.BadParameter(f"{every!r}: {cause}", param_hint="--every") from cause


def count_or_unknown(count: int | None) -> str:
    return "an unknown number" if count is None else f"{count:,}"
