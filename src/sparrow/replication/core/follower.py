"""The follower: fetches what its leader has, and cuts what its leader does not have.

1. It takes bytes only at its own end, from the leader and epoch that it follows. A record whose rest has not
   arrived waits in memory, and is not acknowledged.
2. It cuts only what is not committed, and only where leader and follower diverge by epochs. A divergence below its own
   high watermark is an alarm: it stops. An answer that is about another end than its present one is ignored.
3. A replica that must start again gets a new incarnation first: its old one promised bytes that are gone.
4. An atomic append whose end has not arrived is not acknowledged, and not committed here: a start would cut it off.
5. It fetches on while a chunk is written, so that a copy is as fast as the slower of network and disk. At most one
   answer waits for the disk.
"""

from __future__ import annotations

from collections.abc import Callable

from sparrow.replication.core.fetch import Chunk, Diverged, Fetch, FetchAnswer, Rejected, SafeEnd
from sparrow.replication.core.log_position import LogPosition
from sparrow.replication.core.options import ReplicaOptions
from sparrow.replication.core.output import Output

RETRY_MS = 20
"""A fetch that failed is repeated after so long."""
REWRITE_MS = 500
"""Bytes that could not be written are fetched again after so long."""


class Follower:
    """The state of one replica that follows one leader in one epoch."""

    def __init__(
        self,
        options: ReplicaOptions,
        incarnation: str,
        log: LogPosition,
        leader_id: int,
        epoch: int,
        *,
        loss_is_accepted: bool = False,
        must_copy: bool = False,
    ) -> None:
        """Follow a leader, from the end of the last whole record on.

        `must_copy`: the log is damaged, and everything is fetched again.
        """
        self._options, self.incarnation, self.log = options, incarnation, log
        self.leader_id, self.epoch = leader_id, epoch
        self.received = log.end
        """Where the received bytes end; those behind the end of the log are the beginning of a record."""
        log.epochs.truncate(log.end)
        self._committed = log.high_watermark
        """What the leader has said to be committed; the log may not reach so far yet."""
        self._loss_is_accepted = loss_is_accepted
        self._must_copy = must_copy
        self._leader_first = self._leader_mark = 0
        """Where the leader's log starts, and its high watermark, as of its last answer."""
        self._complete_end = log.end
        """The end, or the begin of an atomic append whose end has not arrived."""
        self._asked_ms: int | None = None
        """When the fetch was sent that is not answered yet."""
        self._retry_ms = 0
        """No fetch before this time: the last one failed, or its bytes could not be written."""

    def tick(self, now_ms: int, output: Output) -> None:
        """Fetch, unless an answer is still awaited."""
        if now_ms >= self.due_ms():
            self._fetch(now_ms, output)

    def due_ms(self) -> int:
        """Return when the next fetch is due, if nothing happens before."""
        if self._asked_ms is None:
            return self._retry_ms
        return self._asked_ms + self._options.fetch_wait_ms + self._options.fetch_timeout_ms

    def _fetch(self, now_ms: int, output: Output) -> None:
        output.fetch = (self.leader_id, self._make_fetch(now_ms))

    def _make_fetch(self, now_ms: int) -> Fetch:
        self._asked_ms = now_ms
        log, (offset, last_epoch) = self.log, self._end()
        return Fetch(
            set_id=self._options.set_id,
            replica_id=self._options.replica_id,
            incarnation=self.incarnation,
            epoch=self.epoch,
            offset=offset,
            last_epoch=last_epoch,
            safe_end=-1 if self._must_copy else log.safe_end,
            high_watermark=log.high_watermark,
            bytes_max=self._options.fetch_bytes_max,
            wait_ms=self._options.fetch_wait_ms,
        )

    def _end(self) -> tuple[int, int]:
        """Return where the received bytes end, and the epoch before that."""
        if self._must_copy:  # no log starts below 0: the leader answers where its own starts, and the copy begins
            return -1, 0
        return self.received, self.log.epochs.epoch_before(self.received)

    def continue_at(self, offset: int, now_ms: int, output: Output) -> None:
        """Fetch from another offset: the log is longer than was known."""
        self.received = self._complete_end = offset
        self._fetch(now_ms, output)

    def failed(self, now_ms: int) -> None:
        """Fetch again in a moment: the connection is lost, or the leader rejected the fetch."""
        self._asked_ms, self._retry_ms = None, now_ms + RETRY_MS

    def answered(self, answer: FetchAnswer, now_ms: int, make_incarnation: Callable[[], str], output: Output) -> None:
        """Apply an answer of the leader, and fetch on; after a chunk once it is `stored`."""
        if answer.epoch != self.epoch:
            return
        if isinstance(answer, Chunk):
            if not self.accepts(answer):
                return
            self._committed = max(self._committed, answer.high_watermark)
            self._leader_first, self._leader_mark = answer.first, answer.high_watermark
            if answer.length:
                self._append(answer, now_ms, output)
                return
            self._apply_marks(output)
        elif isinstance(answer, Rejected):
            self.failed(now_ms)
            return
        elif (answer.offset, answer.last_epoch) != self._end():
            return  # late, or for the second time: it is about bytes that were cut since
        elif isinstance(answer, Diverged):
            end = min(truncation_point(self.log, answer), self.log.end)
            if end < self.log.high_watermark and not self._loss_is_accepted:
                output.alarm = (
                    f"replica {self._options.replica_id} has committed bytes up to {self.log.high_watermark}, and the "
                    f"leader of epoch {self.epoch} has other bytes from {end} on"
                )
                return
            if end < self.log.end:
                self.log.high_watermark = min(self.log.high_watermark, end)
                output.truncate_to = end
            self.log.truncate(end)
            self.received = self._complete_end = end
        else:
            self.incarnation = make_incarnation()
            self.log.restart_at(answer.first)
            self.received = self._committed = self._complete_end = answer.first
            self._must_copy = False
            output.restart_at = answer.first
        self._fetch(now_ms, output)

    def accepts(self, chunk: Chunk) -> bool:
        """Return whether the bytes continue this log; an answer that comes late or twice does not."""
        return chunk.offset == self.received

    def _append(self, chunk: Chunk, now_ms: int, output: Output) -> None:
        if chunk.chunk_epoch != self.log.epochs.epoch_before(self.received):
            self.log.epochs.begin(chunk.chunk_epoch, chunk.offset)
        self.received += chunk.length
        self._asked_ms = None
        output.append = chunk
        if self.received < chunk.end:
            output.fetch_ahead = (self.leader_id, self._make_fetch(now_ms))

    def stored(self, end: int, safe_end: int, complete_end: int, now_ms: int, output: Output) -> None:
        """Note where the last whole record and the last whole group end, and how much of it is safe."""
        assert self.log.end <= end <= self.received
        self.log.end, self.log.safe_end = end, max(self.log.safe_end, safe_end)
        self._complete_end = complete_end
        self._apply_marks(output)
        if self._asked_ms is None:
            self._fetch(now_ms, output)
        else:
            self._acknowledge(output)

    def not_stored(self, end: int, now_ms: int) -> None:
        """Note that a chunk could not be written behind `end`: fetch it again, after a pause."""
        self.log.epochs.truncate(end)
        self.received = self.log.end = end
        self._asked_ms, self._retry_ms = None, now_ms + REWRITE_MS

    def _apply_marks(self, output: Output) -> None:
        if self.log.commit_to(min(self._committed, self._complete_end)):
            output.committed = self.log.high_watermark
        # Before it deleted them, the leader has written state again that only those bytes had, and that is below
        # its high watermark: until it is below the own one, too, the old bytes are needed.
        if self.log.high_watermark >= self._leader_mark and self.log.delete_before(self._leader_first):
            output.delete_before = self.log.first

    def flushed(self, safe_end: int, output: Output) -> None:
        """Acknowledge a finished flush at once, without waiting for the next fetch."""
        if safe_end <= self.log.safe_end or safe_end > self.log.end:
            return
        self.log.safe_end = safe_end
        self._acknowledge(output)

    def _acknowledge(self, output: Output) -> None:
        output.acknowledge = (
            self.leader_id,
            SafeEnd(
                set_id=self._options.set_id,
                replica_id=self._options.replica_id,
                incarnation=self.incarnation,
                epoch=self.epoch,
                safe_end=self.log.safe_end,
            ),
        )


def truncation_point(log: LogPosition, diverged: Diverged) -> int:
    """Return where to cut a log: at the end of the newest epoch that both logs may have in common."""
    local = log.epochs.largest_up_to(diverged.common_epoch)
    if local == 0:
        return log.first
    local_end = log.epochs.end_of(local, log.end)
    return min(local_end, diverged.common_end) if local == diverged.common_epoch else local_end
