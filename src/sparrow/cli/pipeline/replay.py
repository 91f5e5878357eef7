"""`sparrow pipeline replay`: a part of a topic or of an archive once more, to another topic or to one group."""

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
from sparrow.spark.jobs.copy import replay as job

EXAMPLES = """
Examples:

[bold]sparrow pipeline replay orders --to orders-check --since -2h[/bold]

[bold]sparrow pipeline replay orders --to-group billing --keys order-7,order-9[/bold]

[bold]sparrow pipeline replay orders --archive ./archive --to-group billing --keys-file lost.txt --dry-run[/bold]

Messages that brokers still have can also be delivered again without a copy: see [bold]sparrow resend[/bold].
"""


def replay(
    topic: Annotated[list[str], typer.Argument(help="The topics whose messages are meant.")],
    to: Annotated[str | None, typer.Option(help="The topic they go to.")] = None,
    to_group: Annotated[str | None, typer.Option(help="Or the group that gets them, and nobody else.")] = None,
    archive: Annotated[str | None, typer.Option(help="Take them from this archive, not from the brokers.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    queue: QueueOption = None,
    offsets: OffsetsOption = None,
    keys: KeysOption = None,
    keys_file: KeysFileOption = None,
    replay_id: Annotated[
        str | None, typer.Option("--id", help="A name for this replay, which is done once; else its arguments are.")
    ] = None,
    dry_run: DryRunOption = False,
    name_server: NameServerOption = "127.0.0.1:9876",
    option: ClientSettingOption = None,
    master: MasterOption = None,
    conf: SparkConfOption = None,
) -> None:
    """Write messages once more, with their ids, and with REPLAY_ID and REPLAY_OF among their properties."""
    chosen = parse_selection(
        topic, since=since, until=until, queue=queue, offsets=offsets, keys=keys, keys_file=keys_file
    )
    work = job.ReplayJob(
        name_servers=name_server,
        selection=chosen,
        archive=archive,
        to=to,
        to_group=to_group,
        replay_id=replay_id,
        options=parse_pairs("--option", option),
    )
    with show_progress("replay") as on_progress:
        spark = open_session("replay", master, parse_pairs("--conf", conf))
        done = job.run(spark, work, dry_run=dry_run, on_progress=on_progress)
    typer.echo(copy_summary(done, "replayed", to or f"group {to_group}", dry_run=dry_run))
