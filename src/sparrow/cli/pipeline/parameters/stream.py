"""Parameters of the commands that copy a topic as a stream (`forward`, `dedupe`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from sparrow.cli.pipeline.parameters.common import parse_interval_ms


@dataclass(frozen=True, kw_only=True)
class StreamParameters:
    """Filter, start and schedule of a stream."""

    tags: Annotated[str | None, typer.Option(help="Only messages with these tags: 'A || B'.")] = None
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Consumer group to which progress is committed, so that lag is visible."),
    ] = None
    starting: Annotated[
        str, typer.Option("--from", help="Where the first run starts: earliest, latest, group:NAME, or JSON.")
    ] = "earliest"
    every: Annotated[
        str | None, typer.Option(help="Run until stopped, with a batch at this interval (10s, 1m). Default: run once.")
    ] = None

    @property
    def interval_s(self) -> float | None:
        """The interval of batches; None: run once."""
        interval_ms = parse_interval_ms("--every", self.every)
        return None if interval_ms is None else interval_ms / 1000
