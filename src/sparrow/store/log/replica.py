"""A log store as a replica: it takes bytes of a leader's log, or leads and shows what enough replicas have.

1. A follower writes no record of its own, not even at a start or a stop: its bytes come from leaders.
2. Readers see what is below the high watermark, which survives a restart.
3. Truncation notes its end durably before it cuts. A start that finds the note cuts again: no old record returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

from sparrow.model.errors import NotLeader, Refused, SparrowError, StoreFailed, StoreFull
from sparrow.store.log.append.raw_append import RawAppends
from sparrow.store.log.maintenance import LogMaintenance
from sparrow.store.log.parts import LogParts
from sparrow.store.log.recovery.truncation import erase_log, truncate_log
from sparrow.store.log.state.updates import EpochUpdate


class LogReplica:
    """The replica's side of an open log store. Its methods may block, and are not called on the event loop."""

    def __init__(
        self, parts: LogParts, maintenance: LogMaintenance, pause_threads: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._parts, self._maintenance, self._pause_threads = parts, maintenance, pause_threads
        self._raw_appends = RawAppends(parts.writer, parts.queues, parts.state)
        self._refusal: SparrowError | None = None
        self._is_cutting = False
        """A truncation has begun, and not ended: what is appended before it is repeated would be cut with it."""
        self.when_committed: Callable[[int], asyncio.Future[None]] | None = None
        """Returns a future that is done once enough replicas have the log up to an offset; None: the disk decides."""

    def when_flushed(self, end: int) -> asyncio.Future[None] | None:
        """Return a future that is done once the log is on disk up to `end`; None if the flush policy does not wait."""
        return None if self._parts.settings.flush == "async" else self._parts.flusher.when_durable(end)

    @property
    def is_following(self) -> bool:
        """Whether the store refuses to append records of its own."""
        return isinstance(self._parts.writer.refusal, NotLeader)

    def follow(self) -> None:
        """Refuse appends of this store's own, and take those of a leader."""
        with self._parts.writer.lock:
            self._parts.writer.refusal = NotLeader(
                "this broker follows the leader of its replica set: send to broker 0"
            )
            self._parts.state.discard_unflushed_offsets()

    def flush_offsets(self) -> None:
        """Write the offsets that groups have committed to the log, so that the next leader has them."""
        self._parts.state.flush_offsets_if_possible()

    def lead(self) -> None:
        """Accept appends of this store's own. An atomic append whose end never arrived is cut off."""
        with self._pause_threads(), self._parts.writer.lock:
            self._truncate(int(self._parts.log.written))
            self._parts.writer.refusal = None
            self._parts.state.name_topics()
        self._maintenance.watch_disk()

    def set_refusal(self, reason: SparrowError | None) -> None:
        """Refuse appends of a leader for this reason, or accept them again; other refusals go first."""
        writer = self._parts.writer
        with writer.lock:
            if writer.refusal is None or writer.refusal is self._refusal:
                writer.refusal = reason
            self._refusal = reason

    def begin_history(self) -> None:
        """Count what a broker without replicas has written as epoch 1, so that followers can copy it."""
        if self.epochs or self._parts.log.written == self._parts.log.first:
            return
        self.lead()
        self._parts.state.reload()  # with RocketMQ's configuration, if it was RocketMQ's directory
        self._parts.state.append([EpochUpdate([(1, int(self._parts.log.first))])])
        self._parts.flusher.sync()
        self.follow()

    @property
    def failure(self) -> StoreFailed | None:
        """Why the store refuses everything until it is opened again; None if it works."""
        refusal = self._parts.writer.refusal
        return refusal if isinstance(refusal, StoreFailed) else None

    @property
    def is_full(self) -> bool:
        """Whether the disk has no space for more: a leader refuses sends, and a follower would."""
        return self._maintenance.is_disk_full or isinstance(self._parts.writer.refusal, StoreFull)

    def complete_end(self, physical_offset: int) -> int:
        """Return the offset, or the begin of the atomic append that it lies in: a start could cut it off there."""
        return self._parts.writer.complete_end(physical_offset)

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """The leader epochs of the log, and where they start, without those whose bytes are deleted."""
        starts = self._parts.state.tables.epochs
        first = self._parts.log.first
        gone = sum(1 for _, following in starts[1:] if following <= first)
        return starts[gone:]

    def start_epoch(self, epoch: int) -> tuple[int, int]:
        """Lead: append the record with which the epoch begins, make it durable, and return its start and end."""
        self.lead()
        # Although sends are refused: only a leader's retention can make space on the disks of the set.
        with self._parts.writer.lock, self._parts.writer.allowing_full_disk():
            start = int(self._parts.log.written)
            end = self._parts.state.append([EpochUpdate([*self.epochs, (epoch, start)])])
        self._parts.flusher.sync()
        return start, end

    def restart_at(self, first: int) -> None:
        """Delete everything, and continue with an empty log at an offset where a segment begins."""
        parts = self._parts
        with self._pause_threads(), parts.writer.lock:
            self._raw_appends.discard_incomplete()
            erase_log(parts, self._maintenance, first)

    @property
    def end(self) -> int:
        """The physical offset of the next byte that `append` takes."""
        return self._raw_appends.end

    def append(self, offset: int, data: bytes | memoryview) -> int:
        """Append bytes of the leader's log, and return where the last whole record ends."""
        if self._is_cutting:
            raise Refused("the log is not cut yet where the leader's differs: cut it again")
        return self._raw_appends.append(offset, data)

    def discard_incomplete(self) -> None:
        """Forget the beginning of a record whose rest has not arrived."""
        self._raw_appends.discard_incomplete()

    def sync(self) -> None:
        """Make everything appended so far durable. After a failed attempt, only a restart helps."""
        if isinstance(self._parts.writer.refusal, StoreFailed):
            raise self._parts.writer.refusal.with_traceback(None)
        self._parts.flusher.sync()

    def commit_to(self, physical_offset: int) -> None:
        """Raise the high watermark: enough replicas have everything below the offset."""
        self._parts.writer.advance_watermark("replicated", physical_offset)

    def truncate(self, end: int) -> None:
        """Truncate the log at the end of a record, and every view with it. If that fails, repeat it.

        An atomic append that would lose its end is removed completely.
        """
        with self._pause_threads(), self._parts.writer.lock:
            self._truncate(end)

    def _truncate(self, end: int) -> None:
        self._raw_appends.discard_incomplete()
        self._is_cutting = True
        truncate_log(self._parts, self._maintenance, end)
        self._is_cutting = False

    def delete_before(self, physical_offset: int) -> None:
        """Delete whole segments below an offset, as the leader has."""
        with self._pause_threads():
            self._maintenance.drop_before(min(physical_offset, self._parts.writer.replicated))
