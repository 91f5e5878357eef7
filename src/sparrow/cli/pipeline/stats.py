"""`sparrow pipeline stats`: rates, sizes, latencies, hot keys and lag, minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparrow.cli.pipeline.options import (
    CheckpointOption,
    MasterOption,
    NameServerOption,
    SparkConfOption,
    open_session,
    parse_pairs,
)
from sparrow.cli.pipeline.progress_bar import show_progress
from sparrow.model.errors import Refused

if TYPE_CHECKING:
    from sparrow.spark.jobs.stats.job import StatsResult

STATS_TOPIC = "sparrow_stats"
EXAMPLES = f"""
Examples:

[bold]sparrow pipeline stats orders --since -1h --parquet ./stats[/bold]

[bold]sparrow pipeline stats orders payments --follow[/bold]   (a live topic {STATS_TOPIC}, for the console)

[bold]sparrow pipeline stats orders --catch-up --parquet ./stats --no-topic[/bold]   (from cron)
"""


def stats(
    topic: Annotated[list[str], typer.Argument(help="The topics.")],
    name_server: NameServerOption = "127.0.0.1:9876",
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", help="Sample the lag of this group only; may be repeated.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Messages stored from then on: ISO time, milliseconds, or -1h.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Up to then.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.")] = False,
    catch_up: Annotated[
        bool, typer.Option("--catch-up", help="From where the last such run stopped up to now, and then leave.")
    ] = False,
    every: Annotated[int, typer.Option(help="With --follow: seconds between batches.", min=1)] = 10,
    parquet: Annotated[str | None, typer.Option(help="A folder of tables to add to.")] = None,
    to: Annotated[str, typer.Option(help="The topic of the measures.")] = STATS_TOPIC,
    no_topic: Annotated[bool, typer.Option("--no-topic", help="No topic: only Parquet.")] = False,
    no_traces: Annotated[bool, typer.Option("--no-traces", help="Leave out what clients traced.")] = False,
    hot_keys: Annotated[int, typer.Option(help="So many keys of each topic and minute.", min=1, max=100)] = 10,
    option: Annotated[
        list[str] | None, typer.Option(help="For the client, such as sparrow.accessKey=NAME; may be repeated.")
    ] = None,
    checkpoint: CheckpointOption = None,
    master: MasterOption = None,
    conf: SparkConfOption = None,
) -> None:
    """Measure topics and what clients do with them, into Parquet tables and a topic."""
    # Late: they load NumPy and Arrow, which no other verb should wait for.
    from sparrow.spark.jobs.job_keys import default_checkpoint_path
    from sparrow.spark.jobs.stats import job
    from sparrow.spark.jobs.time_span import JobTimeSpan

    if follow and catch_up:
        raise Refused("--follow and --catch-up exclude each other: one goes on for ever, the other leaves")
    output = None if no_topic else to
    place = None
    if follow or catch_up:
        work = (name_server, sorted(topic), sorted(group or ()), output, parquet, no_traces)
        place = str(checkpoint or default_checkpoint_path("stats", work))
    elif checkpoint is not None:
        raise Refused("a checkpoint is for --follow and --catch-up: a span of time is measured anew each time")
    arguments = job.StatsJob(
        name_servers=name_server,
        topics=tuple(topic),
        groups=tuple(group or ()),
        span=JobTimeSpan.parse(since, until),
        traces=not no_traces,
        parquet=parquet,
        topic=output,
        hot_keys=hot_keys,
        checkpoint=place,
        interval_s=every if follow else None,
        options=parse_pairs("--option", option),
    )
    with show_progress("stats") as on_progress:
        spark = open_session("stats", master, parse_pairs("--conf", conf))
        measured = job.run(spark, arguments, on_progress=on_progress)
    if measured.recent:
        Console().print(minutes_table(measured))
    typer.echo(", ".join(f"{count:,} rows of {kind}" for kind, count in measured.rows.items()) or "nothing to measure")


def minutes_table(measured: StatsResult) -> Table:
    table = Table(
        "minute (UTC)", "topic", "messages", "per s", "KB/s", "retried", "size p95", "latency p95", "hot keys"
    )
    for row in measured.recent:
        keys = ", ".join(f"{each['key']} ({each['count']:,})" for each in row["hot_keys"][:3])
        table.add_row(
            _minute(row["window_ms"]),
            escape(row["topic"]),
            f"{row['messages']:,}",
            f"{row['per_second']:,.1f}",
            f"{row['bytes_per_second'] / 1000:,.1f}",
            f"{row['retried']:,}",
            f"{row['size_p95']:,} B",
            f"{row['latency_ms_p95']:,} ms",
            escape(keys) or "-",
        )
    return table


def _minute(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
