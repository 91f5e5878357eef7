"""Pipeline definitions: the structs of a pipeline file, its loader and its checks. Pure, without Spark or a broker.

TOML and Python files have the same structure; a step of a Python file can also be a function of DataFrames.
"""

from __future__ import annotations

import re
import runpy
import tomllib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from sparrow.client.options import default_name_servers
from sparrow.model.errors import Refused

_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TRIGGERS = ("available-now", "a time such as '10 seconds'")


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source of rows: exactly one of topic, pattern and parquet."""

    name: str
    """The table name in SQL."""
    topic: str | None = None
    """One topic, or several separated by commas."""
    pattern: str | None = None
    """Topics whose whole name matches this regular expression."""
    parquet: str | None = None
    """A folder of Parquet files; with `stream`, new files are read as they appear."""
    name_servers: str | None = None
    """Overrides the name servers of the pipeline."""
    nameserver: str | None = None
    """The old name of `name_servers`, accepted until 0.3."""
    columns: str | None = None
    """Columns and types, as in `body string, store_timestamp timestamp`; other columns are not read."""
    json: str | None = None
    """Columns of a JSON body; they are added to the columns of the message."""
    stream: bool = True
    """Read continuously (stream), or what exists now (table)."""
    watermark: dict[str, str] = {}
    """Column and delay: `{store_timestamp = "10 seconds"}`."""
    options: dict[str, str | int | bool] = {}
    """Options of the format; docs/spark.md lists them."""


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SQL over the sources and earlier steps; later steps refer to its result by name."""

    name: str
    sql: str | None = None
    call: Callable[..., Any] | None = None
    """Python files only: a function that is called with the frames its parameters name."""


class Sink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A target of results: exactly one of topic, parquet, sql, delta and console."""

    name: str
    input: str = msgspec.field(name="from")
    topic: str | None = None
    """Rows without a column `body` are converted to JSON."""
    key: str | None = None
    """For a topic: SQL expression for the keys of the messages, which also select the queue."""
    parquet: str | None = None
    partition_by: list[str] = []
    sql: str | None = None
    """The URL of a database; needs `table`."""
    table: str | None = None
    keys: list[str] = []
    """For a database: columns of the primary key. A row with the same key is replaced."""
    delta: str | None = None
    console: bool = False
    name_servers: str | None = None
    nameserver: str | None = None
    """The old name of `name_servers`, accepted until 0.3."""
    mode: Literal["append", "update", "complete"] = "append"
    options: dict[str, str | int | bool] = {}


class Pipeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sources, steps and sinks, with common settings."""

    name: str
    sources: list[Source]
    sinks: list[Sink]
    steps: list[Step] = []
    name_servers: str | None = None
    """`host:port`, separated by `;`. None: `SPARROW_NAME_SERVERS`, else 127.0.0.1:9876."""
    nameserver: str | None = None
    """The old name of `name_servers`, accepted until 0.3."""
    checkpoint: str | None = None
    """The checkpoint folder of all its streams. Required for streams."""
    trigger: str = "available-now"
    """`available-now` reads what exists and ends; `10 seconds` runs until stopped, with a batch at this interval."""
    spark: dict[str, str | int | bool] = {}
    """Spark settings."""

    def name_servers_of(self, part: Source | Sink) -> str:
        """Return the name servers of a source or sink."""
        return part.name_servers or self.name_servers or default_name_servers()

    @property
    def is_stream(self) -> bool:
        """Whether any source is a stream."""
        return any(source.stream for source in self.sources)

    @property
    def is_endless(self) -> bool:
        """Whether the pipeline runs until it is stopped."""
        return self.is_stream and self.trigger != "available-now"


