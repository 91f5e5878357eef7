"""The pipelines of a folder: those that its files declare, and those that report a status there. Pure Python.

1. A pipeline is declared by a `.toml` file. Files in Python are not listed: reading them runs them.
2. A pipeline runs in a process of its own, wherever it was started; the status folder says how it goes.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from sparrow import clock
from sparrow.model.errors import Refused
from sparrow.spark.pipelines.definition import Pipeline, Sink, Source, load
from sparrow.spark.pipelines.status import PipelineStatus, StatusFolder

FILES_MAX = 200
"""Pipeline files that are listed."""
SILENT_AFTER_MS = 15_000
"""A process that has not reported for this long is taken for gone; it reports every second."""


class PipelinePart(msgspec.Struct, frozen=True, kw_only=True):
    """A source, a step or a sink of a pipeline."""

    kind: str
    name: str
    what: str


class PipelineView(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline that is declared, or that has reported a status."""

    name: str
    file: str | None
    """None if it is not declared in the folder."""
    state: str
    """Of the last run; also idle (never run), invalid, stopping and silent (no report for a while)."""
    error: str | None
    """Why the file is invalid, or why the last run failed."""
    trigger: str
    parts: tuple[PipelinePart, ...]
    status: PipelineStatus | None
    is_own: bool = False
    """Whether the console that shows it has started it."""

    @property
    def is_active(self) -> bool:
        """Whether it runs, as far as is known."""
        return self.state in ("starting", "running", "stopping")

    @property
    def can_start(self) -> bool:
        """Whether the console can start it."""
        return self.file is not None and self.state != "invalid" and not self.is_active


class PipelineFolder:
    """A folder of pipeline files, whose subfolder `status` has the state of pipelines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.statuses = StatusFolder(path / "status")

    def read_all(self) -> list[PipelineView]:
        """Return all pipelines by name."""
        statuses = self.statuses.read_all()
        found: dict[str, PipelineView] = {}
        files = sorted(self.path.glob("*.toml"))[:FILES_MAX] if self.path.is_dir() else []
        for file in files:
            view = self._declared(file, statuses)
            if view.name in found:
                error = f"{found[view.name].file} declares the same name: rename one"
                view = msgspec.structs.replace(view, name=file.stem, state="invalid", error=error, status=None)
            found[view.name] = view
        for name, status in statuses.items():
            if name not in found:
                found[name] = self._view(name, None, None, status)
        return sorted(found.values(), key=lambda view: view.name)

    def _declared(self, file: Path, statuses: dict[str, PipelineStatus]) -> PipelineView:
        try:
            pipeline = load(file)
        except (Refused, OSError) as error:
            return PipelineView(
                name=file.stem,
                file=str(file),
                state="invalid",
                error=str(error),
                trigger="",
                parts=(),
                status=None,
            )
        return self._view(pipeline.name, file, pipeline, statuses.get(pipeline.name))

    def _view(
        self, name: str, file: Path | None, pipeline: Pipeline | None, status: PipelineStatus | None
    ) -> PipelineView:
        state, error = "idle", None
        if status is not None:
            state, error = str(status.state), status.error
            if status.state.is_active:
                if clock.now_ms() - status.updated_ms > SILENT_AFTER_MS:
                    state = "silent"
                elif self.statuses.is_stop_requested(name):
                    state = "stopping"
        return PipelineView(
            name=name,
            file=str(file) if file is not None else None,
            state=state,
            error=error,
            trigger=pipeline.trigger if pipeline is not None else status.trigger if status is not None else "",
            parts=_parts(pipeline) if pipeline is not None else (),
            status=status,
        )


def _parts(pipeline: Pipeline) -> tuple[PipelinePart, ...]:
    return (
        *(PipelinePart(kind="source", name=each.name, what=_source(each)) for each in pipeline.sources),
        *(
            PipelinePart(kind="step", name=each.name, what=" ".join((each.sql or "").split()))
            for each in pipeline.steps
        ),
        *(PipelinePart(kind="sink", name=each.name, what=_sink(each)) for each in pipeline.sinks),
    )


def _source(source: Source) -> str:
    return source.topic or source.pattern or source.parquet or ""


def _sink(sink: Sink) -> str:
    what = sink.topic or sink.parquet or sink.delta or (sink.table if sink.sql else "console")
    return f"{sink.input} → {what}"
