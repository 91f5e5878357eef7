"""Atomic appends: records for any number of queues that are appended all together or not at all.

    begin record | records, in any number of segments | ledger record

1. All of it is written under the writer's lock: no other record lies in between, and no checkpoint is made inside.
2. Everything that can be refused is refused before the begin record is written. A later failure fails the store, and
   the next start truncates the log.
3. Readers see none of the records before the ledger record is as safe as `visible_after` says.
4. Recovery truncates the log at a begin record without its ledger record. A checkpoint is never inside an atomic
   append, so one that began before the checkpoint was complete: damage in it costs the damaged records only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparrow.model.errors import SparrowError
from sparrow.model.queue import Queue
from sparrow.store.log.append.encoded_runs import EncodedRun, check_body_sizes, plan_pieces
from sparrow.store.log.append.writer import LogWriter
from sparrow.store.log.commit_log.commit_log import BLANK_RECORD_BYTES
from sparrow.store.log.consume_queues.consume_queue import ConsumeQueue
from sparrow.store.log.state.state_store import StateStore
from sparrow.store.log.state.updates import AtomicAppendBegin, LedgerUpdate
from sparrow.wire.queue_batches import QueueBatch

_OFFSET_MAX = 1 << 62


class AtomicAppends:
    """Checks and writes atomic appends."""

    def __init__(
        self,
        writer: LogWriter,
        state: StateStore,
        appendable: Callable[[Queue], ConsumeQueue],
        failed: Callable[[Exception], SparrowError],
    ) -> None:
        """`failed` is called when an append breaks off in the middle; it must make the store refuse later appends."""
        self._writer, self._state, self._appendable, self._failed = writer, state, appendable, failed

    def parse(self, batches: Sequence[QueueBatch], *, verify_crc: bool, keys_bytes_max: int) -> list[EncodedRun]:
        """Check records before the lock is taken. Keys beyond `keys_bytes_max` are read from the log later."""
        runs: list[EncodedRun] = []
        keys_bytes = 0
        for queue, data, sizes in batches:
            if len(sizes) == 0 and len(data) == 0:
                continue
            run = self._writer.parse_run(
                self._appendable(queue),
                memoryview(data).cast("B"),
                sizes,
                verify_crc=verify_crc,
                keeps_keys=keys_bytes <= keys_bytes_max,
            )
            check_body_sizes(run, self._writer.message_bytes_max)
            keys_bytes += run.keys.held_bytes if run.keys is not None else 0
            runs.append(run)
        return runs

    def append(self, scope: str, number: int, runs: Sequence[EncodedRun]) -> int | None:
        """Append runs and return the end of the log; None, without appending, if the ledger has the number already."""
        writer = self._writer
        writer.log.warm(sum(len(run.data) for run in runs))
        with writer.lock:
            if self._state.ledger_covers(scope, number):
                return None
            for run in runs:
                writer.check_may_append(run.queue)
            self._state.ensure_key()
            begin = AtomicAppendBegin(scope, number)
            end_bytes = self._state.encoded_bytes(LedgerUpdate(scope, number, _OFFSET_MAX, _OFFSET_MAX))
            if not runs:
                return self._state.append([LedgerUpdate(scope, number, writer.store_ms())])
            segment_free = writer.log.segment_bytes - BLANK_RECORD_BYTES
            free, segments = _fit(self._state.encoded_bytes(begin), writer.log.free_bytes(), segment_free)
            pieces, more_segments, free = plan_pieces(runs, free, segment_free)
            free, last_segments = _fit(end_bytes, free, segment_free)
            writer.log.reserve(segments + more_segments + last_segments, free)
            try:
                with writer.hidden_appends():
                    begin_at = self._state.append_one(begin)
                    offsets = {run.queue: int(run.queue.end) for run in runs}
                    # Extend each queue once: every extension may move the queue's entries in memory.
                    entries: dict[ConsumeQueue, list[memoryview]] = {queue: [] for queue in offsets}
                    for piece in pieces:
                        queue = piece.run.queue
                        _, new_entries, store_ms = writer.write_piece(piece, offsets[queue])
                        offsets[queue] += piece.stop - piece.first
                        entries[queue].append(new_entries)
                    for queue, queue_entries in entries.items():
                        queue.extend(b"".join(queue_entries))
                    self._state.append_one(LedgerUpdate(scope, number, store_ms, begin_at))
            except Exception as cause:
                raise self._failed(cause) from cause
            end = int(writer.log.written)
            for queue in entries:
                writer.publish_growth(queue, end)
            return end


def _fit(size: int, free: int, segment_free: int) -> tuple[int, int]:
    """Return the bytes left free after a record, and how many new segments it needs."""
    return (free - size, 0) if size <= free else (segment_free - size, 1)
