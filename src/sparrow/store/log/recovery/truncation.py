"""Truncation of an open log: commit log, queues, key index and state end at the same record."""

from __future__ import annotations

from sparrow.model.errors import Refused
from sparrow.store.log.maintenance import LogMaintenance
from sparrow.store.log.parts import LogParts
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.recovery.checkpoint import Truncation
from sparrow.store.log.recovery.recovery import rebuild_views


def truncate_log(parts: LogParts, maintenance: LogMaintenance, end: int) -> None:
    """Truncate at the end of a record, or at the begin of the atomic append that would lose its end.

    The caller holds the writer's lock and has paused the background threads.
    """
    commit_log, queues, index, state = parts.log, parts.queues, parts.index, parts.state
    note = files.load(parts.path / files.TRUNCATION_FILE, Truncation)
    if note is not None:
        # An attempt before this one failed on its way, as on a full disk. Its note must not stay: a start would cut
        # there again, whatever was appended since.
        end = min(end, note.end)
    if not commit_log.first <= end <= commit_log.written:
        raise Refused(f"the log reaches from {commit_log.first} to {commit_log.written}; it cannot end at {end}")
    end = state.truncation_point(end)
    if end == commit_log.written and note is None:
        return
    maintenance.flush_queues()
    # Without this note, a crash could leave zeros and then old records, which a start would take for sound ones.
    files.save(parts.path / files.TRUNCATION_FILE, Truncation(end))
    files.remove_file(parts.path / files.CHECKPOINT_FILE)
    files.remove_file(parts.path / files.STATE_SNAPSHOT_FILE)
    # What the views have of an attempt that failed is unknown.
    rebuilds_views = note is not None or state.deletes_topic_after(end)
    commit_log.truncate(end)
    parts.writer.truncate(end)
    parts.flusher.truncate(end)
    if rebuilds_views:
        rebuild_views(commit_log, queues, index, state.seal)
    else:
        for queue in queues:
            queue.truncate(end)
        index.truncate(end)
    state.reload()
    maintenance.after_truncate()
    maintenance.checkpoint()
    files.remove_file(parts.path / files.TRUNCATION_FILE)


def erase_log(parts: LogParts, maintenance: LogMaintenance, first: int) -> None:
    """Delete the log and every view; the next byte has the offset `first`. The caller does as for `truncate_log`."""
    commit_log, writer = parts.log, parts.writer
    for name in (files.CHECKPOINT_FILE, files.STATE_SNAPSHOT_FILE, files.HIGH_WATERMARK_FILE):
        files.remove_file(parts.path / name)
    writer.truncate(commit_log.first)
    parts.flusher.truncate(commit_log.first)
    commit_log.erase(first)
    writer.durable = writer.replicated = commit_log.written
    parts.queues.clear()
    parts.index.clear()
    parts.state.reload()
    maintenance.after_truncate()
    maintenance.checkpoint()
