"""Parameters that all `sparrow pipeline` commands share: the brokers, the client and the Spark session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparrow.cli.admin_client import NameServersOption
from sparrow.client.options import DEFAULT_NAME_SERVERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CheckpointOption = Annotated[
    Path | None,
    typer.Option("--checkpoint", help="Folder for the progress of the job; the next run continues from it."),
]


@dataclass(frozen=True, kw_only=True)
class ClientParameters:
    """How to reach the brokers."""

    name_servers: NameServersOption = DEFAULT_NAME_SERVERS
    name_server: Annotated[
        str | None, typer.Option(hidden=True, envvar="SPARROW_NAME_SERVER", help="Old name of --name-servers.")
    ] = None
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="Client option KEY=VALUE, such as sparrow.accessKey=NAME. Repeatable."),
    ] = None

    def __post_init__(self) -> None:
        if self.name_server is not None:
            typer.secho(
                "sparrow: use --name-servers for --name-server, and SPARROW_NAME_SERVERS for SPARROW_NAME_SERVER; the "
                "old names are accepted until 0.3",
                err=True,
            )
            object.__setattr__(self, "name_servers", self.name_server)

    @property
    def options(self) -> dict[str, str]:
        """The client options by name."""
        return parse_pairs("--option", self.option)


@dataclass(frozen=True, kw_only=True)
class TargetParameters:
    """How to reach the brokers of the target, if it is in another cluster."""

    to_name_servers: Annotated[
        str | None,
        typer.Option(
            "--to-name-servers",
            help="Name servers of the target, if it is in another cluster. Default: those of --name-servers.",
            envvar="SPARROW_TO_NAME_SERVERS",
        ),
    ] = None
    to_option: Annotated[
        list[str] | None,
        typer.Option("--to-option", help="Client option KEY=VALUE that differs for the target. Repeatable."),
    ] = None

    @property
    def options(self) -> dict[str, str]:
        """The client options by name."""
        return parse_pairs("--to-option", self.to_option)

    @property
    def identity(self) -> list[str]:
        """What the default checkpoint of a job depends on; empty without another cluster."""
        return [] if self.to_name_servers is None else [self.to_name_servers]

    def describe(self, target: str) -> str:
        """Name the target, and its cluster if that is another one."""
        return target if self.to_name_servers is None else f"{target} at {self.to_name_servers}"


@dataclass(frozen=True, kw_only=True)
class SparkParameters:
    """The Spark session of a command."""

    master: Annotated[
        str | None,
        typer.Option("--master", help="Spark master URL: local[*] (the default), spark://..., yarn, k8s://..."),
    ] = None
    conf: Annotated[list[str] | None, typer.Option("--conf", help="Spark setting KEY=VALUE. Repeatable.")] = None

    @property
    def settings(self) -> dict[str, str]:
        """The Spark settings by name."""
        return parse_pairs("--conf", self.conf)

    def open_session(self, name: str) -> SparkSession:
        """Open a session. A missing class archive is built in the background, for faster starts later."""
        from sparrow.spark.runtime.session import spark_session

        return spark_session(f"sparrow {name}", master=self.master, options=self.settings, build_class_archive=True)


@dataclass(frozen=True, kw_only=True)
class TopicParameters:
    """Topics, selected by names or by a pattern."""

    topic: Annotated[list[str] | None, typer.Option(help="Topic to read. Repeatable.")] = None
    pattern: Annotated[
        str | None, typer.Option(help="Read all topics whose whole name matches this regular expression.")
    ] = None


def parse_pairs(flag: str, texts: list[str] | None) -> dict[str, str]:
    """Parse the values of a repeatable `KEY=VALUE` option."""
    found = {}
    for text in texts or ():
        key, separator, value = text.partition("=")
        if not (key and separator):
            raise typer.BadParameter(f"{text!r} is not of the form KEY=VALUE", param_hint=flag)
        found[key] = value
    return found


def parse_interval_ms(flag: str, text: str | None) -> int | None:
    """Parse a duration such as `10s` or `1m`; None stays None."""
    from sparrow.spark.options import parse_duration_ms

    try:
        return None if text is None else parse_duration_ms(text)
    except ValueError as cause:
        raise typer.BadParameter(f"{text!r}: {cause}", param_hint=flag) from cause


def pluralize(number: int, noun: str) -> str:
    """Return the number with its noun: `1 message`, `2,000 messages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def count_or_unknown(number: int | None) -> str:
    """Return the number as text; Spark may not know it."""
    return "an unknown number" if number is None else f"{number:,}"
