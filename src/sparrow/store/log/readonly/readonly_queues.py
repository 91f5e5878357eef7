"""Read-only consume queues of a store that another process may have open: the files, plus the tail of the log.

Up to some offset of the log the queue files are complete: Sparrow's checkpoint gives it, RocketMQ adds records in
order. Later records are read from the log and added in memory, up to the first incomplete record or atomic append.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from sparrow.model.queue import Queue
from sparrow.model.topic import is_legal_name
from sparrow.store.log.commit_log.commit_log import CommitLog
from sparrow.store.log.commit_log.log_scan import LogScan, SoundRecords
from sparrow.store.log.consume_queues.consume_queue import ENTRY, FILLER_SIZE, ConsumeQueue
from sparrow.store.log.consume_queues.queue_builder import QueueBuilder, read_state_updates
from sparrow.store.log.readonly.readonly_log import FileSizes
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.recovery.checkpoint import Checkpoint
from sparrow.store.log.recovery.record_borders import RecordBorders
from sparrow.store.log.state.state_seal import StateSeal
from sparrow.store.log.state.updates import STATE_QUEUE, AtomicAppendBegin, LedgerUpdate, StateUpdate
from sparrow.wire import columns

BEYOND = 1 << 62
_CACHED_MAX = 4


class _Version(NamedTuple):
    """The checkpoint file and the start of the log; a table can be reused while both are unchanged."""

    checkpoint: tuple[int, int]
    log_first: int


class ReadonlyQueueTable:
    """All queues up to the end of the log, as of the last `catch_up`. Each is loaded on first use."""

    def __init__(self, path: Path, sizes: FileSizes, log: CommitLog) -> None:
        self._directory, self._sizes = path / "consumequeue", sizes
        self._queues: dict[Queue, ConsumeQueue | None] = {}
        self._deleted_topics: set[str] = set()
        """Topics that were deleted after the checkpoint: their files, if they still exist, are ignored."""
        self._log_first = int(log.first)
        self._files_end, self._ends = self._complete_to(path, log)
        self._borders = RecordBorders([self._directory], sizes.queue_file_entries)
        self._seal = StateSeal(path)
        self.end = self._files_end
        """The end of the log for readers."""

    def _complete_to(self, path: Path, log: CommitLog) -> tuple[int, dict[str, dict[int, int]]]:
        """Return the offset up to which the files are complete, and the ends of the queues at that offset."""
        if not (path / files.LAYOUT_FILE).exists():
            return self._newest(), {}
        mark = files.load(path / files.CHECKPOINT_FILE, Checkpoint)
        if mark is None or not log.first <= mark.views_offset <= log.written:
            return self._log_first, {}
        return mark.views_offset, mark.queue_ends

    def _newest(self) -> int:
        """Return the offset of the last record that any of RocketMQ's queues points to."""
        newest = self._log_first
        for topic in list_topics(self._directory):
            for queue_id in list_queue_ids(self._directory / topic):
                queue = load_queue(self._directory, Queue(topic, queue_id), self._sizes, self._log_first)
                self._queues[queue.queue] = queue
                if queue.end > queue.first:
                    at, size, _ = ENTRY.unpack(queue.entries(queue.end - 1, 1))
                    newest = max(newest, at if size != FILLER_SIZE else 0)
        return newest

    # -- queues -------------------------------------------------------------------------------------------------------

    def topics(self) -> set[str]:
        in_files = {
            topic for topic in (*list_topics(self._directory), *self._ends) if topic not in self._deleted_topics
        }
        return in_files | {name.topic for name, queue in self._queues.items() if queue is not None}

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        ids = {name.id for name in self._queues if name.topic == topic}
        if topic not in self._deleted_topics:
            ids |= {*list_queue_ids(self._directory / topic), *self._ends.get(topic, {})}
        return [queue for id in sorted(ids) if (queue := self.get(Queue(topic, id))) is not None]

    def get(self, name: Queue) -> ConsumeQueue | None:
        """Return the queue, None if it never had a message."""
        if name not in self._queues:
            self._queues[name] = None if name.topic in self._deleted_topics else self._load(name)
        return self._queues[name]

    def _load(self, name: Queue) -> ConsumeQueue | None:
        likely_end = self._ends.get(name.topic, {}).get(name.id, 0)
        queue = load_queue(
            self._directory, name, self._sizes, self._log_first, log_end=self._files_end, likely_end=likely_end
        )
        if queue.end == 0 and likely_end:
            queue.start_at(likely_end)  # retention has deleted its messages and files
        return queue if queue.end else None

    # -- tail of the log ----------------------------------------------------------------------------------------------

    def catch_up(self, log: CommitLog) -> None:
        """Add the records that were appended since the last call."""
        builder = QueueBuilder(self.get, self._of, self._drop_topic, log_first=self._log_first)

        def scan_from(start: int) -> LogScan:
            return LogScan(
                log.segments, start, torn_from=self._files_end, borders=self._borders, state_check=self._seal
            )

        for part in _complete(_sound(self.end, scan_from)):
            builder.add(columns.LogRecords.locate(part.segment.view, part.starts), part.segment.base)
            self.end = part.end
        for queue in self._queues.values():
            if queue is not None:
                queue.visible_end = queue.end

    def _of(self, name: Queue) -> ConsumeQueue:
        queue = self.get(name)
        if queue is None:
            queue = self._queues[name] = _new_queue(self._directory, name, self._sizes)
        return queue

    def _drop_topic(self, topic: str) -> None:
        self._deleted_topics.add(topic)
        for name in [name for name in self._queues if name.topic == topic]:
            del self._queues[name]


