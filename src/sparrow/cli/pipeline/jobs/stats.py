"""`sparrow pipeline stats`: measure rates, sizes, latencies, hot keys and lag by minute."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparrow.cli.output import JsonOption, print_json
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.pipeline.parameters.common import CheckpointOption, ClientParameters, SparkParameters
from sparrow.cli.pipeline.progress_bar import show_progress
from sparrow.model.errors import Refused

if TYPE_CHECKING:
    from sparrow.spark.jobs.stats.job import StatsResult

STATS_TOPIC = "sparrow_stats"


class HotKey(msgspec.Struct, frozen=True):
    """A key that many messages have."""

    key: str
    count: int
    """Messages with this key, estimated."""


class MinuteStats(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a topic in one minute."""

    window_ms: int
    """The beginning of the minute, in ms since 1970."""
    topic: str
    messages: int
    per_second: float
    bytes: int
    bytes_per_second: float
    retried: int
    size_p50: int
    size_p95: int
    size_p99: int
    size_max: int
    latency_ms_p50: int
    """From the producer's clock to the broker's."""
    latency_ms_p95: int
    latency_ms_p99: int
    latency_ms_max: int
    hot_keys: list[HotKey]


class StatsReport(msgspec.Struct, frozen=True):
    """What `sparrow pipeline stats` measured."""

    rows: dict[str, int]
    """Rows written, by kind."""
    minutes: list[MinuteStats]
    """The last minutes of a time span, the newest first; empty with --follow and --catch-up."""


EXAMPLES = f"""
Examples:

[bold]sparrow pipeline stats orders --since -1h --parquet ./stats[/bold]

[bold]sparrow pipeline stats orders payments --follow[/bold]   (live, to the topic {STATS_TOPIC})

[bold]sparrow pipeline stats orders --catch-up --parquet ./stats --no-topic[/bold]   (for cron)
"""


@dataclass(frozen=True, kw_only=True)
class StatsPeriodParameters:
    """The period that is measured: a time span, or a stream."""

    since: Annotated[
        str | None, typer.Option(help="Messages stored at this time or later: ISO time, milliseconds, or -1h.")
    ] = None
    until: Annotated[str | None, typer.Option(help="Messages stored before this time.")] = None
    follow: Annotated[bool, typer.Option("--follow", help="Measure new messages continuously, until Ctrl-C.")] = False
    catch_up: Annotated[
        bool, typer.Option("--catch-up", help="Measure from the end of the last such run until now, then exit.")
    ] = False
    every: Annotated[int, typer.Option(help="With --follow: seconds between batches.", min=1)] = 10
    checkpoint: CheckpointOption = None

    def __post_init__(self) -> None:
        if self.follow and self.catch_up:
            raise Refused("--follow and --catch-up exclude each other: use one of them")
        if self.checkpoint is not None and not self.is_stream:
            raise Refused("--checkpoint needs --follow or --catch-up: a time span has no progress to keep")

    @property
    def is_stream(self) -> bool:
        """Whether the job runs as a stream with a checkpoint."""
        return self.follow or self.catch_up


@dataclass(frozen=True, kw_only=True)
class StatsOutputParameters:
    """Where the measures go."""

    parquet: Annotated[str | None, typer.Option(help="Append to tables in this folder.")] = None
    to: Annotated[str, typer.Option(help="Topic for the measures.")] = STATS_TOPIC
    no_topic: Annotated[bool, typer.Option("--no-topic", help="Write to Parquet only.")] = False

    @property
    def topic(self) -> str | None:
        """The topic for the measures; None: Parquet only."""
        return None if self.no_topic else self.to


@with_parameter_groups
def stats(
    topic: Annotated[list[str], typer.Argument(help="Topics to measure.")],
    period: StatsPeriodParameters,
    output: StatsOutputParameters,
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", help="Sample the lag of this consumer group only. Repeatable.")
    ] = None,
    no_traces: Annotated[bool, typer.Option("--no-traces", help="Do not measure traces of clients.")] = False,
    hot_keys: Annotated[int, typer.Option(help="Number of hot keys per topic and minute.", min=1, max=100)] = 10,
    as_json: JsonOption = False,
    *,
    client: ClientParameters,
    spark: SparkParameters,
) -> None:
    """Measure topics, and what clients do with them, by minute, into Parquet tables and a topic."""
    # Imported here: NumPy and Arrow would slow down all other commands.
    from sparrow.spark.jobs.job_keys import default_checkpoint_path
    from sparrow.spark.jobs.stats import job
    from sparrow.spark.jobs.time_span import JobTimeSpan

    progress_path = None
    if period.is_stream:
        identity = (
            client.name_servers,
            sorted(topic),
            sorted(group or ()),
            output.topic,
            output.parquet,
            no_traces,
        )
        progress_path = str(period.checkpoint or default_checkpoint_path("stats", identity))
    work = job.StatsJob(
        name_servers=client.name_servers,
        topics=tuple(topic),
        groups=tuple(group or ()),
        span=JobTimeSpan.parse(period.since, period.until),
        traces=not no_traces,
        parquet=output.parquet,
        topic=output.topic,
        hot_keys=hot_keys,
        checkpoint=progress_path,
        interval_s=period.every if period.follow else None,
        options=client.options,
    )
    with show_progress("stats") as on_progress:
        measured = job.run(spark.open_session("stats"), work, on_progress=on_progress)
    if as_json:
        print_json(StatsReport(measured.rows, [_minute_stats(row) for row in measured.recent]))
        return
    if measured.recent:
        Console().print(minutes_table(measured))
    typer.echo(", ".join(f"{count:,} rows of {kind}" for kind, count in measured.rows.items()) or "nothing to measure")


def minutes_table(measured: StatsResult) -> Table:
    """Return the last minutes of a time span as a table."""
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


def _minute_stats(row: dict[str, Any]) -> MinuteStats:
    return msgspec.convert(row, MinuteStats)


def _minute(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
