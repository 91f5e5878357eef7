"""What a pipeline file says, read and checked. Pure: neither Spark nor a broker is asked.

A TOML file and a Python file say the same; a step of a Python file may also be a function from frames to a frame.
"""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from sparrow.model.errors import Refused

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TRIGGERS = ("available-now", "a time such as '10 seconds'")


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where rows come from: exactly one of topic, pattern and parquet."""

    name: str
    """What SQL calls it."""
    topic: str | None = None
    """One topic, or several with commas."""
    pattern: str | None = None
    """Topics whose whole name matches this expression."""
    parquet: str | None = None
    """A folder of Parquet files; with `stream`, new files are read as they come."""
    nameserver: str | None = None
    """Unless the pipeline's."""
    columns: str | None = None
    """Columns and types, as in `body string, store_timestamp timestamp`; what is not named is not read."""
    json: str | None = None
    """The body is JSON with these columns; they stand beside the message's own."""
    stream: bool = True
    """Read what comes, or what is there."""
    watermark: dict[str, str] = {}
    """Column to delay: `{store_timestamp = "10 seconds"}`."""
    options: dict[str, str | int | bool] = {}
    """Of the format; docs/spark.md lists them."""


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SQL over the sources and the steps before; its result has a name for those behind."""

    name: str
    sql: str | None = None
    call: Callable[..., Any] | None = None
    """Python files only: called with a frame for each of its parameters, by name."""


class Sink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a result goes: exactly one of topic, parquet, sql, delta and console."""

    name: str
    input: str = msgspec.field(name="from")
    topic: str | None = None
    """Without a column `body`, the row becomes JSON."""
    key: str | None = None
    """For a topic: an SQL expression for the messages' keys, by which they are spread over the queues."""
    parquet: str | None = None
    partition_by: list[str] = []
    sql: str | None = None
    """The URL of a database; with `table`."""
    table: str | None = None
    keys: list[str] = []
    """For a database: columns that name a row. A row that is there already is replaced."""
    delta: str | None = None
    console: bool = False
    nameserver: str | None = None
    mode: Literal["append", "update", "complete"] = "append"
    options: dict[str, str | int | bool] = {}


class Pipeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    sources: list[Source]
    sinks: list[Sink]
    steps: list[Step] = []
    nameserver: str | None = None
    checkpoint: str | None = None
    """A folder for the progress of all its streams. Streams do not start without it."""
    trigger: str = "available-now"
    """`available-now` reads what is there and ends; `10 seconds` goes on, with a batch that often."""
    spark: dict[str, str | int | bool] = {}
    """Settings of Spark."""

    @property
    def is_stream(self) -> bool:
        return any(source.stream for source in self.sources)

    @property
    def is_endless(self) -> bool:
        return self.is_stream and self.trigger != "available-now"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """How TOML lays it out."""

    pipeline: dict[str, Any]
    sources: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    sinks: list[dict[str, Any]] = []


def load(path: Path | str) -> Pipeline:
    """The pipeline of a `.toml` or a `.py` file; every mistake is a sentence that names its place."""
    path = Path(path)
    if not path.is_file():
        raise Refused(f"there is no pipeline file {path}")
    if path.suffix == ".py":
        found = runpy.run_path(str(path)).get("pipeline")
        if not isinstance(found, Pipeline):
            raise Refused(f"{path} should define `pipeline = Pipeline(...)`, from sparrow.spark.pipelines")
        return check_pipeline(found)
    if path.suffix != ".toml":
        raise Refused(f"{path} is neither a .toml nor a .py file")
    try:
        said = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise Refused(f"{path} cannot be read: {cause}") from cause
    return check_pipeline(from_toml(said, str(path)))


def from_toml(said: dict[str, Any], where: str) -> Pipeline:
    try:
        file = msgspec.convert(said, _File)
        return msgspec.convert(
            {**file.pipeline, "sources": file.sources, "steps": file.steps, "sinks": file.sinks}, Pipeline
        )
    except msgspec.ValidationError as cause:
        raise Refused(f"{where}: {cause}") from cause


def check_pipeline(pipeline: Pipeline) -> Pipeline:
    """The pipeline itself, if its parts fit together."""
    if not pipeline.sources or not pipeline.sinks:
        raise Refused(f"pipeline {pipeline.name!r} needs at least one source and one sink")
    known: set[str] = set()
    for name in [*(source.name for source in pipeline.sources), *(step.name for step in pipeline.steps)]:
        if not _NAME.fullmatch(name):
            raise Refused(f"{name!r} cannot name a table: use letters, digits and '_'")
        if name in known:
            raise Refused(f"two parts of pipeline {pipeline.name!r} are called {name!r}")
        known.add(name)
    for source in pipeline.sources:
        _one_of(f"source {source.name!r}", source, ("topic", "pattern", "parquet"))
        if source.parquet is None and (source.nameserver or pipeline.nameserver) is None:
            raise Refused(f"source {source.name!r} needs a nameserver, or the pipeline does")
        if source.parquet is not None and source.stream and source.columns is None:
            raise Refused(f"source {source.name!r} is a stream of files, so Spark needs its columns named")
        if len(source.watermark) > 1:
            raise Refused(f"source {source.name!r} can have one watermark")
    for step in pipeline.steps:
        _one_of(f"step {step.name!r}", step, ("sql", "call"))
    for sink in pipeline.sinks:
        _check_sink(pipeline, sink, known)
    names = [sink.name for sink in pipeline.sinks]
    if len(set(names)) < len(names):
        raise Refused(f"two sinks of pipeline {pipeline.name!r} have one name")
    if pipeline.is_stream and pipeline.checkpoint is None and not all(sink.console for sink in pipeline.sinks):
        raise Refused(f"pipeline {pipeline.name!r} reads a stream: name a checkpoint folder, or it would start over")
    return pipeline


def _check_sink(pipeline: Pipeline, sink: Sink, known: set[str]) -> None:
    _one_of(f"sink {sink.name!r}", sink, ("topic", "parquet", "sql", "delta", "console"))
    if sink.input not in known:
        raise Refused(f"sink {sink.name!r} takes from {sink.input!r}; there are {', '.join(sorted(known))}")
    if sink.topic is not None and (sink.nameserver or pipeline.nameserver) is None:
        raise Refused(f"sink {sink.name!r} needs a nameserver, or the pipeline does")
    if sink.sql is not None and sink.table is None:
        raise Refused(f"sink {sink.name!r} writes to a database: name the table")
    if sink.parquet is not None and pipeline.is_stream and sink.mode != "append":
        raise Refused(f"sink {sink.name!r}: files can only be appended; results that change belong into a table")


def _one_of(what: str, part: msgspec.Struct, choices: Sequence[str]) -> None:
    chosen = [name for name in choices if getattr(part, name) not in (None, False)]
    if len(chosen) != 1:
        raise Refused(f"{what} needs exactly one of {', '.join(choices)}, and has {' and '.join(chosen) or 'none'}")