class _Part(NamedTuple):
    found: SoundRecords
    follows_damage: bool


def _sound(start: int, scan_from: Callable[[int], LogScan]) -> Iterator[_Part]:
    """Yield sound records from `start` on, each time as a new scan finds them.

    A gap may be an append in progress, so it is read a second time. A gap that is still there is damage, and is skipped
    as recovery does.
    """
    end, looked_again_at = start, -1
    while True:
        scan = scan_from(end)
        for found in scan:
            follows_damage = bool(scan.damage)
            if follows_damage and looked_again_at != end:
                looked_again_at = end
                break
            scan.damage.clear()
            end = found.end
            yield _Part(found, follows_damage)
        else:
            return


def _complete(parts: Iterable[_Part]) -> Iterator[SoundRecords]:
    """Yield the parts up to the first incomplete atomic append, where recovery would truncate the log."""
    pending: list[SoundRecords] = []
    begin_at: int | None = None
    for found, follows_damage in parts:
        if pending and follows_damage:
            return
        base = found.segment.base
        for row, update in _updates(found):
            place = base + int(found.starts[row])
            if isinstance(update, AtomicAppendBegin) and begin_at is None:
                begin_at = place
            elif isinstance(update, LedgerUpdate) and update.begun == begin_at:
                begin_at = None
        if begin_at is not None and begin_at < base + int(found.starts[0]):  # begun in an earlier part
            pending.append(found)
            continue
        yield from pending
        before = len(found.starts) if begin_at is None else int(np.searchsorted(found.starts, begin_at - base))
        if before:
            yield SoundRecords(found.segment, found.starts[:before], found.end if begin_at is None else begin_at)
        pending = [] if begin_at is None else [SoundRecords(found.segment, found.starts[before:], found.end)]


def _updates(found: SoundRecords) -> Iterator[tuple[int, StateUpdate]]:
    """Yield the state updates among these records, each with the row of its record."""
    view = found.segment.view
    topics = columns.decode(view, found.starts, columns=["topic"]).column(0)
    for row in np.flatnonzero(pc.equal(topics, STATE_QUEUE.topic).to_numpy(zero_copy_only=False)).tolist():
        for update in read_state_updates(view, int(found.starts[row])):
            yield row, update


# -- queue files ------------------------------------------------------------------------------------------------------


def load_queue(
    directory: Path, name: Queue, sizes: FileSizes, log_first: int, *, log_end: int = BEYOND, likely_end: int = 0
) -> ConsumeQueue:
    """Load a queue as far as its files point into [log_first, log_end)."""
    queue = _new_queue(directory, name, sizes)
    queue.load(log_first, log_end, likely_end)
    return queue


def _new_queue(directory: Path, name: Queue, sizes: FileSizes) -> ConsumeQueue:
    return ConsumeQueue(name, directory / name.topic / str(name.id), sizes.queue_file_entries)


def list_topics(directory: Path) -> list[str]:
    return sorted(name for name in _list_names(directory) if is_legal_name(name) and list_queue_ids(directory / name))


def list_queue_ids(directory: Path) -> list[int]:
    return sorted(int(name) for name in _list_names(directory) if name.isascii() and name.isdecimal())


def _list_names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


# -- cache per directory ----------------------------------------------------------------------------------------------

_cache: OrderedDict[Path, tuple[_Version, ReadonlyQueueTable]] = OrderedDict()


def open_queue_table(path: Path, sizes: FileSizes, log: CommitLog) -> ReadonlyQueueTable:
    """Return the queues of a directory, up to the end of the log; reuse the cached table if it is still valid."""
    version = _version(path, log)
    cached = _cache.get(path)
    if version is None or cached is None or cached[0] != version or cached[1].end > log.written:
        queues = ReadonlyQueueTable(path, sizes, log)
    else:
        queues = cached[1]
    queues.catch_up(log)
    if version is not None:
        _cache[path] = (version, queues)
        _cache.move_to_end(path)
        while len(_cache) > _CACHED_MAX:
            _cache.popitem(last=False)
    return queues


def _version(path: Path, log: CommitLog) -> _Version | None:
    """Return the version of the files; None for RocketMQ's, which have no checkpoint to compare."""
    try:
        found = (path / files.CHECKPOINT_FILE).stat()
    except FileNotFoundError:
        return None
    return _Version((found.st_ino, found.st_mtime_ns), int(log.first))
