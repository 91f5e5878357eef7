"""The parts of an open log store, and how they are put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparrow.model.errors import SparrowError
from sparrow.model.message import Host
from sparrow.settings import LogSettings
from sparrow.store.log.append.flusher import Flusher
from sparrow.store.log.append.writer import GrowthListener, LogWriter
from sparrow.store.log.commit_log.commit_log import CommitLog
from sparrow.store.log.consume_queues.queue_table import ConsumeQueueTable
from sparrow.store.log.key_index.key_index import KeyIndex
from sparrow.store.log.reader import LogReader
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.recovery.checkpoint import HighWatermark
from sparrow.store.log.recovery.recovery import RecoveredStore
from sparrow.store.log.state.state_store import StateStore
from sparrow.wire import record


@dataclass(frozen=True, slots=True)
class LogParts:
    """Everything that appends, reads, maintenance and truncation share."""

    path: Path
    settings: LogSettings
    log: CommitLog
    queues: ConsumeQueueTable
    index: KeyIndex
    writer: LogWriter
    reader: LogReader
    flusher: Flusher
    state: StateStore
    is_replica: bool = False
    """Whether the store belongs to a replica, which keeps its high watermark."""


def build_parts(
    path: Path,
    settings: LogSettings,
    recovered: RecoveredStore,
    *,
    store_host: Host,
    on_growth: GrowthListener | None,
    now_ms: Callable[[], int],
    on_failure: Callable[[Exception], SparrowError],
    is_replica: bool = False,
) -> LogParts:
    """Build the parts over recovered files. No thread is started, and the state is not loaded yet."""
    writer = LogWriter(
        recovered.log,
        store_host=record.pack_host(store_host),
        message_bytes_max=settings.message_bytes_max,
        visible_after=settings.visible_after,
        now_ms=now_ms,
        on_growth=on_growth,
    )
    writer.newest_ms = recovered.newest_ms
    is_replica = is_replica or writer.visible_after == "replicated"
    if is_replica:
        known = files.load(path / files.HIGH_WATERMARK_FILE, HighWatermark)
        writer.show_to(known.physical_offset if known is not None else 0, recovered.queues)
    reader = LogReader(recovered.log, hot_bytes=settings.hot_bytes, checked_from=recovered.checked_from)
    flusher = Flusher(
        writer,
        interval_s=settings.flush_interval_ms / 1000,
        timeout_s=settings.flush_timeout_ms / 1000,
        failed=on_failure,
    )
    state = StateStore(
        path,
        recovered.queues,
        writer,
        reader,
        recovered.seal,
        now_ms,
        ledger_retention_days=settings.ledger_retention_days,
    )
    return LogParts(
        path, settings, recovered.log, recovered.queues, recovered.index, writer, reader, flusher, state, is_replica
    )
