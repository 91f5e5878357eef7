"""Maintenance of a log store: checkpoints, retention, queue files, key index and disk checks, as periodic tasks."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from sparrow.model.errors import StoreFailed, StoreFull
from sparrow.store.log import retention, search
from sparrow.store.log.consume_queues.consume_queue import ConsumeQueue
from sparrow.store.log.key_index.key_backlog import BacklogItem, KeyedRun
from sparrow.store.log.parts import LogParts
from sparrow.store.log.periodic_tasks import PeriodicTask
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.recovery.checkpoint import Checkpoint, RocketMQCheckpoint
from sparrow.store.log.recovery.recovery import first_store_ms, index_record_keys

log = logging.getLogger(__name__)

_RECORDS_AT_ONCE = 8192


def disk_ratio(path: Path) -> float:
    """Return how full the disk is, as a fraction of what unprivileged users may fill."""
    usage = shutil.disk_usage(path)
    return usage.used / (usage.used + usage.free)


class LogMaintenance:
    """Periodic tasks over the parts of a store. Every method may block; none is called on the event loop."""

    def __init__(
        self,
        parts: LogParts,
        *,
        now_ms: Callable[[], int],
        archived_to: Callable[[], int | None],
        disk_ratio: Callable[[Path], float],
    ) -> None:
        self._path, self._settings, self._sync_log = parts.path, parts.settings, parts.flusher.sync
        self._log, self._queues, self._index = parts.log, parts.queues, parts.index
        self._state, self._writer = parts.state, parts.writer
        self._now_ms, self._archived_to, self._disk_ratio = now_ms, archived_to, disk_ratio
        self._checkpointed = -1
        self._busy: set[ConsumeQueue] = set()
        """Queues with entries in memory."""
        self._queues_full: StoreFull | None = None
        # Before the first read: dead letters that had expired before must not become visible again.
        self.expire_dead_letters()

    def trust_checkpoint(self) -> None:
        """Keep the checkpoint of the last stop, because opening the store changed nothing."""
        self._checkpointed = self._log.written

    def after_truncate(self) -> None:
        """Forget the last checkpoint, and compute expired dead letters again."""
        self._checkpointed = -1
        self.expire_dead_letters()

    def tasks(self) -> list[PeriodicTask]:
        settings = self._settings
        return [
            PeriodicTask("index keys", 0.2, self.catch_up_key_index),
            PeriodicTask("flush offsets", settings.offset_flush_interval_ms / 1000, self._state.flush_offsets),
            PeriodicTask("flush queues", 0.2, self.flush_queues),
            PeriodicTask("checkpoint", settings.checkpoint_interval_ms / 1000, self.checkpoint),
            PeriodicTask("checkpoint a long tail", 0.2, self.checkpoint_long_tail),
            PeriodicTask("retention", 10.0, self.apply_retention),
            PeriodicTask("expire dead letters", 10.0, self.expire_dead_letters),
            PeriodicTask("watch the disk", 1.0, self.watch_disk),
        ]

    # -- the log ------------------------------------------------------------------------------------------------------

    def watch_disk(self) -> None:
        """Refuse writes before the disk is completely full; accept them again once there is space."""
        ratio = self._disk_ratio(self._path)
        writer = self._writer
        with writer.lock:
            if writer.refusal is not None and not isinstance(writer.refusal, StoreFull):
                return
            if self._queues_full is not None:
                writer.refusal = self._queues_full
            elif ratio > self._settings.disk_refuse_ratio:
                writer.refusal = StoreFull(self._path, f"the disk is {ratio:.0%} full")
            elif ratio <= min(self._settings.disk_force_ratio, self._settings.disk_refuse_ratio):
                writer.refusal = None

    # -- the views ----------------------------------------------------------------------------------------------------

    def flush_queues(self) -> None:
        try:
            with self._writer.lock:
                self._busy |= self._writer.dirty_queues
                self._writer.dirty_queues.clear()
            for queue in list(self._busy):
                if queue.is_dirty:
                    queue.write_out()
                with self._writer.lock:
                    queue.trim_recent()
                    if not queue.has_recent:
                        self._busy.discard(queue)
        except OSError as cause:
            if cause.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # Entries stay in memory, which must not grow without limit: refuse messages until there is space.
            self._queues_full = StoreFull(self._path, "queue files could not be written")
            self.watch_disk()
            raise
        self._queues_full = None

    def catch_up_key_index(self) -> None:
        """Add the keys of all appended records to the key index."""
        with self._writer.lock:
            items = self._writer.key_backlog.take()
        for number, item in enumerate(items):
            try:
                self._index_item(item)
            except OSError:
                with self._writer.lock:
                    self._writer.key_backlog.put_back(items[number:])
                raise

    def _index_item(self, item: BacklogItem) -> None:
        if isinstance(item, KeyedRun):
            rows, hashes = item.keys.hashes()
            self._index.put(hashes, item.places[rows], np.broadcast_to(np.int64(item.store_ms), len(rows)))
            return
        places = np.array(item, np.int64)  # a copy: an array with an exported buffer cannot grow
        while len(places):
            segment = self._log.segment_at(int(places[0]))
            count = len(places) if segment is None else int(np.searchsorted(places, segment.end))
            for at in range(0, count, _RECORDS_AT_ONCE):
                if segment is not None:
                    index_record_keys(
                        self._index, segment, places[at : min(at + _RECORDS_AT_ONCE, count)] - segment.base
                    )
            places = places[count:]

    def checkpoint_long_tail(self) -> None:
        if self._log.written - self._checkpointed > self._settings.checkpoint_bytes:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Make log and views durable, so that the next start replays only later records."""
        if self._log.written == self._checkpointed:
            return
        with self._writer.lock:
            if isinstance(self._writer.refusal, StoreFailed):
                return  # after a failure only recovery can tell what is complete
            end, newest_ms = self._log.written, self._writer.newest_ms
            ends, emptied = self._queues.ends(), self._queues.emptied()
        self._sync_log()
        self.catch_up_key_index()
        self.flush_queues()
        for queue in self._queues:
            queue.sync()
        mark = self._index.mark()
        self._state.snapshot()
        files.save(self._path / files.CHECKPOINT_FILE, Checkpoint(end, ends, mark, emptied))
        times = RocketMQCheckpoint(newest_ms, newest_ms, self._index.last_ms)
        files.save_rocketmq(self._path / files.ROCKETMQ_CHECKPOINT_FILE, times)
        self._checkpointed = end

    # -- retention ----------------------------------------------------------------------------------------------------

    def apply_retention(self) -> None:
        """Delete expired segments if retention is due."""
        ratio = self._disk_ratio(self._path)
        if retention.is_due(self._settings, now_ms=self._now_ms(), disk_ratio=ratio, was_asked=False):
            self.trim()

    def trim(self) -> int:
        """Delete expired segments, and return how many bytes of log were deleted."""
        self.expire_dead_letters()
        first = self._log.first
        keep = retention.keep_from(
            self._ages(),
            self._settings,
            now_ms=self._now_ms(),
            disk_ratio=self._disk_ratio(self._path),
            archived_to=self._archived_to(),
        )
        if keep is None:
            return 0
        # State whose newest update is in those segments is appended again, and must be durable before they go.
        with self._writer.lock, self._writer.allowing_full_disk():
            self._state.rewrite_before(keep, self._emptied_by(keep))
        self._sync_log()
        self.checkpoint()
        with self._writer.lock:
            dropped = self._log.drop_before(keep)
        for segment in dropped:
            segment.delete()
        for queue in self._queues:
            with self._writer.lock:
                queue.advance_first(self._log.first)
            queue.drop_files_before(self._log.first)
        self._index.drop_files_before(self._log.first)
        log.info("expired segments from offset %(from)s to %(to)s are deleted", {"from": first, "to": self._log.first})
        return self._log.first - first

    def expire_dead_letters(self) -> None:
        """Hide dead letters that are too old. Nothing is written: their bytes are deleted with their segment."""
        from_ms = retention.dead_letter_cutoff_ms(self._settings, now_ms=self._now_ms())
        for queue in self._queues.dead_letter_queues():
            offset = search.offset_at(self._log, queue, from_ms, upper=False)
            with self._writer.lock:
                queue.expired_to = offset

    def _emptied_by(self, keep: int) -> list[ConsumeQueue]:
        """Return queues that lose their last message: their ends must be stored as state."""
        return [
            queue
            for queue in self._queues
            if queue.end and (queue.end == queue.first or (queue.physical_offset_at(queue.end - 1) or 0) < keep)
        ]

    def _ages(self) -> list[retention.SegmentAge]:
        """Return the ages of all but the active segment. A segment is at least as old as the first record after it."""
        ages = []
        newest_ms = self._writer.newest_ms
        for segment, following in reversed(list(pairwise(self._log.segments))):
            born_ms = first_store_ms(following) if following.base < self._log.written else None
            newest_ms = newest_ms if born_ms is None else born_ms
            ages.append(retention.SegmentAge(segment.base, segment.end, newest_ms))
        return ages[::-1]
