"""`sparrow pipeline list`: the declared pipelines of a folder, and those that report their state there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from sparrow.cli.output import JsonOption, format_time, print_json, print_note, print_table
from sparrow.cli.server.console_process import PIPELINES_FOLDER
from sparrow.cli.settings import DEFAULT_DATA_FOLDER, load_settings
from sparrow.operations.errors import NotFound
from sparrow.spark.pipelines.folder import PipelineFolder, PipelineView

EXAMPLES = """
Examples:

[bold]sparrow pipeline list[/bold]

[bold]sparrow pipeline list ./pipelines --json[/bold]
"""


class PipelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline in a list."""

    name: str
    file: str | None
    """None if it is not declared in the folder, and only reports there."""
    state: str
    """idle (it never ran), invalid, starting, running, stopping, silent (no report for 15 s), finished, stopped or
    failed."""
    trigger: str
    started_ms: int | None
    """When its last run began; None if it never ran."""
    updated_ms: int | None
    """When its last run reported last."""
    rows: int | None
    """Rows that its last run has read."""
    lag: int | None
    """Messages that it has not read yet, as far as its sources report it."""
    error: str | None
    """Why the file is invalid, or why the last run failed."""


def list_pipelines(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of pipeline files. Default: console.pipelines_folder, or pipelines in the data folder.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List declared pipelines with their state. It needs neither Spark nor a broker."""
    if folder is not None and not folder.is_dir():
        raise NotFound("folder", str(folder), "name the folder of pipeline files")
    path = folder or Path(load_settings().console.pipelines_folder or DEFAULT_DATA_FOLDER / PIPELINES_FOLDER)
    rows = [_row(view) for view in PipelineFolder(path).read_all()]
    if as_json:
        print_json(rows)
    elif rows:
        columns = ("pipeline", "state", "trigger", "started", "rows", "lag", "file", "error")
        print_table(
            columns,
            [
                (
                    *(row.name, row.state, row.trigger, format_time(row.started_ms)),
                    *(row.rows, row.lag, row.file, row.error),
                )
                for row in rows
            ],
        )
    else:
        print_note(f"No pipeline is declared in {path}: put a .toml file there, or name another folder.")


def _row(view: PipelineView) -> PipelineRow:
    queries = view.status.queries if view.status is not None else []
    lags = [query.lag for query in queries if query.lag is not None]
    return PipelineRow(
        name=view.name,
        file=view.file,
        state=view.state,
        trigger=view.trigger,
        started_ms=None if view.status is None else view.status.started_ms,
        updated_ms=None if view.status is None else view.status.updated_ms,
        rows=sum(query.rows for query in queries) if queries else None,
        lag=sum(lags) if lags else None,
        error=view.error,
    )
