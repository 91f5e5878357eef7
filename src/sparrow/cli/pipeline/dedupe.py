"""`sparrow pipeline dedupe`: a topic, or an archive, without repeats."""

from __future__ import annotations

from typing import Annotated

import typer

from sparrow.cli.pipeline.forward import (
    EveryOption,
    GroupOption,
    StartingOption,
    TagsOption,
    count_or_unknown,
    parse_seconds,
)
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

[bold]sparrow pipeline dedupe orders --to orders_once --within 30m --every 10s[/bold]

[bold]sparrow pipeline dedupe clicks --to clicks_once --by "properties['click']" --large-state[/bold]

[bold]sparrow pipeline dedupe --archive s3a://lake/topics --to s3a://lake/topics_once[/bold]
"""


def dedupe(
    to: Annotated[str, typer.Option("--to", help="The topic to write; with --archive, the folder.")],
    source: Annotated[list[str] | None, typer.Argument(help="The topics to read.", metavar="TOPIC...")] = None,
    archive: Annotated[
        str | None, typer.Option(help="Read an archive in place of topics; of each message the first stays.")
    ] = None,
    name_servers: NameServerOption = "127.0.0.1:9876",
    by: Annotated[str, typer.Option(help="SQL: messages for which it gives the same are the same.")] = "msg_id",
    within: Annotated[str, typer.Option(help="How long a message is remembered.")] = "10m",
    in_order: Annotated[
        bool, typer.Option("--in-order", help="Keep the order of each key, which costs one more shuffle.")
    ] = False,
    large_state: Annotated[
        bool, typer.Option("--large-state", help="Remember in RocksDB: for more than some millions. Half as quick.")
    ] = False,
    tags: TagsOption = None,
    group: GroupOption = None,
    starting: StartingOption = "earliest",
    every: EveryOption = None,
    queues: Annotated[int, typer.Option(help="On each broker, if the topic has to be made.", min=1)] = 4,
    checkpoint: CheckpointOption = None,
    option: ClientSettingOption = None,
    master: MasterOption = None,
    conf: SparkConfOption = None,
) -> None:
    """Copy a topic without the messages that were sent twice, exactly once. Run it again and it goes on."""
    from sparrow.cli.pipeline.progress_bar import show_progress
    from sparrow.spark.jobs import dedupe as job
    from sparrow.spark.jobs.job_keys import default_checkpoint_path

    if (archive is None) == (not source):
        raise typer.BadParameter("say which topics to read, or --archive FOLDER")
    settings = parse_pairs("--conf", conf)
    if archive is not None:
        with show_progress(f"dedupe to {to}") as on_progress:
            spark = open_session("dedupe", master, settings)
            done = job.run_archive(spark, archive, to, by=by, on_progress=on_progress)
    else:
        topics, within_s = tuple(source or ()), parse_seconds(within) or 0
        place = str(
            checkpoint or default_checkpoint_path("dedupe", [name_servers, sorted(topics), to, by, within_s, tags])
        )
        arguments = job.DedupeJob(
            name_servers=name_servers,
            sources=topics,
            target=to,
            checkpoint=place,
            by=by,
            within_ms=int(within_s * 1000),
            in_order=in_order,
            large_state=large_state,
            group=group,
            starting_offsets=starting,
            tags=tags,
            interval_s=parse_seconds(every),
            target_queues=queues,
            options=parse_pairs("--option", option),
        )
        with show_progress(f"dedupe to {to}") as on_progress:
            spark = open_session("dedupe", master, settings)
            done = job.run(spark, arguments, on_progress=on_progress)
    typer.echo(f"{done.read:,} messages read, {count_or_unknown(done.dropped)} of them repeats that were dropped")
