"""The queue builder: adds entries for records of the log to their consume queues, in bulk, when the log is replayed."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparrow.model.errors import CorruptRecord
from sparrow.model.message import StoredMessage
from sparrow.model.queue import Queue
from sparrow.model.topic import is_legal_name
from sparrow.store.log.commit_log.log_scan import Starts
from sparrow.store.log.consume_queues.consume_queue import ENTRY, FILLER_SIZE, ConsumeQueue
from sparrow.store.log.recovery.incomplete_appends import IncompleteAppends
from sparrow.store.log.state.updates import STATE_QUEUE, StateUpdate, TopicUpdate, decode_updates
from sparrow.wire import columns, record

log = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]
_NAME_MAX = 255
"""Limit of V1 records, and of file systems."""


class _Rows(NamedTuple):
    """Fields of records as columns, a row per record."""

    names: list[str]
    """The distinct topics."""
    starts: Starts
    topic_ids: npt.NDArray[np.int32]
    queue_ids: npt.NDArray[np.int32]
    queue_offsets: Ints
    sys_flags: npt.NDArray[np.int32]
    store_ms: Ints

    @classmethod
    def of(cls, records: columns.LogRecords) -> _Rows:
        names, topic_ids = records.topics()
        queue_ids, queue_offsets = records.field("queue_id"), records.field("queue_offset")
        return cls(
            names,
            records.starts,
            topic_ids,
            queue_ids,
            queue_offsets,
            records.field("sys_flag"),
            records.field("store_ms"),
        )

    def part(self, first: int, stop: int) -> _Rows:
        return _Rows._make((self.names, *(column[first:stop] for column in self[1:])))


class QueueBuilder:
    """Adds records to queues. Adding a record again changes nothing."""

    def __init__(
        self,
        known_queue: Callable[[Queue], ConsumeQueue | None],
        queue_of: Callable[[Queue], ConsumeQueue],
        drop_topic: Callable[[str], None],
        *,
        log_first: int,
        incomplete: IncompleteAppends | None = None,
    ) -> None:
        self._known_queue, self._queue_of, self._drop_topic = known_queue, queue_of, drop_topic
        self._log_first = log_first
        self._incomplete = incomplete or IncompleteAppends()
        self.deleted_at = -1
        """The physical offset of the last update that deletes a topic; -1 if there is none."""
        self.refused: list[int] = []
        """Physical offsets of records whose queue or queue offset is impossible."""

    def add(self, records: columns.LogRecords, base: int) -> None:
        """Add sound records. `base`: the physical offset of the first byte of their buffer."""
        rows, view, starts = _Rows.of(records), records.view, records.starts
        entries = np.empty(len(starts), columns.QUEUE_ENTRY_DTYPE)
        entries["physical_offset"] = starts + base
        entries["size"], entries["tags_code"] = records.sizes, records.tags_codes()
        done = 0
        if STATE_QUEUE.topic in rows.names:
            # The log contains deletions of topics: entries added before a deletion go, later ones stay.
            for row in np.flatnonzero(rows.topic_ids == rows.names.index(STATE_QUEUE.topic)).tolist():
                for update in read_state_updates(view, int(starts[row])):
                    self._incomplete.observe(update, base + int(starts[row]))
                    if isinstance(update, TopicUpdate) and update.topic is None:
                        self._file_rows(rows.part(done, row + 1), entries[done : row + 1])
                        done = row + 1
                        self._drop_topic(update.name)
                        self.deleted_at = base + int(starts[row])
        self._file_rows(rows.part(done, len(starts)), entries[done:])

    def _file_rows(self, rows: _Rows, entries: npt.NDArray[np.void]) -> None:
        if len(rows.starts) == 0:
            return
        key = (rows.topic_ids.astype(np.int64) << 32) | (rows.queue_ids.astype(np.int64) & 0xFFFFFFFF)
        order = np.argsort(key, kind="stable")
        order = order[rows.sys_flags[order] & record.HIDDEN_FLAG == 0]
        if len(order) == 0:
            return
        for of_queue in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
            topic, queue_id = rows.names[rows.topic_ids[of_queue[0]]], int(rows.queue_ids[of_queue[0]])
            if queue_id < 0 or not is_legal_name(topic) or len(topic) > _NAME_MAX:
                self.refused += entries["physical_offset"][of_queue].tolist()
                continue
            queue = Queue(topic, queue_id)
            self._extend(queue, rows.queue_offsets[of_queue], entries[of_queue], rows.store_ms[of_queue])

    def _extend(self, name: Queue, offsets: Ints, entries: npt.NDArray[np.void], store_ms: Ints) -> None:
        known = self._known_queue(name)
        end = int(known.end) if known is not None else 0
        is_next = int(offsets[0]) == end and bool((np.diff(offsets) == 1).all())
        reach = self._reach(known)
        if not is_next:
            # Some were added already, some are missing, or some have impossible offsets.
            is_new = entries["physical_offset"] >= reach
            is_likely = is_new & (offsets >= end)
            is_likely[is_likely] = _ascending(offsets[is_likely])
            if end == 0 and self._log_first and is_likely.any():
                end = int(offsets[is_likely][0])  # retention has deleted the messages before
            # At most as many records are missing as fit between the queue's last record and this one.
            is_likely &= offsets - end <= (entries["physical_offset"] - reach) // record.RECORD_BYTES_MIN
            self.refused += entries["physical_offset"][is_new & ~is_likely].tolist()
            offsets, entries, store_ms = offsets[is_likely], entries[is_likely], store_ms[is_likely]
            if len(offsets) == 0:
                return
        queue = self._queue_of(name)
        if queue.delay_ms is not None:
            entries["tags_code"] = store_ms + queue.delay_ms
        if int(queue.end) < end:
            queue.start_at(end)
        if not is_next:
            entries = _with_fillers(entries, offsets - end)
        queue.extend(entries.tobytes())

    def _reach(self, queue: ConsumeQueue | None) -> int:
        """Return where the queue's last record ends. Records before it were added, or their topic was deleted."""
        raw = queue.entries(queue.end - 1, 1) if queue is not None and queue.end > queue.first else b""
        if not raw:
            return self._log_first
        at, size, _ = ENTRY.unpack(raw)
        return int(at) if size == FILLER_SIZE else int(at) + int(size)


