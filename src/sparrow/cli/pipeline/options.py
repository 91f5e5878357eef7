"""Options that every pipeline has, and the session they ask for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NameServerOption = Annotated[
    str, typer.Option("--name-server", "-n", help="Name servers, ';' between them.", envvar="SPARROW_NAME_SERVER")
]
MasterOption = Annotated[
    str | None,
    typer.Option("--master", help="Spark's master: local[*] unless told; spark://..., yarn, k8s://..."),
]
CheckpointOption = Annotated[
    Path | None, typer.Option("--checkpoint", help="Where progress is kept, so that the job goes on where it stopped.")
]
SparkConfOption = Annotated[
    list[str] | None, typer.Option("--conf", help="A setting of Spark, KEY=VALUE; may be given again and again.")
]
ClientSettingOption = Annotated[
    list[str] | None,
    typer.Option("--option", help="For the client, such as sparrow.accessKey=NAME; may be repeated."),
]


def parse_pairs(name: str, words: list[str] | None) -> dict[str, str]:
    """`KEY=VALUE`, given again and again."""
    found = {}
    for word in words or ():
        key, middle, value = word.partition("=")
        if not (key and middle):
            raise typer.BadParameter(f"{name} {word!r} is no setting: write KEY=VALUE")
        found[key] = value
    return found


def open_session(name: str, master: str | None, conf: dict[str, str]) -> SparkSession:
    """A session for one command; what the next one needs to start quicker is made in the background."""
    from sparrow.spark.runtime.session import spark_session

    return spark_session(f"sparrow {name}", master=master, options=conf, build_class_archive=True)
