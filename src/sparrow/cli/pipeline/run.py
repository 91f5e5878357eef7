"""`sparrow pipeline run`, `validate` and `explain`: pipelines defined in files."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from sparrow.cli.output import JsonOption, print_json
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.pipeline.child_process import stop_with_input
from sparrow.cli.pipeline.parameters.common import SparkParameters
from sparrow.cli.pipeline.progress_bar import show_progress
from sparrow.spark.pipelines import Pipeline, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN_EXAMPLES = """
[bold]sparrow pipeline run orders.toml[/bold]  (reads what exists and ends, if its trigger is available-now)

[bold]sparrow pipeline run orders.toml --master spark://10.0.0.7:7077 --conf spark.executor.memory=4g[/bold]

[bold]sparrow pipeline run pipelines/orders.toml --status-folder pipelines/status[/bold]  (the console shows it)
"""

PipelineFile = Annotated[Path, typer.Argument(help="Pipeline file: .toml, or .py that defines `pipeline`.")]


MetricsPort = Annotated[
    int | None,
    typer.Option(help="Serve /metrics of the queries, /livez and /readyz over HTTP on this port; 0: any.", min=0),
]
MetricsHost = Annotated[str, typer.Option(help="Address on which --metrics-port listens.")]


class PipelineOutcome(msgspec.Struct, frozen=True):
    """The result of a run."""

    pipeline: str
    rows: int
    """Rows read by all streams; 0 without streams."""
    sinks: int
    """Sinks written."""


@with_parameter_groups
def run(
    file: PipelineFile,
    spark: SparkParameters,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    status_folder: Annotated[
        Path | None,
        typer.Option(help="Report state, batches and offsets to files of this folder; the console reads them."),
    ] = None,
    as_json: JsonOption = False,
    stop_on_stdin_eof: Annotated[
        bool, typer.Option("--stop-on-stdin-eof", help="Stop when standard input ends.", hidden=True)
    ] = False,
) -> None:
    """Run a pipeline, locally or on a cluster."""
    from sparrow.client.blocking import HealthServer
    from sparrow.spark.pipelines.reporter import StatusReporter
    from sparrow.spark.pipelines.runner import run_pipeline
    from sparrow.spark.pipelines.status import StatusFolder
    from sparrow.spark.runtime.query_metrics import QueryMetrics

    if stop_on_stdin_eof:
        stop_with_input()
    pipeline = load(file)
    with ExitStack() as stack:
        on_progress = stack.enter_context(show_progress(pipeline.name))
        reporter = None
        if status_folder is not None:
            reporter = stack.enter_context(StatusReporter(StatusFolder(status_folder), pipeline))
        session = _open_session(pipeline, spark)
        if metrics_port is not None:
            server = HealthServer(host=metrics_host, port=metrics_port, metrics=[QueryMetrics(session)])
            stack.enter_context(server)
            typer.echo(f"metrics http://{server.address}/metrics", err=as_json)
        done = run_pipeline(session, pipeline, on_progress=on_progress, reporter=reporter)
    if as_json:
        print_json(PipelineOutcome(pipeline.name, done.rows, done.sinks))
    else:
        typer.echo(f"{pipeline.name}: {done.rows:,} rows read, {done.sinks} sink(s) written.")


def validate(file: PipelineFile) -> None:
    """Check a pipeline's file, SQL and columns. Nothing is read or written, and no broker needs to run.

    Example: [bold]sparrow pipeline validate revenue.toml[/bold]
    """
    from sparrow.spark.pipelines.runner import validate_pipeline

    pipeline = load(file)
    frames = validate_pipeline(_open_session(pipeline, SparkParameters(master="local[1]")), pipeline)
    typer.echo(f"{pipeline.name} is valid.")
    for sink in pipeline.sinks:
        columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in frames[sink.input].schema.fields)
        typer.echo(f"  {sink.name} <- {sink.input}: {columns}")


def explain(file: PipelineFile) -> None:
    """Show the parts of a pipeline, and Spark's plan for each sink.

    Example: [bold]sparrow pipeline explain revenue.toml[/bold]
    """
    from sparrow.spark.pipelines.runner import validate_pipeline

    pipeline = load(file)
    Console().print(_overview(pipeline))
    frames = validate_pipeline(_open_session(pipeline, SparkParameters(master="local[1]")), pipeline)
    for sink in pipeline.sinks:
        typer.echo(f"\n{sink.name} <- {sink.input}")
        frames[sink.input].explain("formatted")


def _open_session(pipeline: Pipeline, spark: SparkParameters) -> SparkSession:
    from sparrow.spark.pipelines.frames import option_strings
    from sparrow.spark.runtime.session import spark_session

    settings = {**option_strings(pipeline.spark), **spark.settings}
    return spark_session(pipeline.name, master=spark.master, options=settings)


def _overview(pipeline: Pipeline) -> Table:
    table = Table(title=f"{pipeline.name}: {pipeline.trigger if pipeline.is_stream else 'once'}")
    for column in ("part", "name", "what"):
        table.add_column(column)
    for source in pipeline.sources:
        kind = "stream" if source.stream else "table"
        table.add_row(f"source ({kind})", source.name, source.topic or source.pattern or source.parquet or "")
    for step in pipeline.steps:
        table.add_row("step", step.name, " ".join((step.sql or "a Python function").split())[:80])
    for sink in pipeline.sinks:
        what = sink.topic or sink.parquet or sink.delta or (f"{sink.table}" if sink.sql else "console")
        table.add_row(f"sink ({sink.mode})", sink.name, f"{sink.input} -> {what}")
    return table
