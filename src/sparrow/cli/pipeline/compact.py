"""`sparrow pipeline compact`: the latest message of each key."""

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
from sparrow.model.errors import Refused
from sparrow.spark.jobs import compact as job

EXAMPLES = """
Examples:

[bold]sparrow pipeline compact ./customers --topic customer-changes --drop-empty[/bold]

[bold]sparrow pipeline compact --topic customer-changes --to-topic customers --checkpoint ./compacting[/bold]

The file [bold]_current[/bold] in the folder names the version that counts.
"""


def compact(
    path: Annotated[str | None, typer.Argument(help="The folder of the table.")] = None,
    topic: Annotated[list[str] | None, typer.Option(help="A topic; may be repeated.")] = None,
    pattern: Annotated[str | None, typer.Option(help="Topics whose whole names match this expression.")] = None,
    to_topic: Annotated[
        str | None, typer.Option(help="Instead of a table: a topic, which gets each key's newest message.")
    ] = None,
    drop_empty: Annotated[
        bool, typer.Option("--drop-empty", help="A key whose newest message has an empty body is gone.")
    ] = False,
    name_server: NameServerOption = "127.0.0.1:9876",
    checkpoint: CheckpointOption = None,
    option: ClientSettingOption = None,
    master: MasterOption = None,
    conf: SparkConfOption = None,
) -> None:
    """Keep the latest message of each key, in Parquet or in a topic. Run it again, and it takes in what is new."""
    if to_topic is None and (path is None or checkpoint is not None):
        raise Refused("name the folder of the table: its progress is kept there, too")
    if to_topic is not None and (path is not None or checkpoint is None):
        raise Refused("a topic needs --checkpoint, where progress is kept, and no folder for a table")
    work = job.CompactJob(
        name_servers=name_server,
        path=str(checkpoint) if path is None else path,
        topics=tuple(topic or ()),
        pattern=pattern,
        to_topic=to_topic,
        drop_empty=drop_empty,
        options=parse_pairs("--option", option),
    )
    with show_progress("compact") as on_progress:
        spark = open_session("compact", master, parse_pairs("--conf", conf))
        done = job.run(spark, work, on_progress=on_progress)
    written = (
        f"{pluralize(done.keys, 'key')} written to {to_topic}" if to_topic else f"{pluralize(done.keys, 'key')} now"
    )
    typer.echo(f"{pluralize(done.read, 'message')} read, {written}.")
