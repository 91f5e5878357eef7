"""Truncation of an open log: commit log, queues, key index and state end at the same record."""

from __future__ import annotations

from sparrow.model.errors import Refused
from sparrow.store.log.maintenance import LogMaintenance
from sparrow.store.log.parts import LogParts
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.recovery.recovery import rebuild_views


def truncate_log(parts: LogParts, maintenance: LogMaintenance, end: int) -> None:
    """Truncate at the end of a record, or at the begin of the atomic append that would lose its end.

    The caller holds the writer's lock and has paused the background threads.
    """
    commit_log, queues, index, state = parts.log, parts.queues, parts.index, parts.state
    if not commit_log.first <= end <= commit_log.written:
        raise Refused(f"the log reaches from {commit_log.first} to {commit_log.written}; it cannot end at {end}")
    end = state.truncation_point(end)
    maintenance.flush_queues()
    (parts.path / files.CHECKPOINT_FILE).unlink(missing_ok=True)
    (parts.path / files.STATE_SNAPSHOT_FILE).unlink(missing_ok=True)
    restores_topic = state.deletes_topic_after(end)
    commit_log.truncate(end)
    parts.writer.truncate(end)
    parts.flusher.truncate(end)
    if restores_topic:
        rebuild_views(commit_log, queues, index)
    else:
        for queue in queues:
            queue.truncate(end)
        index.truncate(end)
    state.reload()
    maintenance.after_truncate()
    maintenance.checkpoint()