def _ascending(offsets: Ints) -> npt.NDArray[np.bool_]:
    """Return the longest ascending subsequence of offsets (patience sorting); the others must be wrong."""
    ends: list[int] = []  # ends[n]: the smallest offset that a run of n + 1 can end with
    rows: list[int] = []  # which row that is
    before = np.full(len(offsets), -1, np.int64)
    for row, offset in enumerate(offsets.tolist()):
        length = bisect_left(ends, offset)
        if length == len(ends):
            ends.append(offset)
            rows.append(row)
        else:
            ends[length], rows[length] = offset, row
        before[row] = rows[length - 1] if length else -1
    can_stand = np.zeros(len(offsets), np.bool_)
    row = rows[-1] if rows else -1
    while row >= 0:
        can_stand[row] = True
        row = int(before[row])
    return can_stand


def _with_fillers(entries: npt.NDArray[np.void], places: Ints) -> npt.NDArray[np.void]:
    """Return the entries at these places, with fillers in the gaps; a filler points to the entry after it."""
    following = np.searchsorted(places, np.arange(int(places[-1]) + 1))
    filled = entries[following].copy()
    is_filler = places[following] != np.arange(len(filled))
    filled["size"][is_filler], filled["tags_code"][is_filler] = FILLER_SIZE, 0
    return filled


def read_state_updates(view: memoryview, at: int) -> list[StateUpdate]:
    """Decode the updates of the sound state record at a position of a segment."""
    return _decode_updates(record.decode(view, at, expand=False))


def _decode_updates(message: StoredMessage) -> list[StateUpdate]:
    try:
        return decode_updates(message.body, message.physical_offset)
    except CorruptRecord as cause:
        log.error("a state record cannot be read and is skipped: %(error)s", {"error": cause})
        return []
