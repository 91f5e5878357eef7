"""The state of pipelines as files of a status folder, for the console and other processes. Pure Python, without Spark.

1. The process that runs a pipeline replaces `NAME.json` about once a second, and once more when it ends.
2. `NAME.stop` is a request to stop. The process that runs the pipeline looks for it, stops between two batches, and
   removes it.
3. `NAME.lock` is locked while the pipeline runs, so that one of a name runs at a time.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

import msgspec

from sparrow.model.errors import Refused

STATUSES_MAX = 1_000
"""Status files that are read of one folder."""
STATUS_BYTES_MAX = 4 << 20


class PipelineState(StrEnum):
    """What the process that runs a pipeline reports of it."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    """It has read what existed."""
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_active(self) -> bool:
        """Whether the pipeline runs."""
        return self in (PipelineState.STARTING, PipelineState.RUNNING)


class BatchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch of a query."""

    time_ms: int
    """When it began."""
    duration_ms: int
    rows: int


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a query has read a queue."""

    queue: str
    """`topic/broker/queue id`."""
    offset: int
    """The next offset to read."""
    end: int | None = None
    """The end of the queue when the last batch began."""


class QueryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A streaming query, which writes one sink."""

    name: str
    is_active: bool
    batches: int = 0
    """Batches of this run."""
    rows: int = 0
    """Rows read in this run."""
    lag: int | None = None
    """Messages not read yet; None if the source does not report it."""
    input_per_s: float | None = None
    processed_per_s: float | None = None
    recent: list[BatchStatus] = []
    """The last batches, the oldest first."""
    queues: list[QueueStatus] = []
    queues_omitted: int = 0


class PipelineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a pipeline."""

    pipeline: str
    state: PipelineState
    pid: int
    host: str
    started_ms: int
    updated_ms: int
    trigger: str = ""
    error: str | None = None
    """What failed, and what to do."""
    queries: list[QueryStatus] = []


class StatusFolder:
    """The status files of pipelines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, pipeline: str) -> PipelineStatus | None:
        """Return the last status of a pipeline; None if it has none, or none that can be read."""
        return _read(self._file(pipeline, "json"))

    def read_all(self) -> dict[str, PipelineStatus]:
        """Return the last status of each pipeline by name."""
        try:
            files = sorted(self.path.glob("*.json"))[:STATUSES_MAX]
        except OSError:
            return {}
        return {status.pipeline: status for file in files if (status := _read(file)) is not None}

    def write(self, status: PipelineStatus) -> None:
        """Replace the status of a pipeline; a reader sees the old or the new one."""
        file = self._file(status.pipeline, "json")
        new = file.with_name(f"{file.name}.{os.getpid()}.new")
        new.write_bytes(msgspec.json.encode(status))
        new.replace(file)

    def request_stop(self, pipeline: str) -> None:
        """Ask the process that runs a pipeline to stop it."""
        self._file(pipeline, "stop").touch()

    def is_stop_requested(self, pipeline: str) -> bool:
        """Return whether the pipeline is asked to stop."""
        return self._file(pipeline, "stop").exists()

    def log_file(self, pipeline: str) -> Path:
        """Return the file for the output of a process that the console starts."""
        return self._file(pipeline, "log")

    @contextmanager
    def running(self, pipeline: str) -> Iterator[None]:
        """Hold the right to run a pipeline; raise `Refused` if another process runs it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self._file(pipeline, "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as cause:
                raise Refused(
                    f"pipeline {pipeline!r} runs already, with the status folder {self.path}: stop it first"
                ) from cause
            self._file(pipeline, "stop").unlink(missing_ok=True)
            try:
                yield
            finally:
                self._file(pipeline, "stop").unlink(missing_ok=True)

    def _file(self, pipeline: str, suffix: str) -> Path:
        return self.path / f"{quote(pipeline, safe='')}.{suffix}"


def _read(file: Path) -> PipelineStatus | None:
    try:
        if file.stat().st_size > STATUS_BYTES_MAX:
            return None
        return msgspec.json.decode(file.read_bytes(), type=PipelineStatus)
    except (OSError, msgspec.MsgspecError):  # removed meanwhile, or of another version
        return None
