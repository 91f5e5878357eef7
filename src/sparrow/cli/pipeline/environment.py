"""`sparrow pipeline package` and `warm`: what Spark needs to start, here and on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

PACKAGE_EXAMPLES = """
[bold]sparrow pipeline package -o env.tar.gz[/bold]  then: spark-submit --archives env.tar.gz#environment
with PYSPARK_PYTHON=./environment/bin/python
"""


def package(
    out: Annotated[Path, typer.Option("--out", "-o", help="The archive to write.")] = Path("sparrow-env.tar.gz"),
) -> None:
    """Pack this Python environment for a cluster's executors."""
    from rich.progress import Progress

    from sparrow.spark.runtime.environment_archive import build_environment_archive

    with Progress(console=Console(stderr=True), transient=True) as bar:
        work = bar.add_task("packing", total=None)
        build_environment_archive(out, progress=lambda done, total: bar.update(work, completed=done, total=total))
    typer.echo(f"{out}: {out.stat().st_size / 1e6:.0f} MB. On the cluster: --archives {out}#environment, and")
    typer.echo("PYSPARK_PYTHON=./environment/bin/python for driver and executors")


def warm() -> None:
    """Make the class archive, which lets Spark start in about half the time."""
    from sparrow.spark.runtime.class_archive import build_class_archive

    with Console(stderr=True).status("loading Spark's classes once"):
        path = build_class_archive()
    typer.echo(f"{path}: the next start is quicker")
