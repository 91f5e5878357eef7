"""`sparrow pipeline forward`: a backlog to another topic."""

from __future__ import annotations

from typing import Annotated

import typer

from sparrow.cli.pipeline.options import Checkpoint, ClientOptions, Master, NameServers, SparkOptions, pairs, session

EXAMPLES = """
Examples:

[bold]sparrow pipeline forward orders --to orders_wide --queues 32 --group forward_orders[/bold]

[bold]sparrow pipeline forward orders --to orders_eu --where "properties['region'] = 'eu'" --every 10s[/bold]

[bold]sparrow pipeline forward orders --to orders_wide --from group:billing[/bold]  what billing has not read yet
"""
Sources = Annotated[list[str], typer.Argument(help="The topics to read.", metavar="TOPIC...")]
Target = Annotated[str, typer.Option("--to", help="The topic to write. It is made if it is not there.")]
Group = Annotated[
    str | None, typer.Option("--group", "-g", help="A consumer group that shows how far the job is, so lag is seen.")
]
Starting = Annotated[
    str, typer.Option("--from", help="Where the first run starts: earliest, latest, group:NAME, or JSON.")
]
Tags = Annotated[str | None, typer.Option(help="Only messages with these tags: 'A || B'.")]
Every = Annotated[str | None, typer.Option(help="Go on for ever, and look so often (10s, 1m). Without: what is there.")]


def forward(
    source: Sources,
    to: Target,
    name_servers: NameServers = "127.0.0.1:9876",
    where: Annotated[str | None, typer.Option(help="SQL over the topic's columns: only these messages.")] = None,
    tags: Tags = None,
    by: Annotated[
        str | None, typer.Option(help="SQL for the key that keeps its order; else the sharding key, or the keys.")
    ] = None,
    group: Group = None,
    starting: Starting = "earliest",
    every: Every = None,
    queues: Annotated[int, typer.Option(help="On each broker, if the topic has to be made.", min=1)] = 16,
    checkpoint: Checkpoint = None,
    option: ClientOptions = None,
    master: Master = None,
    conf: SparkOptions = None,
) -> None:
    """Forward messages to another topic, exactly once, in order for each key. Run it again and it goes on."""
    from sparrow.cli.pipeline.progress_bar import progress
    from sparrow.spark.jobs import forward as job
    from sparrow.spark.runtime.filesystem import default_checkpoint

    place = str(checkpoint or default_checkpoint("forward", [name_servers, sorted(source), to, where, tags, by]))
    arguments = job.Forward(
        name_servers=name_servers,
        sources=tuple(source),
        target=to,
        checkpoint=place,
        group=group,
        starting=starting,
        where=where,
        tags=tags,
        by=by,
        every_s=seconds(every),
        target_queues=queues,
        options=pairs("--option", option),
    )
    with progress(f"forward to {to}") as told:
        spark = session("forward", master, pairs("--conf", conf))
        done = job.run(spark, arguments, told=told)
    typer.echo(f"{done.read:,} messages read, {said(done.written)} written to {to}; progress is kept in {place}")


def seconds(every: str | None) -> float | None:
    """Of `10s` or `1m`."""
    from sparrow.spark.options import duration_ms

    try:
        return None if every is None else duration_ms(every) / 1000
    except ValueError as cause:
        raise typer.BadParameter(f"{every!r}: {cause}", param_hint="--every") from cause


def said(count: int | None) -> str:
    return "an unknown number" if count is None else f"{count:,}"
