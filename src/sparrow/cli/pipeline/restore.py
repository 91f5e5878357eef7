"""`sparrow pipeline restore`: an archive back into topics."""

from __future__ import annotations

from typing import Annotated

import typer

from sparrow.cli.pipeline.options import (
    ClientSettingOption,
    MasterOption,
    NameServerOption,
    SparkConfOption,
    open_session,
    parse_pairs,
)
from sparrow.cli.pipeline.progress_bar import show_progress
from sparrow.cli.pipeline.selection_options import (
    DryRunOption,
    KeysFileOption,
    KeysOption,
    OffsetsOption,
    QueueOption,
    SinceOption,
    UntilOption,
    copy_summary,
    parse_selection,
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
    since: SinceOption = None,
    until: UntilOption = None,
    queue: QueueOption = None,
    offsets: OffsetsOption = None,
    keys: KeysOption = None,
    keys_file: KeysFileOption = None,
    name: Annotated[
        str | None, typer.Option(help="A name for this work, which is done once under it; else its arguments are.")
    ] = None,
    dry_run: DryRunOption = False,
    name_server: NameServerOption = "127.0.0.1:9876",
    option: ClientSettingOption = None,
    master: MasterOption = None,
    conf: SparkConfOption = None,
) -> None:
    """Write archived messages to topics again: every byte, in the order of their queues, once."""
    chosen = parse_selection(
        topic, since=since, until=until, queue=queue, offsets=offsets, keys=keys, keys_file=keys_file
    )
    work = job.RestoreJob(
        name_servers=name_server,
        path=path,
        selection=chosen,
        to=to,
        job_key=name,
        options=parse_pairs("--option", option),
    )
    with show_progress("restore") as on_progress:
        spark = open_session("restore", master, parse_pairs("--conf", conf))
        done = job.run(spark, work, dry_run=dry_run, on_progress=on_progress)
    typer.echo(copy_summary(done, "restored", to or "their topics", dry_run=dry_run))
