"""Record borders: where records start in the log, as the consume queues on disk say.

Only the store writes these files, so recovery may continue at a record that they name, however its neighbours look.
Before queues are rebuilt, their files are set aside and stay readable until the log was replayed.
"""

from __future__ import annotations

import heapq
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from sparrow.model.queue import Queue
from sparrow.store.log.commit_log.log_scan import RecordBorder, is_record
from sparrow.store.log.commit_log.segment import Segment
from sparrow.store.log.consume_queues.consume_queue import ENTRY, FILLER_SIZE, ConsumeQueue
from sparrow.store.log.consume_queues.queue_table import list_queues

_BEYOND = 1 << 62
_ENTRIES_AT_ONCE = 256
_NEAR_QUEUES = 16
"""Queues that are asked for a border near a place; the more, the nearer it is."""


class RecordBorders:
    """The borders that queue files name. Files are opened when the first border is asked for."""

    def __init__(self, directories: Sequence[Path], file_entries: int) -> None:
        self._directories, self._file_entries = directories, file_entries
        self._queues: list[ConsumeQueue] | None = None
        self._passed: dict[int, int] = {}
        """Of each queue, how many entries lie before the last place asked for."""
        self._last_after = -1
        self._near: list[ConsumeQueue] | None = None

    def __call__(self, after: int, before: int) -> Iterator[RecordBorder]:
        """Yield the borders above one physical offset and below another, ascending."""
        if self._queues is None:
            self._queues = list(self._load())
        if after < self._last_after:
            self._passed.clear()
        self._last_after = after
        return heapq.merge(*(self._of_queue(number, after, before) for number in range(len(self._queues))))

    def last_before(self, segment: Segment, place: int) -> int:
        """Return where a record starts in a segment, near and not after a place; the segment's start if none is near.

        It is the last border that some of the queues name. Entries may be damaged, so the record must be there.
        """
        if self._near is None:
            self._near = list(islice(self._load(), _NEAR_QUEUES))
        borders = []
        for queue in self._near:
            offset = queue.partition_point(int(queue.first), queue.end, lambda at, _size: at <= place) - 1
            if offset >= queue.first and (raw := queue.entries(offset, 1)):
                at, size, _code = ENTRY.unpack(raw)
                if size != FILLER_SIZE and segment.base < at <= place:
                    borders.append(RecordBorder(at, size, queue.queue, offset))
        return next(
            (one.physical_offset for one in sorted(borders, reverse=True) if is_record(segment, one)), segment.base
        )

    def _load(self) -> Iterator[ConsumeQueue]:
        for directory in self._directories:
            for topic, queue_id in list_queues(directory):
                folder = directory / topic / str(queue_id)
                queue = ConsumeQueue(Queue(topic, queue_id), folder, self._file_entries)
                queue.load(0, _BEYOND)
                yield queue

    def _of_queue(self, number: int, after: int, before: int) -> Iterator[RecordBorder]:
        assert self._queues is not None
        queue = self._queues[number]
        low = self._passed.get(number, int(queue.first))
        offset = queue.partition_point(low, queue.end, lambda at, _size: at <= after)
        self._passed[number] = offset
        while offset < queue.end:
            raw = queue.entries(offset, _ENTRIES_AT_ONCE)
            if not raw:
                return
            for at, size, _code in ENTRY.iter_unpack(raw):
                if at >= before:
                    return
                if size != FILLER_SIZE and at > after:
                    yield RecordBorder(at, size, queue.queue, offset)
                offset += 1


def aside(directory: Path) -> Path:
    """Return where the files of consume queues are set aside."""
    return directory.with_name(directory.name + ".old")


def set_aside(directory: Path) -> None:
    """Move the files of all queues away. Files that an interrupted rebuild had set aside stay: they have more."""
    if aside(directory).exists():
        shutil.rmtree(directory, ignore_errors=True)
    elif directory.exists():
        directory.rename(aside(directory))


def remove_set_aside(directory: Path) -> None:
    shutil.rmtree(aside(directory), ignore_errors=True)
