"""`sparrow pipeline compact`: keep the latest message of each key."""

from __future__ import annotations

from typing import Annotated

import typer

from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.pipeline.parameters.common import (
    CheckpointOption,
    ClientParameters,
    SparkParameters,
    TopicParameters,
    pluralize,
)
from sparrow.cli.pipeline.progress_bar import show_progress
from sparrow.model.errors import Refused
from sparrow.spark.jobs import compact as job

EXAMPLES = """
Examples:

[bold]sparrow pipeline compact ./customers --topic customer-changes --drop-empty[/bold]

[bold]sparrow pipeline compact --topic customer-changes --to-topic customers --checkpoint ./compacting[/bold]

The file [bold]_current[/bold] in the folder names the current version of the table.
"""


@with_parameter_groups
def compact(
    topics: TopicParameters,
    path: Annotated[str | None, typer.Argument(help="Folder of the table.")] = None,
    to_topic: Annotated[
        str | None, typer.Option(help="Write the latest message of each key to this topic, instead of a table.")
    ] = None,
    drop_empty: Annotated[
        bool, typer.Option("--drop-empty", help="Remove keys whose latest message has an empty body.")
    ] = False,
    checkpoint: CheckpointOption = None,
    *,
    client: ClientParameters,
    spark: SparkParameters,
) -> None:
    """Keep the latest message of each key, in a Parquet table or in a topic. The next run adds what is new."""
    if to_topic is None and path is None:
        raise Refused("the folder of the table is missing: name it, or use --to-topic")
    if to_topic is None and checkpoint is not None:
        raise Refused("--checkpoint is for --to-topic: a table keeps its progress in its own folder")
    if to_topic is not None and path is not None:
        raise Refused(f"--to-topic {to_topic} and the table {path} exclude each other: use one of them")
    if to_topic is not None and checkpoint is None:
        raise Refused("--to-topic needs --checkpoint, a folder for the progress")
    work = job.CompactJob(
        name_servers=client.name_servers,
        path=str(checkpoint) if path is None else path,
        topics=tuple(topics.topic or ()),
        pattern=topics.pattern,
        to_topic=to_topic,
        drop_empty=drop_empty,
        options=client.options,
    )
    with show_progress("compact") as on_progress:
        done = job.run(spark.open_session("compact"), work, on_progress=on_progress)
    keys = pluralize(done.keys, "key")
    written = f"{keys} written to {to_topic}" if to_topic else f"{keys} in the table"
    typer.echo(f"{pluralize(done.read, 'message')} read, {written}.")
