"""Opening a store: what is on disk, how far it can be trusted, and what has to be read again.

The log is the truth. The checkpoint says up to which offset the views are known to hold everything; from there on the
log is read, each record checked, and filed again; a group of which not all is there is cut off. Views that are missing
or do not look right are thrown away, and the reading starts at the log's first byte. A directory that Apache RocketMQ
wrote is opened by RocketMQ's own rules.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sparrow.model.queue import Queue
from sparrow.settings import LogSettings
from sparrow.store.log.commit_log.commit_log import CommitLog
from sparrow.store.log.commit_log.log_scan import DamagedRange, LogScan, Starts
from sparrow.store.log.commit_log.segment import Segment
from sparrow.store.log.consume_queues.consume_queue import ENTRY, FILLER_SIZE
from sparrow.store.log.consume_queues.queue_builder import QueueBuilder, read_state_updates
from sparrow.store.log.consume_queues.queue_table import ConsumeQueueTable
from sparrow.store.log.key_index.key_index import INDEX_HEADER_BYTES, KeyIndex
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.recovery.checkpoint import Checkpoint, StoreLayout
from sparrow.store.log.recovery.incomplete_appends import IncompleteAppends
from sparrow.store.log.state.updates import STATE_QUEUE, AtomicAppendBegin
from sparrow.wire import columns

log = logging.getLogger(__name__)

_BEYOND = 1 << 62
_WRITE_OUT_BYTES = 64 << 20
_ROCKETMQ_MARGIN_MS = 3000


@dataclass(slots=True)
class RecoveredStore:
    """A store's files, open and in agreement with each other."""

    layout: StoreLayout
    log: CommitLog
    queues: ConsumeQueueTable
    index: KeyIndex
    checked_from: int
    """Records from here on were checked just now."""
    newest_ms: int = 0
    """The store time of the last record that a queue points to."""
    torn_from: int = _BEYOND
    """What lies below was safe when the checkpoint was written; an append may have been interrupted only behind it."""
    is_unchanged: bool = False
    """The last stop was clean, and nothing had to be read or repaired."""
    damage: list[DamagedRange] = field(default_factory=list)


def recover(path: Path, settings: LogSettings) -> RecoveredStore:
    """Open the files of a store, and repair whatever the last stop left undone."""
    layout = _layout(path, settings)
    segments, whole_to, missing = _open_segments(path / "commitlog", layout.segment_bytes)
    first = segments[0].base if segments else 0
    found = RecoveredStore(
        layout=layout,
        log=CommitLog(
            path / "commitlog",
            layout.segment_bytes,
            warm_bytes=settings.warm_bytes,
            lock_memory=settings.lock_memory,
            is_synced=settings.flush == "sync",
        ),
        queues=ConsumeQueueTable(path / "consumequeue", layout.queue_file_entries),
        index=KeyIndex(path / "index", layout.index_slots, layout.index_entries),
        checked_from=first,
    )
    was_clean = not (path / files.ABORT_FILE).exists()
    is_sparrow_store = (path / files.LAYOUT_FILE).exists()
    if is_sparrow_store:
        start = _load_views(path, found, segments, was_clean=was_clean)
    else:
        start = _load_rocketmq_views(path, found, segments, was_clean=was_clean)
    start = max(first, min(start, whole_to))
    _replay_log(found, segments, start)
    found.damage = sorted({*found.damage, *missing})
    newest = _newest_entry(found)
    segment = found.log.segment_at(newest) if newest is not None else None
    if newest is not None and segment is not None:
        found.newest_ms = int(store_times(segment.view, np.array([newest - segment.base]))[0])
    found.is_unchanged = is_sparrow_store and was_clean and found.log.written == start and not found.damage
    if not is_sparrow_store:
        files.save(path / files.LAYOUT_FILE, layout)
    return found


# -- what is there ----------------------------------------------------------------------------------------------------


def _layout(path: Path, settings: LogSettings) -> StoreLayout:
    """What the store was made with; for RocketMQ's, what the sizes of its files tell; for a new one, the settings."""
    wanted = StoreLayout(
        settings.segment_bytes, settings.queue_file_entries, settings.index_slots, settings.index_entries
    )
    kept = files.load(path / files.LAYOUT_FILE, StoreLayout)
    if kept is None:
        return _rocketmq_layout(path, wanted)
    if kept != wanted:
        log.warning("the store keeps the sizes it was made with", extra={"kept": str(kept), "set": str(wanted)})
    return kept


def _rocketmq_layout(path: Path, wanted: StoreLayout) -> StoreLayout:
    segments = sorted(int(file.name) for file in (path / "commitlog").glob("[0-9]" * 20))
    segment_bytes = wanted.segment_bytes
    if len(segments) > 1:
        segment_bytes = segments[1] - segments[0]
    elif segments:
        segment_bytes = (path / "commitlog" / f"{segments[0]:020d}").stat().st_size or segment_bytes
    queue_files = next((path / "consumequeue").glob("*/*/" + "[0-9]" * 20), None)
    queue_file_entries = queue_files.stat().st_size // ENTRY.size if queue_files else wanted.queue_file_entries
    slots, entries = wanted.index_slots, wanted.index_entries
    index_file = next((path / "index").glob("[0-9]" * 17), None)
    if index_file and index_file.stat().st_size != INDEX_HEADER_BYTES + 4 * slots + 20 * entries:
        # The split between slots and entries is not written anywhere: such an index is built again.
        for stale in (path / "index").iterdir():
            stale.unlink()
    return StoreLayout(segment_bytes, queue_file_entries or wanted.queue_file_entries, slots, entries)


