"""`sparrow pipeline restore`: an archive back into topics."""

from __future__ import annotations

from typing import Annotated

import typer

from sparrow.cli.pipeline.options import ClientOptions, Master, NameServers, SparkOptions, pairs, session
from sparrow.cli.pipeline.progress_bar import progress
from sparrow.cli.pipeline.selection_options import (
    DryRun,
    Keys,
    KeysFile,
    OffsetRange,
    QueueNumber,
    Since,
    Until,
    selection,
    told_of_copies,
)
from sparrow.spark.jobs.copy import restore as job

EXAMPLES = """
Examples:

[bold]sparrow pipeline restore ./archive --topic orders --since 2026-01-31 --until 2026-02-01 --dry-run[/bold]

[bold]sparrow pipeline restore ./archive --topic orders --to orders-again[/bold]

Run twice with the same arguments, it writes once.
"""


def restore(
    path: Annotated[str, typer.Argument(help="An archive, as `sparrow pipeline archive` writes it.")],
    topic: Annotated[list[str] | None, typer.Option(help="Only this topic; may be repeated.")] = None,
    to: Annotated[str | None, typer.Option(help="Another topic for the messages of the one that is restored.")] = None,
    since: Since = None,
    until: Until = None,
    queue: QueueNumber = None,
    offsets: OffsetRange = None,
    keys: Keys = None,
    keys_file: KeysFile = None,
    name: Annotated[
        str | None, typer.Option(help="A name for this work, which is done once under it; else its arguments are.")
    ] = None,
    dry_run: DryRun = False,
    name_server: NameServers = "127.0.0.1:9876",
    option: ClientOptions = None,
    master: Master = None,
    conf: SparkOptions = None,
) -> None:
    """Write archived messages to topics again: every byte, in the order of their queues, once."""
    chosen = selection(topic, since=since, until=until, queue=queue, offsets=offsets, keys=keys, keys_file=keys_file)
    work = job.Restore(
        name_servers=name_server,
        path=path,
        selection=chosen,
        to=to,
        job_key=name,
        options=pairs("--option", option),
    )
    with progress("restore") as told:
        spark = session("restore", master, pairs("--conf", conf))
        done = job.run(spark, work, dry_run=dry_run, told=told)
    typer.echo(told_of_copies(done, "restored", to or "their topics", dry_run=dry_run))
