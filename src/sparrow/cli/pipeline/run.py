"""`sparrow pipeline run|validate|explain|package`: pipelines that are declared in files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sparrow.cli.pipeline.options import parse_pairs
from sparrow.cli.pipeline.progress_bar import show_progress
from sparrow.spark.pipelines import Pipeline, load

RUN_EXAMPLES = """
[bold]sparrow pipeline run orders.toml[/bold]  reads what is there and ends, if its trigger is available-now

[bold]sparrow pipeline run orders.toml --master spark://10.0.0.7:7077 --conf spark.executor.memory=4g[/bold]
"""

PipelineFile = Annotated[Path, typer.Argument(help="A pipeline: .toml, or .py that defines `pipeline`.")]
Master = Annotated[str | None, typer.Option("--master", help="Spark's master; local[*] unless told.")]
Conf = Annotated[list[str] | None, typer.Option("--conf", help="A setting of Spark, KEY=VALUE; repeatable.")]


def run(file: PipelineFile, master: Master = None, conf: Conf = None) -> None:
    """Run a declared pipeline, here or on a cluster."""
    from sparrow.spark.pipelines.runner import run_pipeline

    pipeline = load(file)
    with show_progress(pipeline.name) as on_progress:
        done = run_pipeline(_session(pipeline, master, conf), pipeline, on_progress=on_progress)
    typer.echo(f"{pipeline.name}: {done.rows:,} rows read, {done.sinks} sink(s) written")


def validate(file: PipelineFile) -> None:
    """Check a pipeline: its file, its SQL, its columns. Nothing is read or written, and no broker need run."""
    from sparrow.spark.pipelines.runner import validate_pipeline

    pipeline = load(file)
    frames = validate_pipeline(_session(pipeline, "local[1]", None), pipeline)
    typer.echo(f"{pipeline.name} is sound")
    for sink in pipeline.sinks:
        columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in frames[sink.input].schema.fields)
        typer.echo(f"  {sink.name} <- {sink.input}: {columns}")


def explain(file: PipelineFile) -> None:
    """Show what a pipeline is made of, and Spark's plan for each sink."""
    from sparrow.spark.pipelines.runner import validate_pipeline

    pipeline = load(file)
    Console().print(_overview(pipeline))
    frames = validate_pipeline(_session(pipeline, "local[1]", None), pipeline)
    for sink in pipeline.sinks:
        typer.echo(f"\n{sink.name} <- {sink.input}")
        frames[sink.input].explain("formatted")


def _session(pipeline: Pipeline, master: str | None, conf: list[str] | None):  # type: ignore[no-untyped-def]
    from sparrow.spark.pipelines.frames import option_strings
    from sparrow.spark.runtime.session import spark_session

    return spark_session(
        pipeline.name, master=master, options={**option_strings(pipeline.spark), **parse_pairs("--conf", conf)}
    )


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
