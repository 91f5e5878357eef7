"""Reports of a running pipeline to its status folder, and requests to stop it.

A thread of its own writes the status once a second: starting Spark and writing a bounded result block for longer.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from sparrow import clock
from sparrow.log_intervals import LogIntervals
from sparrow.spark.pipelines.definition import Pipeline
from sparrow.spark.pipelines.status import (
    BatchStatus,
    PipelineState,
    PipelineStatus,
    QueryStatus,
    QueueStatus,
    StatusFolder,
)
from sparrow.spark.runtime.progress import parse_offset, query_lag

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 1.0
RECENT_BATCHES = 60
QUEUES_MAX = 500
"""Queues of one query whose offsets are reported."""
_ERROR_CHARS_MAX = 2_000


class StatusReporter:
    """Reports one run: `with StatusReporter(folder, pipeline) as reporter: run_pipeline(…, reporter=reporter)`."""

    def __init__(self, folder: StatusFolder, pipeline: Pipeline) -> None:
        self._folder, self._stack = folder, ExitStack()
        now_ms = clock.now_ms()
        self._status = PipelineStatus(
            pipeline=pipeline.name,
            state=PipelineState.STARTING,
            pid=os.getpid(),
            host=socket.gethostname(),
            started_ms=now_ms,
            updated_ms=now_ms,
            trigger=pipeline.trigger if pipeline.is_stream else "",
        )
        self._queries: dict[str, _QueryReport] = {}
        self._is_stopped = False
        self._is_over, self._failures = threading.Event(), LogIntervals()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._keep_writing, name="sparrow-pipeline-status", daemon=True)

    def __enter__(self) -> StatusReporter:
        self._stack.enter_context(self._folder.running(self._status.pipeline))
        self._write(state=PipelineState.STARTING)
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        with self._stack:
            if error is None:
                self._write(state=PipelineState.STOPPED if self._is_stopped else PipelineState.FINISHED)
            elif isinstance(error, Exception):
                self._write(state=PipelineState.FAILED, error=str(error)[:_ERROR_CHARS_MAX] or type(error).__name__)
            else:  # Ctrl-C, or the end of the parent process
                self._write(state=PipelineState.STOPPED)

    def begin(self) -> None:
        """Report that the queries, or the writes of a bounded pipeline, begin."""
        self._write(state=PipelineState.RUNNING)

    def report(self, query: StreamingQuery, batches: Sequence[StreamingQueryProgress]) -> None:
        """Add the last batches of a query; those that were added before are ignored."""
        known = self._queries.setdefault(query.id, _QueryReport(query.name or query.id))
        known.add(batches, is_active=query.isActive)

    def is_stop_requested(self) -> bool:
        """Return whether the run is asked to stop."""
        self._is_stopped = self._is_stopped or self._folder.is_stop_requested(self._status.pipeline)
        return self._is_stopped

    def _keep_writing(self) -> None:
        while not self._is_over.wait(REPORT_INTERVAL_S):
            try:
                self._write()
                self._failures.end("status")
            except OSError as error:  # the pipeline goes on without
                if self._failures.is_due("status", type(error)):
                    log.warning(
                        "cannot write the status of pipeline %(pipeline)s to %(folder)s: %(error)s; retrying",
                        {"pipeline": self._status.pipeline, "folder": str(self._folder.path), "error": error},
                    )

    def _write(self, *, state: PipelineState | None = None, error: str | None = None) -> None:
        with self._writing:
            self._status = msgspec.structs.replace(
                self._status,
                state=state or self._status.state,
                error=error,
                updated_ms=clock.now_ms(),
                queries=[query.status for query in list(self._queries.values())],
            )
            self._folder.write(self._status)


class _QueryReport:
    """What was reported of one query."""

    def __init__(self, name: str) -> None:
        self._last_timestamp = ""
        self.status = QueryStatus(name=name, is_active=True)

    def add(self, batches: Sequence[StreamingQueryProgress], *, is_active: bool) -> None:
        status = msgspec.structs.replace(self.status, is_active=is_active)
        for batch in batches:
            if batch.timestamp > self._last_timestamp:
                self._last_timestamp = batch.timestamp
                status = _with_batch(status, batch)
        self.status = status


def _with_batch(status: QueryStatus, batch: StreamingQueryProgress) -> QueryStatus:
    queues = _queues(batch)
    done = BatchStatus(time_ms=_ms_of(batch.timestamp), duration_ms=batch.batchDuration, rows=batch.numInputRows)
    return msgspec.structs.replace(
        status,
        batches=status.batches + 1,
        rows=status.rows + batch.numInputRows,
        lag=query_lag(batch),
        input_per_s=_number(batch.inputRowsPerSecond),
        processed_per_s=_number(batch.processedRowsPerSecond),
        recent=[*status.recent, done][-RECENT_BATCHES:],
        queues=queues[:QUEUES_MAX],
        queues_omitted=max(0, len(queues) - QUEUES_MAX),
    )


def _queues(batch: StreamingQueryProgress) -> list[QueueStatus]:
    found = []
    for source in batch.sources:
        offsets, ends = parse_offset(source.endOffset) or {}, parse_offset(source.latestOffset) or {}
        found += [QueueStatus(queue=name, offset=offset, end=ends.get(name)) for name, offset in offsets.items()]
    return found


def _number(value: float | None) -> float | None:
    """Return a rate; Spark reports NaN or infinity for an empty batch."""
    return value if value is not None and value == value and abs(value) != float("inf") else None


def _ms_of(timestamp: str) -> int:
    """Return the time of a batch, which Spark writes as `2026-01-01T00:00:00.000Z`."""
    return int(datetime.fromisoformat(timestamp).timestamp() * 1000)
