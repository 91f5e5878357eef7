"""Read-only access to a store directory, Sparrow's or Apache RocketMQ's: no lock, no write, no broker needed.

A broker may have the directory open and continue to write. An object shows the files as of its creation, or of the
first question about the end of a queue; create another object, which is cheap, to see later messages.

The files do not tell which messages a broker shows to its readers. With `visible_after` "durable", a directory shows
messages a moment earlier than the broker, and may show messages that a crash then removes. Expired dead letters are
visible until their segment is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparrow.model.errors import DataLost, Refused
from sparrow.model.queue import Queue, QueueBounds, QueueOffset
from sparrow.store.log import search
from sparrow.store.log.commit_log.segment import Segment
from sparrow.store.log.consume_queues.consume_queue import FILLER_SIZE, ConsumeQueue
from sparrow.store.log.readonly import readonly_log
from sparrow.store.log.readonly.readonly_queues import ReadonlyQueueTable, load_queue, open_queue_table
from sparrow.store.log.recovery.record_borders import RecordBorders
from sparrow.store.log.state.state_seal import StateSeal
from sparrow.wire import columns, record

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_ENTRIES_AT_ONCE = 65_536
_SAMPLE = 256
_MISSING = -1
"""The physical offset of entries whose file is missing."""
_TAGS_CODE_MIN = -(1 << 31)
"""The smallest hash. RocketMQ's filter bitmaps store an address instead, which is smaller."""


class SegmentRecords(NamedTuple):
    """Records of one segment, ascending."""

    view: memoryview
    """The whole segment."""
    starts: Ints
    """Positions of the records in the segment."""
    sizes: Ints
    first_offset: int
    """The range that was examined starts here ..."""
    next_offset: int
    """... and ends before here. Fewer records than offsets: some did not match, or are damaged."""