PartT = TypeVar("PartT", Pipeline, Source, Sink)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The layout of a TOML file."""

    pipeline: dict[str, Any]
    sources: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    sinks: list[dict[str, Any]] = []


def load(path: Path | str) -> Pipeline:
    """Load and check the pipeline in a `.toml` or `.py` file."""
    path = Path(path)
    if not path.is_file():
        raise Refused(f"pipeline file {path.absolute()} does not exist: check the path")
    if path.suffix == ".py":
        found = runpy.run_path(str(path)).get("pipeline")
        if not isinstance(found, Pipeline):
            raise Refused(
                f"{path} does not define a pipeline: add `pipeline = Pipeline(...)`, with Pipeline from "
                "sparrow.spark.pipelines"
            )
        return check_pipeline(found)
    if path.suffix != ".toml":
        raise Refused(f"{path} is not a pipeline file: use a .toml or a .py file")
    try:
        document = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise Refused(f"cannot read pipeline file {path}: {cause}") from cause
    return check_pipeline(from_toml(document, str(path)))


def from_toml(document: dict[str, Any], where: str) -> Pipeline:
    """Convert the content of a TOML file to a pipeline."""
    try:
        file = msgspec.convert(document, _File)
        return msgspec.convert(
            {**file.pipeline, "sources": file.sources, "steps": file.steps, "sinks": file.sinks}, Pipeline
        )
    except msgspec.ValidationError as cause:
        raise Refused(f"{where}: {cause}") from cause


def _rename_old_fields(part: PartT) -> PartT:
    if part.nameserver is None:
        return part
    warnings.warn("nameserver is now called name_servers; the old name is accepted until 0.3", FutureWarning, 2)
    return msgspec.structs.replace(part, name_servers=part.name_servers or part.nameserver, nameserver=None)


def check_pipeline(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline if its parts fit together; raise `Refused` otherwise."""
    pipeline = msgspec.structs.replace(
        _rename_old_fields(pipeline),
        sources=[_rename_old_fields(source) for source in pipeline.sources],
        sinks=[_rename_old_fields(sink) for sink in pipeline.sinks],
    )
    if not pipeline.sources or not pipeline.sinks:
        raise Refused(f"pipeline {pipeline.name!r} needs at least one source and one sink")
    known: set[str] = set()
    for name in [*(source.name for source in pipeline.sources), *(step.name for step in pipeline.steps)]:
        if not _TABLE_NAME.fullmatch(name):
            raise Refused(f"{name!r} is not a valid table name: use letters, digits and '_'")
        if name in known:
            raise Refused(f"pipeline {pipeline.name!r} has two sources or steps with the name {name!r}: rename one")
        known.add(name)
    for source in pipeline.sources:
        _check_exactly_one(f"source {source.name!r}", source, ("topic", "pattern", "parquet"))
        if source.parquet is not None and source.stream and source.columns is None:
            raise Refused(
                f"source {source.name!r} is a stream of Parquet files: set columns, which Spark cannot infer for a "
                "stream"
            )
        if len(source.watermark) > 1:
            raise Refused(f"source {source.name!r} has more than one watermark: keep one")
    for step in pipeline.steps:
        _check_exactly_one(f"step {step.name!r}", step, ("sql", "call"))
    for sink in pipeline.sinks:
        _check_sink(pipeline, sink, known)
    names = [sink.name for sink in pipeline.sinks]
    if len(set(names)) < len(names):
        raise Refused(f"pipeline {pipeline.name!r} has two sinks with the same name: rename one")
    if pipeline.is_stream and pipeline.checkpoint is None and not all(sink.console for sink in pipeline.sinks):
        raise Refused(
            f"pipeline {pipeline.name!r} reads a stream and has no checkpoint: set checkpoint to a folder, or every "
            "run starts over"
        )
    return pipeline


def _check_sink(pipeline: Pipeline, sink: Sink, known: set[str]) -> None:
    _check_exactly_one(f"sink {sink.name!r}", sink, ("topic", "parquet", "sql", "delta", "console"))
    if sink.input not in known:
        raise Refused(
            f"sink {sink.name!r} reads from {sink.input!r}, which does not exist. Sources and steps: "
            f"{', '.join(sorted(known))}"
        )
    if sink.sql is not None and sink.table is None:
        raise Refused(f"sink {sink.name!r} writes to a database: set table")
    if sink.parquet is not None and pipeline.is_stream and sink.mode != "append":
        raise Refused(
            f"sink {sink.name!r} has mode {sink.mode!r}, but Parquet files can only be appended: use a database sink "
            "for results that change"
        )


def _check_exactly_one(what: str, part: msgspec.Struct, choices: Sequence[str]) -> None:
    chosen = [name for name in choices if getattr(part, name) not in (None, False)]
    if len(chosen) != 1:
        raise Refused(f"{what} needs exactly one of {', '.join(choices)}, but has {' and '.join(chosen) or 'none'}")
