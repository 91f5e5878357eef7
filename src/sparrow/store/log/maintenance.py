"""Maintenance of a log store: checkpoints, retention, queue files, key index and disk checks, as periodic tasks."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from sparrow.clock import ClockGuard
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import NotLeader, StoreFailed, StoreFull
from sparrow.store.log import retention, search
from sparrow.store.log.commit_log.mapped_pages import sync_directory
from sparrow.store.log.consume_queues.consume_queue import ConsumeQueue
from sparrow.store.log.key_index.key_backlog import BacklogItem, KeyedRun
from sparrow.store.log.parts import LogParts
from sparrow.store.log.periodic_tasks import PeriodicTask
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.recovery.checkpoint import Checkpoint, HighWatermark, RocketMQCheckpoint
from sparrow.store.log.recovery.recovery import first_store_ms
from sparrow.wire import columns

log = logging.getLogger(__name__)

INDEX_KEYS = "index keys"
_RECORDS_AT_ONCE = 8192
_MANY_KEYS = 4096


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
        steady_ms: Callable[[], int],
        archived_to: Callable[[], int | None],
        disk_ratio: Callable[[Path], float],
    ) -> None:
        self._path, self._settings, self._sync_log = parts.path, parts.settings, parts.flusher.sync
        self._log, self._queues, self._index = parts.log, parts.queues, parts.index
        self._state, self._writer, self._is_replica = parts.state, parts.writer, parts.is_replica
        self._now_ms, self._archived_to, self._disk_ratio = now_ms, archived_to, disk_ratio
        self._clock_guard, self._doubts = ClockGuard(now_ms, steady_ms, parts.writer.newest_ms), LogIntervals()
        self._checkpointed = -1
        self._rewritten: tuple[int, int] | None = None
        """Where retention lets the log start, and the end of the state that it has appended again for that."""
        self._busy: set[ConsumeQueue] = set()
        """Queues with entries in memory."""
        self._queues_full: StoreFull | None = None
        self.is_disk_full = False
        """Whether the disk is fuller than sends are accepted at, as of the last look; also while others are the reason
        for a refusal."""
        self._saved_high_watermark = -1
        # Before the first read: dead letters that had expired before must not become visible again.
        self.expire_dead_letters()

    def trust_checkpoint(self) -> None:
        """Keep the checkpoint of the last stop, because opening the store changed nothing."""
        self._checkpointed = self._log.written

    def after_truncate(self) -> None:
        """Forget the last checkpoint, and compute expired dead letters again."""
        self._checkpointed = -1
        self._rewritten = None
        self.expire_dead_letters()

    def tasks(self) -> list[PeriodicTask]:
        settings = self._settings
        return [
            # The first ones cost a millisecond, however few they are: the event loop waits for the interpreter.
            PeriodicTask(INDEX_KEYS, 1.0, self.catch_up_key_index),
            PeriodicTask("index many keys", 0.2, self.index_many_keys),
            PeriodicTask(
                "flush offsets", settings.offset_flush_interval_ms / 1000, self._state.flush_offsets_if_possible
            ),
            PeriodicTask("flush queues", 1.0, self.flush_queues),
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
        accepted_at = min(self._settings.disk_force_ratio, self._settings.disk_refuse_ratio)
        self.is_disk_full = ratio > (accepted_at if self.is_disk_full else self._settings.disk_refuse_ratio)
        with writer.lock:
            if writer.refusal is not None and not isinstance(writer.refusal, StoreFull):
                return
            if self._queues_full is not None:
                writer.refusal = self._queues_full
            elif ratio > self._settings.disk_refuse_ratio:
                writer.refusal = StoreFull(self._path, f"the disk is {ratio:.0%} full")
            elif ratio <= accepted_at:
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

    def index_many_keys(self) -> None:
        """Add keys to the key index if many wait, so that no run takes long."""
        if self._writer.key_backlog.count >= _MANY_KEYS:
            self.catch_up_key_index()

    def _index_item(self, item: BacklogItem) -> None:
        if isinstance(item, KeyedRun):
            rows, hashes = item.keys.hashes()
            store_ms = np.broadcast_to(np.asarray(item.store_ms, np.int64), len(item.places))
            self._index.put(hashes, item.places[rows], store_ms[rows])
            return
        places = np.array(item, np.int64)  # a copy: an array with an exported buffer cannot grow
        while len(places):
            segment = self._log.segment_at(int(places[0]))
            count = len(places) if segment is None else int(np.searchsorted(places, segment.end))
            for at in range(0, count, _RECORDS_AT_ONCE):
                if segment is not None:
                    starts = places[at : min(at + _RECORDS_AT_ONCE, count)] - segment.base
                    self._index.put_keys(columns.LogRecords.locate(segment.view, starts), segment.base)
            places = places[count:]

    def checkpoint_long_tail(self) -> None:
        if self._log.written - self._checkpointed > self._settings.checkpoint_bytes:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Make log and views durable, so that the next start replays only later records."""
        if self._is_replica:
            self._save_high_watermark()
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
        self._queues.sync()
        mark = self._index.mark()
        self._state.snapshot()
        files.save(self._path / files.CHECKPOINT_FILE, Checkpoint(end, ends, mark, emptied))
        times = RocketMQCheckpoint(newest_ms, newest_ms, self._index.last_ms)
        files.save_rocketmq(self._path / files.ROCKETMQ_CHECKPOINT_FILE, times)
        self._checkpointed = end

    def _save_high_watermark(self) -> None:
        reached = self._writer.replicated
        if reached != self._saved_high_watermark:
            files.save(self._path / files.HIGH_WATERMARK_FILE, HighWatermark(reached))
            self._saved_high_watermark = reached

    # -- retention ----------------------------------------------------------------------------------------------------

    def apply_retention(self) -> None:
        """Delete expired segments if retention is due. A follower deletes what its leader has deleted."""
        if isinstance(self._writer.refusal, NotLeader):
            return
        ratio = self._disk_ratio(self._path)
        self._expiry_ms()  # jumps of the clock are noticed in time only if it is read often
        if retention.is_due(self._settings, now_ms=self._now_ms(), disk_ratio=ratio, was_asked=False):
            self.trim()

    def trim(self) -> int:
        """Delete expired segments, and return how many bytes of log were deleted."""
        self.expire_dead_letters()
        keep = retention.keep_from(
            self._ages(),
            self._settings,
            now_ms=self._expiry_ms(),
            disk_ratio=self._disk_ratio(self._path),
            archived_to=self._archived_to(),
        )
        if keep is None:
            return 0
        # State whose newest update is in those segments is appended again, and must be durable before they go.
        with self._writer.lock, self._writer.allowing_full_disk():
            if self._rewritten is None or self._rewritten[0] < keep:
                self._state.rewrite_before(keep, self._emptied_by(keep))
                self._rewritten = (keep, self._log.written)
            keep, rewritten_to = self._rewritten
        self._sync_log()
        if self._is_replica and self._writer.replicated < rewritten_to:
            return 0  # a later run deletes: state that another leader could cut off must not be the only copy
        self._rewritten = None
        return self.drop_before(keep)

    def drop_before(self, keep: int) -> int:
        """Delete the segments below an offset, and return how many bytes these were."""
        first = self._log.first
        self.checkpoint()
        with self._writer.lock:
            dropped = self._log.drop_before(keep)
        for segment in dropped:
            segment.delete()
        sync_directory(self._log.directory)
        for queue in self._queues:
            with self._writer.lock:
                queue.advance_first(self._log.first)
            queue.drop_files_before(self._log.first)
        self._index.drop_files_before(self._log.first)
        log.info("expired segments from offset %(from)s to %(to)s are deleted", {"from": first, "to": self._log.first})
        return self._log.first - first

    def expire_dead_letters(self) -> None:
        """Hide dead letters that are too old. Nothing is written: their bytes are deleted with their segment."""
        from_ms = retention.dead_letter_cutoff_ms(self._settings, now_ms=self._expiry_ms())
        for queue in self._queues.dead_letter_queues():
            offset = search.offset_at(self._log, queue, from_ms, upper=False)
            with self._writer.lock:
                queue.expired_to = offset

    def _expiry_ms(self) -> int:
        """Return the time by which messages expire, and say so if that is not what the wall clock says."""
        believed_ms = self._clock_guard.believed_ms()
        doubt = self._clock_guard.doubt
        if doubt is None:
            self._doubts.end("clock")
        elif self._doubts.is_due("clock"):
            log.warning("%(doubt)s", {"doubt": doubt})
        return believed_ms

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