class StoreDirectory:
    """The messages of a store. It is pickled as its path."""

    def __init__(self, path: Path | str) -> None:
        """`Refused` if the path is not a store directory, or one with unsupported files."""
        self.path = Path(path).absolute()
        self._sizes = readonly_log.read_file_sizes(self.path)
        self._log = readonly_log.open_commit_log(self.path, self._sizes.segment_bytes)
        self._queues_on_disk: dict[Queue, ConsumeQueue] = {}

    def __reduce__(self) -> tuple[type[StoreDirectory], tuple[str]]:
        return StoreDirectory, (str(self.path),)

    @cached_property
    def _queues(self) -> ReadonlyQueueTable:
        return open_queue_table(self.path, self._sizes, self._log)

    @cached_property
    def _borders(self) -> RecordBorders:
        return RecordBorders([self.path / "consumequeue"], self._sizes.queue_file_entries)

    @cached_property
    def _seal(self) -> StateSeal:
        return StateSeal(self.path)

    # -- topics and bounds --------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Return all topics that have or had messages, system topics included."""
        return sorted(self._queues.topics())

    def bounds(self, topic: str) -> dict[int, QueueBounds]:
        """Return the bounds of each queue of the topic that ever had a message."""
        return {queue.queue.id: queue.bounds for queue in self._queues.of_topic(topic)}

    def physical_bounds(self) -> tuple[int, int]:
        """Return where the log begins, and where its last complete record ends."""
        return int(self._log.first), self._queues.end

    def mean_bytes(self, queue: Queue) -> int:
        """Return the mean size of the newest records; 0 if there are none."""
        found = self._queues.get(queue)
        if found is None:
            return 0
        first = max(found.first, found.end - _SAMPLE)
        sizes = np.frombuffer(found.entries(first, found.end - first), columns.QUEUE_ENTRY_DTYPE)["size"]
        sizes = sizes[sizes != FILLER_SIZE]
        return round(float(sizes.mean())) if len(sizes) else 0

    def offset_at(self, queue: Queue, time_ms: int, *, upper: bool = False) -> int:
        """Return the first offset stored at or after a time; with `upper` the last stored at or before it."""
        found = self._queues.get(queue)
        if found is None:
            return 0
        try:
            return search.offset_at(self._log, found, time_ms, upper=upper)
        except FileNotFoundError as cause:
            raise self._lost(found, found.first) from cause

    # -- the records of a queue ---------------------------------------------------------------------------------------

    def read(
        self, queue: Queue, start: int, end: int, *, rows_max: int, tags_codes: frozenset[int] | None = None
    ) -> Iterator[SegmentRecords]:
        """Yield the records with queue offsets in [start, end), at most `rows_max` at a time.

        `DataLost` if retention has deleted some, `Refused` if the queue ends before `end`. Damaged records are skipped.
        With `tags_codes`, only records with one of them are returned.
        """
        if start >= end:
            return iter(())
        return self._read(self._reaching(queue, start, end), start, end, rows_max, tags_codes)

    def _reaching(self, name: Queue, start: int, end: int) -> ConsumeQueue:
        """Return the queue, which must contain these offsets; the log's tail is read only if its files do not."""
        queue: ConsumeQueue | None = self._queues_on_disk.get(name)
        if queue is None:
            queue = load_queue(self.path / "consumequeue", name, self._sizes, int(self._log.first))
            self._queues_on_disk[name] = queue
        if not queue.first <= start <= end <= queue.end:
            queue = self._queues.get(name)
        if queue is None:
            raise Refused(f"{self.path} has no queue {name}")
        if start < queue.first:
            raise DataLost(str(name), start, queue.first)
        if end > queue.end:
            raise Refused(f"{name} ends at {queue.end}, before the requested end {end}: was its log truncated?")
        return queue

    def _read(
        self, queue: ConsumeQueue, start: int, end: int, rows_max: int, tags_codes: frozenset[int] | None
    ) -> Iterator[SegmentRecords]:
        at_once = max(_ENTRIES_AT_ONCE - _ENTRIES_AT_ONCE % rows_max, rows_max)
        for first in range(start, end, at_once):
            raw = queue.entries(first, min(at_once, end - first))
            entries = np.frombuffer(raw, columns.QUEUE_ENTRY_DTYPE)
            places, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
            is_wanted = sizes != FILLER_SIZE
            if (places[~is_wanted] == _MISSING).any():
                raise self._lost(queue, first)
            if tags_codes is not None:
                is_wanted &= self._has_tags(entries["tags_code"].astype(np.int64), tags_codes)
            offsets = np.flatnonzero(is_wanted) + first
            yield from self._located(
                queue, places[is_wanted], sizes[is_wanted], offsets, (first, first + len(entries)), rows_max
            )

    def _has_tags(self, codes: Ints, wanted: frozenset[int]) -> Bools:
        if len(codes) and codes.min() < _TAGS_CODE_MIN:
            raise Refused(f"{self.path} has filter bitmaps (enableCalcFilterBitMap): read it without a tag filter")
        return np.isin(codes, np.fromiter(wanted, np.int64, len(wanted)))

    def _located(
        self,
        queue: ConsumeQueue,
        places: Ints,
        sizes: Ints,
        offsets: Ints,
        looked_at: tuple[int, int],
        rows_max: int,
    ) -> Iterator[SegmentRecords]:
        """Yield the records of some entries, by segment."""
        row, (first_offset, end) = 0, looked_at
        while row < len(places):
            place = int(places[row])
            segment = self._log.segment_at(place)
            if segment is None and not 0 <= place < self._log.written:
                row += 1  # an impossible offset: the entry is damaged
                continue
            try:
                view = segment.view if segment is not None else None
            except FileNotFoundError:
                view = None
            if segment is None or view is None:
                raise self._lost(queue, int(offsets[row]), place)
            in_segment = int(np.searchsorted(places[row:], segment.base + self._sizes.segment_bytes))
            stop = row + min(max(in_segment, 1), rows_max)  # damaged entries need not ascend
            starts, lengths = places[row:stop] - segment.base, sizes[row:stop]
            is_right = readonly_log.are_records_at(
                view, segment.base, starts, lengths, queue.queue.id, offsets[row:stop]
            )
            if not is_right.all():
                starts, lengths = starts[is_right], lengths[is_right]
            next_offset = int(offsets[stop]) if stop < len(places) else end
            yield SegmentRecords(view, starts, lengths, first_offset, next_offset)
            row, first_offset = stop, next_offset

    def _lost(self, queue: ConsumeQueue, asked: int, place: int = 0) -> DataLost:
        """Return the error for messages that retention deleted meanwhile, with the first offset that is left."""
        kept_from = readonly_log.oldest_segment_after(self.path, place, self._sizes.segment_bytes)
        first = queue.end
        if kept_from is not None:
            now = load_queue(self.path / "consumequeue", queue.queue, self._sizes, kept_from)
            low = max(queue.first, now.first)
            first = QueueOffset(queue.partition_point(low, queue.end, lambda at, _size: at < kept_from))
        return DataLost(str(queue.queue), asked, first)

    # -- the records of all queues, in log order ----------------------------------------------------------------------

    def scan(self, start: int, end: int, *, rows_max: int) -> Iterator[SegmentRecords]:
        """Yield the records of all queues that start at physical offsets in [start, end).

        The offsets in `SegmentRecords` are physical here. Any two offsets are allowed: adjacent ranges give each record
        once. Half messages and rollbacks, which are in no queue, are skipped. Records of deleted topics are not:
        records before `first_physical_offset` of a queue do not belong to it.
        """
        at = start
        for segment in self._log.segments:
            if not (segment.end > start and segment.base < end):
                continue
            if segment.base > at:
                raise DataLost(f"the log of {self.path}", at, segment.base)
            yield from self._scan(segment, at - segment.base, end - segment.base, rows_max)
            at = segment.end
        if at == start < min(end, self._log.first):
            raise DataLost(f"the log of {self.path}", start, self._log.first)

    def first_physical_offset(self, queue: Queue) -> int | None:
        """Return the physical offset of the oldest record in the queue; None if it is empty."""
        found = self._queues.get(queue)
        bounds = found.bounds if found is not None else QueueBounds(QueueOffset(0), QueueOffset(0))
        for part in self.read(queue, *bounds, rows_max=1):
            if len(part.starts):
                return int(readonly_log.record_headers(part.view, part.starts)["physical_offset"][0])
        return None

    def _scan(self, segment: Segment, at: int, stop: int, rows_max: int) -> Iterator[SegmentRecords]:
        try:
            view = segment.view
        except FileNotFoundError as cause:
            first = readonly_log.oldest_segment_after(self.path, segment.base, self._sizes.segment_bytes)
            raise DataLost(f"the log of {self.path}", segment.base + at, first or segment.end) from cause
        for starts in readonly_log.walk_records(segment, self._borders, self._seal, at, stop):
            places = readonly_log.record_headers(view, starts)
            ends = starts + places["size"]
            is_shown = places["sys_flag"] & record.HIDDEN_FLAG == 0
            for row in range(0, len(starts), rows_max):
                rows = slice(row, row + rows_max)
                shown = starts[rows][is_shown[rows]]
                sizes = (ends - starts)[rows][is_shown[rows]]
                first, end = int(starts[row]), int(ends[rows][-1])
                yield SegmentRecords(view, shown, sizes, segment.base + first, segment.base + end)
