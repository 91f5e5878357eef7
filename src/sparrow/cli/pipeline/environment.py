"""`sparrow pipeline env`, `package` and `warm-up`: Java and Python for Spark, on this machine and on executors."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

PACKAGE_EXAMPLES = """
[bold]sparrow pipeline package -o env.tar.gz[/bold]

Then: spark-submit --archives env.tar.gz#environment, with PYSPARK_PYTHON=./environment/bin/python
"""


ENV_EXAMPLES = """
[bold]eval "$(sparrow pipeline env)"[/bold]

Then: spark-pipelines run, spark-submit, pyspark
"""


def env() -> None:
    """Print the environment variables with which Spark's own commands find Java and this Python."""
    from sparrow.spark.runtime.java import cache_directory, find_java
    from sparrow.spark.runtime.session import spark_environment

    with spark_environment(find_java(), cache_directory(os.environ)):
        for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            typer.echo(f"export {name}={shlex.quote(os.environ[name])}")


def package(
    out: Annotated[Path, typer.Option("--out", "-o", help="Archive to write.")] = Path("sparrow-env.tar.gz"),
) -> None:
    """Package this Python environment for the executors of a cluster."""
    from rich.progress import Progress

    from sparrow.spark.runtime.environment_archive import build_environment_archive

    with Progress(console=Console(stderr=True), transient=True) as bar:
        work = bar.add_task("packing", total=None)
        build_environment_archive(out, progress=lambda done, total: bar.update(work, completed=done, total=total))
    typer.echo(f"{out}: {out.stat().st_size / 1e6:.0f} MB. On the cluster use --archives {out}#environment, and set")
    typer.echo("PYSPARK_PYTHON=./environment/bin/python for driver and executors.")


def warm_up() -> None:
    """Build the class archive, with which Spark starts in about half the time.

    Example: [bold]sparrow pipeline warm-up[/bold]
    """
    from sparrow.spark.runtime.class_archive import build_class_archive

    with Console(stderr=True).status("running Spark once to collect its classes"):
        path = build_class_archive()
    typer.echo(f"Class archive: {path}. The next start of Spark is faster.")
