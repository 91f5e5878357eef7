"""Options that every pipeline has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NameServers = Annotated[
    str, typer.Option("--name-server", "-n", help="Name servers, ';' between them.", envvar="SPARROW_NAME_SERVER")
]
Master = Annotated[
    str | None,
    typer.Option("--master", help="Spark's master: local[*] unless told; spark://..., yarn, k8s://..."),
]
Checkpoint = Annotated[
    Path | None, typer.Option("--checkpoint", help="Where progress is kept, so that the job goes on where it stopped.")
]
SparkOptions = Annotated[
    list[str] | None, typer.Option("--conf", help="A setting of Spark, KEY=VALUE; may be given again and again.")
]
