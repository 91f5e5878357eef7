"""The chores of a log store: what its keeper does off the event loop, one at a time."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from sparrow.model.errors import StoreFailed, StoreFull
from sparrow.settings import LogSettings
from sparrow.store.log import retention, search
from sparrow.store.log.append.writer import LogWriter
from sparrow.store.log.commit_log.commit_log import CommitLog
from sparrow.store.log.consume_queues.consume_queue import ConsumeQueue
from sparrow.store.log.consume_queues.queue_table import ConsumeQueueTable
from sparrow.store.log.key_index.key_backlog import BacklogItem, KeyedRun
from sparrow.store.log.key_index.key_index import KeyIndex
from sparrow.store.log.periodic_tasks import PeriodicTask
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.recovery.checkpoint import Checkpoint, RocketMQCheckpoint
from sparrow.store.log.recovery.recovery import first_store_ms, index_record_keys
from sparrow.store.log.state.state_store import StateStore

log = logging.getLogger(__name__)

_RECORDS_AT_ONCE = 8192


def disk_ratio(path: Path) -> float:
    """How full the disk is, of what an ordinary user may fill."""
    usage = shutil.disk_usage(path)
    return usage.used / (usage.used + usage.free)


class LogMaintenance:
    """Holds the parts a chore needs. Every method may take its time; none is called on the event loop."""

    def __init__(
        self,
        path: Path,
        settings: LogSettings,
        *,
        commit_log: CommitLog,
        queues: ConsumeQueueTable,
        index: KeyIndex,
        memory: StateStore,
        writer: LogWriter,
        sync_log: Callable[[], None],
        now_ms: Callable[[], int],
        archived_to: Callable[[], int | None],
        disk_ratio: Callable[[Path], float],
    ) -> None:
        self._path, self._settings = path, settings
        self._log, self._queues, self._index, self._state, self._writer = commit_log, queues, index, memory, writer
        self._sync_log = sync_log
        self._now_ms, self._archived_to, self._disk_ratio = now_ms, archived_to, disk_ratio
        self._checkpointed = -1
        self._busy: set[ConsumeQueue] = set()
        """Queues that hold entries in memory."""
        self._queues_full: StoreFull | None = None
        # Before anybody reads: what had expired when the store was closed does not come back for a moment.
        self.expire_dead_letters()

    def trust_checkpoint(self) -> None:
        """Opening the store changed nothing: the checkpoint of its last stop still tells the truth."""
        self._checkpointed = self._log.written

    def after_truncate(self) -> None:
        """The log was cut: what was known of the disk no longer holds."""
        self._checkpointed = -1
        self.expire_dead_letters()

    def tasks(self) -> list[PeriodicTask]:
        settings = self._settings
        return [
            PeriodicTask("file keys", 0.2, self.catch_up_key_index),
            PeriodicTask("say offsets", settings.offset_flush_interval_ms / 1000, self._state.flush_offsets),
            PeriodicTask("write queues out", 0.2, self.flush_queues),
            PeriodicTask("checkpoint", settings.checkpoint_interval_ms / 1000, self.checkpoint),
            PeriodicTask("checkpoint a long tail", 0.2, self.checkpoint_long_tail),
            PeriodicTask("retention", 10.0, self.apply_retention),
            PeriodicTask("expire dead letters", 10.0, self.expire_dead_letters),
            PeriodicTask("watch the disk", 1.0, self.watch_disk),
        ]

    # -- the log ------------------------------------------------------------------------------------------------------

    def watch_disk(self) -> None:
        """Refuse writes before the disk is full to the brim; take them again once there is room."""
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
            # Entries stay in memory, which must not grow without end: no new messages until there is room.
            self._queues_full = StoreFull(self._path, "queue files could not be written")
            self.watch_disk()
            raise
        self._queues_full = None

    def catch_up_key_index(self) -> None:
        """Let the key index catch up with the log."""
        with self._writer.lock:
            portions = self._writer.key_backlog.take()
        for number, part in enumerate(portions):
            try:
                self._file_portion(part)
            except OSError:
                with self._writer.lock:
                    self._writer.key_backlog.put_back(portions[number:])
                raise

    def _file_portion(self, part: BacklogItem) -> None:
        if isinstance(part, KeyedRun):
            rows, hashes = part.keys.hashes()
            self._index.put(hashes, part.places[rows], np.broadcast_to(np.int64(part.store_ms), len(rows)))
            return
        places = np.array(part, np.int64)  # a copy: an array that is looked into cannot grow, and this one may have to
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
        """Make log and views durable up to here, so that the next start reads only what comes after."""
        if self._log.written == self._checkpointed:
            return
        with self._writer.lock:
            if isinstance(self._writer.refusal, StoreFailed):
                return  # only the next start can say what is whole
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
        """Delete old segments if it is time to."""
        ratio = self._disk_ratio(self._path)
        if retention.is_due(self._settings, now_ms=self._now_ms(), disk_ratio=ratio, was_asked=False):
            self.trim()

    def trim(self) -> int:
        """Delete what is older than it need be; how many bytes went."""
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
        # State whose newest word goes with those segments is said again first, and must be safe before they go.
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
        log.info("old segments deleted", extra={"from": first, "to": self._log.first})
        return self._log.first - first

    def expire_dead_letters(self) -> None:
        """Their queues begin behind those that are too old. Nothing is written down: the log and the clock say it all,
        and their bytes go with the segment they lie in, as everybody's do."""
        from_ms = retention.dead_letter_cutoff_ms(self._settings, now_ms=self._now_ms())
        for queue in self._queues.dead_letter_queues():
            offset = search.offset_at(self._log, queue, from_ms, upper=False)
            with self._writer.lock:
                queue.expired_to = offset

    def _emptied_by(self, keep: int) -> list[ConsumeQueue]:
        """Queues of which nothing will be left: their ends would be forgotten with their last message."""
        return [
            queue
            for queue in self._queues
            if queue.end and (queue.end == queue.first or (queue.physical_offset_at(queue.end - 1) or 0) < keep)
        ]

    def _ages(self) -> list[retention.SegmentAge]:
        """Of the segments behind the active one. A segment is no younger than the first record after it."""
        ages = []
        newest_ms = self._writer.newest_ms
        for segment, following in reversed(list(pairwise(self._log.segments))):
            born_ms = first_store_ms(following) if following.base < self._log.written else None
            newest_ms = newest_ms if born_ms is None else born_ms
            ages.append(retention.SegmentAge(segment.base, segment.end, newest_ms))
        return ages[::-1]
