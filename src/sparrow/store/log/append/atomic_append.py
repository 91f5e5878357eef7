"""Groups: records for any number of queues that are appended together, all of them or none.

    begun | records, in any number of segments | the ledger's word

1. All of it is laid down under the writer's lock: no other record stands in between, and no checkpoint falls inside.
2. Whatever can be refused is refused before the first word. What fails later fails the store, and the next start cuts.
3. Queues show nothing of a group before its last word is as safe as messages must be.
4. A log that is read again ends where a group begins whose end is missing. A checkpoint is never inside a group, so one
   that began before it is known to have been whole: damage there costs what is damaged, as anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparrow.model.errors import SparrowError
from sparrow.store.log.append.encoded_runs import EncodedRun, plan_pieces
from sparrow.store.log.append.writer import LogWriter
from sparrow.store.log.commit_log.commit_log import BLANK_RECORD_BYTES
from sparrow.store.log.consume_queues.consume_queue import ConsumeQueue
from sparrow.store.log.state.state_store import StateStore
from sparrow.store.log.state.updates import AtomicAppendBegin, LedgerUpdate

_FARTHEST = 1 << 62


class AtomicAppends:
    """Appends groups."""

    def __init__(self, writer: LogWriter, memory: StateStore, failed: Callable[[Exception], SparrowError]) -> None:
        """`failed` is told what went wrong amid a group, and makes sure that nothing is appended behind it."""
        self._writer, self._state, self._failed = writer, memory, failed

    def append(self, scope: str, number: int, runs: Sequence[EncodedRun]) -> int | None:
        """The offset behind the group; None, and nothing appended, if the scope has got there before."""
        writer = self._writer
        writer.log.warm(sum(len(run.data) for run in runs))
        with writer.lock:
            if self._state.ledger_covers(scope, number):
                return None
            for run in runs:
                writer.check_may_append(run.queue)
            begun = AtomicAppendBegin(scope, number)
            end_room = self._state.encoded_bytes(LedgerUpdate(scope, number, _FARTHEST, _FARTHEST))
            if not runs:
                return self._state.append([LedgerUpdate(scope, number, writer.store_ms())])
            segment_room = writer.log.segment_bytes - BLANK_RECORD_BYTES
            room, segments = _taken(self._state.encoded_bytes(begun), writer.log.free_bytes(), segment_room)
            pieces, more_segments, room = plan_pieces(runs, room, segment_room)
            _, last_segments = _taken(end_room, room, segment_room)
            writer.log.reserve(segments + more_segments + last_segments)
            try:
                with writer.hidden_appends():
                    begun_at = self._state.append_one(begun)
                    offsets = {run.queue: int(run.queue.end) for run in runs}
                    # Each queue is extended once: a hundred times, it would be moved about in memory as often.
                    entries: dict[ConsumeQueue, list[memoryview]] = {queue: [] for queue in offsets}
                    for piece in pieces:
                        queue = piece.run.queue
                        _, laid, store_ms = writer.write_piece(piece, offsets[queue])
                        offsets[queue] += piece.stop - piece.first
                        entries[queue].append(laid)
                    for queue, of_queue in entries.items():
                        queue.extend(b"".join(of_queue))
                    self._state.append_one(LedgerUpdate(scope, number, store_ms, begun_at))
            except Exception as cause:
                raise self._failed(cause) from cause
            end = int(writer.log.written)
            for queue in entries:
                writer.publish_growth(queue, end)
            return end


def _taken(size: int, room: int, segment_room: int) -> tuple[int, int]:
    """What is left of the room behind a record, and how many new segments it needs."""
    return (room - size, 0) if size <= room else (segment_room - size, 1)