def _open_segments(directory: Path, size: int) -> tuple[list[Segment], int, list[DamagedRange]]:
    """The segments in order, the offset up to which no file is known to have lost bytes, and what is missing whole."""
    directory.mkdir(parents=True, exist_ok=True)
    whole_to, missing = _BEYOND, []
    segments: list[Segment] = []
    for path in sorted(directory.iterdir()):
        if not (path.name.isascii() and path.name.isdecimal() and len(path.name) == 20):
            continue
        base = int(path.name)
        if segments and base != segments[-1].end:
            log.error("segments are missing", extra={"after": segments[-1].end, "before": base})
            missing.append(DamagedRange(segments[-1].end, base))
        if path.stat().st_size < size:
            log.warning("a segment lost its end", extra={"path": str(path), "bytes": path.stat().st_size})
            whole_to = min(whole_to, base)
        segments.append(Segment.open(path, size))
    return segments, whole_to, missing


# -- how far the views can be trusted ---------------------------------------------------------------------------------


def _load_views(path: Path, found: RecoveredStore, segments: list[Segment], *, was_clean: bool) -> int:
    """Load queues and index of our own; the offset from which the log has to be read again."""
    first = segments[0].base if segments else 0
    mark = files.load(path / files.CHECKPOINT_FILE, Checkpoint)
    if mark is None or mark.views_offset < first:
        return _discard_views(found, first, "there is no checkpoint")
    found.torn_from = mark.views_offset
    found.queues.load(first, mark.views_offset, mark.queue_ends)
    for topic, ends in mark.queue_ends.items():
        for queue_id, end in ends.items():
            queue = found.queues.get(Queue(topic, queue_id))
            if (queue is None or queue.end == 0) and queue_id in mark.emptied.get(topic, ()):
                found.queues.get_or_create(Queue(topic, queue_id)).start_at(end)
            elif queue is None or queue.end != end or not queue.is_sound():
                return _discard_views(found, first, f"queue {topic}/{queue_id} is not what the checkpoint says")
    newest = _newest_entry(found)
    if newest is not None and not _is_sound_at(segments, newest):
        log.warning("the log lost a record that a queue knows of", extra={"physical_offset": newest})
        found.index.load(mark.index, trust=False)
        return _base_of(segments, newest)
    if not found.index.load(mark.index, trust=was_clean):
        # The queues are right; reading everything again files only keys.
        log.warning("the key index is built again from the log")
        found.index.clear()
        return first
    return mark.views_offset


def _discard_views(found: RecoveredStore, first: int, why: str) -> int:
    if found.queues.directory.exists() or found.index.directory.exists():
        log.warning("queues and index are built again from the log", extra={"why": why})
    for queue in found.queues:
        queue.delete()
    found.queues.load(0, 0)
    found.queues.clear()
    found.index.load(None, trust=False)
    return first


def _newest_entry(found: RecoveredStore) -> int | None:
    """The physical offset of the last record that any queue points to."""
    newest = None
    for queue in found.queues:
        raw = queue.entries(queue.end - 1, 1) if queue.end > queue.first else b""
        if raw:
            at, size, _ = ENTRY.unpack(raw)
            if size != FILLER_SIZE and (newest is None or at > newest):
                newest = at
    return newest


def _is_sound_at(segments: list[Segment], physical_offset: int) -> bool:
    for segment in segments:
        if segment.base <= physical_offset < segment.end:
            at = np.array([physical_offset - segment.base], np.int64)
            return bool(columns.find_valid(segment.view, at, base=segment.base)[0])
    return False


def _base_of(segments: list[Segment], physical_offset: int) -> int:
    return max((segment.base for segment in segments if segment.base <= physical_offset), default=0)


def _load_rocketmq_views(path: Path, found: RecoveredStore, segments: list[Segment], *, was_clean: bool) -> int:
    """By RocketMQ's rules: after a clean stop its queues are complete, after a crash its checkpoint's times tell."""
    first = segments[0].base if segments else 0
    times = files.load_rocketmq(path / files.ROCKETMQ_CHECKPOINT_FILE)
    if was_clean:
        found.queues.load(first, _BEYOND)
        newest = _newest_entry(found)
        start = first if newest is None else newest
    else:
        start = first
        safe_ms = min(times.log_ms, times.queues_ms) - _ROCKETMQ_MARGIN_MS if times else 0
        for segment in segments:
            born_ms = first_store_ms(segment)
            if born_ms is not None and born_ms <= safe_ms:
                start = segment.base
        found.queues.load(first, start)
    found.index.load(None, trust=was_clean)
    return start if found.index.files or start == first else first


def first_store_ms(segment: Segment) -> int | None:
    """The store time of a segment's first sound record, if it has one."""
    start = np.zeros(1, np.int64)
    if columns.find_valid(segment.view, start, base=segment.base)[0]:
        return int(store_times(segment.view, start)[0])
    for part in LogScan([segment], segment.base):
        return int(store_times(segment.view, part.starts[:1])[0])
    return None


# -- reading the log again --------------------------------------------------------------------------------------------


def _replay_log(found: RecoveredStore, segments: list[Segment], start: int) -> None:
    groups = IncompleteAppends(_open_group(found, segments, start) if start < found.torn_from else None)
    end, found.damage, deleted_at = _index_again(
        segments, start, found.queues, found.index, groups=groups, torn_from=found.torn_from
    )
    whole_to = groups.recovered_end(end, found.damage, found.torn_from)
    if whole_to < end:
        log.warning("a group of appends is not all there: the log is cut where it begins", extra={"at": whole_to})
        found.damage = [part for part in found.damage if part.start < whole_to]
        end = whole_to
        found.index.truncate(end)
    # Queues may still point into damage; what lies before its end is read with care.
    found.checked_from = max([start, *(damage.end + 1 for damage in found.damage)])
    for damage in found.damage:
        log.warning("damaged part of the log left out", extra={"start": damage.start, "end": damage.end})
    _cut_behind(found, segments, end)
    if deleted_at >= end:  # a topic is back whose queues are gone
        rebuild_views(found.log, found.queues, found.index)
    for segment in found.log.segments:
        if segment.end > start:
            segment.sync()  # what a killed process wrote counts as durable from here on


def rebuild_views(commit_log: CommitLog, queues: ConsumeQueueTable, index: KeyIndex) -> None:
    """Throw the views away and build them again from the whole log."""
    queues.clear()
    index.clear()
    _index_again(commit_log.segments, commit_log.first, queues, index)
    for queue in queues:
        queue.visible_end = queue.end


def _index_again(
    segments: list[Segment],
    start: int,
    queues: ConsumeQueueTable,
    index: KeyIndex,
    *,
    groups: IncompleteAppends | None = None,
    torn_from: int = _BEYOND,
) -> tuple[int, list[DamagedRange], int]:
    """Read the log from `start` on and file every sound record.

    Where the log ends, what had to be left out, and where the last word stands that deletes a topic.
    """
    log_first = segments[0].base if segments else 0
    builder = QueueBuilder(queues.get, queues.get_or_create, queues.drop_topic, log_first=log_first, groups=groups)
    scan = LogScan(segments, start, torn_from=torn_from)
    indexed = index.end_offset
    unwritten = 0
    for part in scan:
        builder.add(part.segment.view, part.segment.base, part.starts)
        index_record_keys(index, part.segment, part.starts[part.starts + part.segment.base > indexed])
        unwritten += part.end - part.segment.base - int(part.starts[0])
        if unwritten > _WRITE_OUT_BYTES:
            unwritten = 0
            _write_out(queues)
    _write_out(queues)
    return scan.end, scan.damage + [DamagedRange(at, at) for at in builder.refused], builder.deleted_at


def _open_group(found: RecoveredStore, segments: list[Segment], start: int) -> int | None:
    """Where the group begins that goes on at `start`, if the state queue knows of one."""
    queue = found.queues.get(STATE_QUEUE)
    if queue is None:
        return None
    last = queue.partition_point(queue.first, queue.end, lambda at, _size: at < start) - 1
    at = queue.physical_offset_at(last) if last >= queue.first else None
    if at is None or not _is_sound_at(segments, at):
        return None
    segment = next(each for each in segments if each.base <= at < each.end)
    words = read_state_updates(segment.view, at - segment.base)
    return at if any(isinstance(word, AtomicAppendBegin) for word in words) else None


def _cut_behind(found: RecoveredStore, segments: list[Segment], end: int) -> None:
    """Nothing stays behind the last sound record: neither files, nor remnants, nor entries."""
    kept = [segment for segment in segments if segment.base <= end]
    for segment in segments[len(kept) :]:
        segment.delete()
    if kept and end < kept[-1].end:
        kept[-1].erase_from(end - kept[-1].base)
    found.log.adopt(kept, end)
    for queue in found.queues:
        queue.truncate(end)
        queue.erase_behind()
        queue.visible_end = queue.end


def _write_out(queues: ConsumeQueueTable) -> None:
    for queue in queues:
        if queue.is_dirty:
            queue.write_out()
            queue.trim_recent()


def index_record_keys(index: KeyIndex, segment: Segment, starts: Starts) -> None:
    """File the keys of a segment's records."""
    if len(starts) == 0:
        return
    rows, hashes = columns.index_keys(segment.view, starts)
    index.put(hashes, (starts + segment.base)[rows], store_times(segment.view, starts)[rows])


def store_times(view: memoryview, starts: Starts) -> Starts:
    """The store time of each record, in ms."""
    batch = columns.decode(view, starts, columns=["store_timestamp"])
    micros: Starts = batch.column(0).cast("int64").to_numpy()
    return micros // 1000
