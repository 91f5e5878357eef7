"""Recovery at a start: opens the files of a store and replays the part of the log that its views may lack.

The log is the source of truth. The checkpoint says up to which offset the views (consume queues, key index) are
complete; from there on the log is read, each record is checked and added to the views, and an incomplete atomic append
is cut off. Views that are missing or inconsistent are discarded and rebuilt from the log's first byte. A directory that
Apache RocketMQ wrote is opened by RocketMQ's own rules.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sparrow.model.queue import Queue
from sparrow.settings import LogSettings
from sparrow.store.log.commit_log.commit_log import CommitLog
from sparrow.store.log.commit_log.log_scan import DamagedRange, LogScan, Starts, find_candidates
from sparrow.store.log.commit_log.mapped_pages import sync_directory
from sparrow.store.log.commit_log.segment import Segment
from sparrow.store.log.consume_queues.consume_queue import ENTRY, FILLER_SIZE
from sparrow.store.log.consume_queues.queue_builder import QueueBuilder, read_state_updates
from sparrow.store.log.consume_queues.queue_table import ConsumeQueueTable
from sparrow.store.log.key_index.key_index import KeyIndex
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.recovery.checkpoint import Checkpoint, StoreLayout
from sparrow.store.log.recovery.incomplete_appends import IncompleteAppends
from sparrow.store.log.recovery.record_borders import RecordBorders, aside, remove_set_aside, set_aside
from sparrow.store.log.recovery.store_files import finish_truncation, open_segments, read_layout
from sparrow.store.log.state.state_seal import StateSeal
from sparrow.store.log.state.updates import STATE_QUEUE, AtomicAppendBegin
from sparrow.wire import columns

log = logging.getLogger(__name__)

_BEYOND = 1 << 62
_WRITE_OUT_BYTES = 64 << 20
_ROCKETMQ_MARGIN_MS = 3000


@dataclass(slots=True)
class RecoveredStore:
    """The files of a store, open and consistent with each other."""

    layout: StoreLayout
    log: CommitLog
    queues: ConsumeQueueTable
    index: KeyIndex
    seal: StateSeal
    checked_from: int
    """Records from this physical offset on were checked by recovery."""
    newest_ms: int = 0
    """The store time of the last record that a queue points to."""
    torn_from: int = _BEYOND
    """The checkpoint: everything below was durable; only an append after it can have been interrupted."""
    is_unchanged: bool = False
    """Whether the last stop was clean, and nothing had to be replayed or repaired."""
    damage: list[DamagedRange] = field(default_factory=list)


def recover(path: Path, settings: LogSettings) -> RecoveredStore:
    """Open the files of a store, and repair what the last stop left incomplete."""
    layout = read_layout(path, settings)
    segments, whole_to, missing = open_segments(path / "commitlog", layout.segment_bytes)
    first = segments[0].base if segments else 0
    found = RecoveredStore(
        layout=layout,
        log=CommitLog(
            path / "commitlog",
            layout.segment_bytes,
            warm_bytes=settings.warm_bytes,
            lock_memory=settings.lock_memory,
            is_synced=settings.flush == "sync",
            preallocate=settings.preallocate,
        ),
        queues=ConsumeQueueTable(path / "consumequeue", layout.queue_file_entries),
        index=KeyIndex(path / "index", layout.index_slots, layout.index_entries),
        seal=StateSeal(path),
        checked_from=first,
    )
    finish_truncation(path, segments)
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
    files.remove_file(path / files.TRUNCATION_FILE)
    remove_set_aside(found.queues.directory)
    return found


# -- views ------------------------------------------------------------------------------------------------------------


def _load_views(path: Path, found: RecoveredStore, segments: list[Segment], *, was_clean: bool) -> int:
    """Load Sparrow's queues and index; return the offset from which the log must be replayed."""
    first = segments[0].base if segments else 0
    mark = files.load(path / files.CHECKPOINT_FILE, Checkpoint)
    if mark is None or mark.views_offset < first:
        return _discard_views(found, first, "no usable checkpoint")
    found.torn_from = mark.views_offset
    found.queues.load(first, mark.views_offset, mark.queue_ends)
    for topic, ends in mark.queue_ends.items():
        for queue_id, end in ends.items():
            queue = found.queues.get(Queue(topic, queue_id))
            if (queue is None or queue.end == 0) and queue_id in mark.emptied.get(topic, ()):
                found.queues.get_or_create(Queue(topic, queue_id)).start_at(end)
            elif queue is None or queue.end != end or not queue.is_sound():
                return _discard_views(found, first, f"queue {topic}/{queue_id} does not match the checkpoint")
    newest = _newest_entry(found)
    if newest is not None and not _is_sound_at(segments, newest):
        log.warning(
            "the newest record of a queue, at physical offset %(physical_offset)s, is missing in the log;"
            " the views are rebuilt from there",
            {"physical_offset": newest},
        )
        found.index.load(mark.index, trust=False)
        return _base_of(segments, newest)
    if not found.index.load(mark.index, trust=was_clean):
        # The queues are right: the replay of the whole log adds keys only.
        log.warning("key index does not match the checkpoint; rebuilding it from the log")
        found.index.clear()
        return first
    return mark.views_offset


def _discard_views(found: RecoveredStore, first: int, why: str) -> int:
    if found.queues.directory.exists() or found.index.directory.exists():
        log.warning("consume queues and key index are rebuilt from the log: %(reason)s", {"reason": why})
    _discard_queues(found.queues)
    found.index.load(None, trust=False)
    return first


def _discard_queues(queues: ConsumeQueueTable) -> None:
    """Start with empty queues. The files stay readable as borders until the log was replayed."""
    set_aside(queues.directory)
    queues.forget()


def _newest_entry(found: RecoveredStore) -> int | None:
    """Return the physical offset of the last record that any queue points to."""
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
    """Load RocketMQ's queues and index; return the offset from which the log must be replayed.

    After a clean stop the queues are complete; after a crash the times in RocketMQ's checkpoint decide.
    """
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
    """Return the store time of a segment's first sound record, None if it has none."""
    start = np.zeros(1, np.int64)
    if columns.find_valid(segment.view, start, base=segment.base)[0]:
        return int(store_times(segment.view, start)[0])
    for part in LogScan([segment], segment.base):
        return int(store_times(segment.view, part.starts[:1])[0])
    return None


# -- replay -----------------------------------------------------------------------------------------------------------


def _replay_log(found: RecoveredStore, segments: list[Segment], start: int) -> None:
    incomplete = IncompleteAppends(_open_append_begin(found, segments, start) if start < found.torn_from else None)
    end, found.damage, deleted_at = _index_again(
        segments, start, found.queues, found.index, found.seal, incomplete=incomplete, torn_from=found.torn_from
    )
    whole_to = incomplete.recovered_end(end, found.damage, found.torn_from)
    if whole_to < end:
        log.warning(
            "the log is truncated at physical offset %(physical_offset)s, the begin of an incomplete atomic append",
            {"physical_offset": whole_to},
        )
        found.damage = [part for part in found.damage if part.start < whole_to]
        end = whole_to
        found.index.truncate(end)
    else:
        _save_unknown_rest(found, segments, end)
    # Queues may still point into damaged ranges, so reads below their ends are checked.
    found.checked_from = max([start, *(damage.end + 1 for damage in found.damage)])
    for damage in found.damage:
        log.warning(
            "the log is damaged from physical offset %(start)s to %(end)s; the range is skipped",
            {"start": damage.start, "end": damage.end},
        )
    _truncate_after(found, segments, end)
    if deleted_at >= end:  # the deletion of a topic was cut off, but its queues are gone
        rebuild_views(found.log, found.queues, found.index, found.seal)
    for segment in found.log.segments:
        if segment.end > start:
            segment.sync()  # records of a killed process count as durable from here on


def rebuild_views(commit_log: CommitLog, queues: ConsumeQueueTable, index: KeyIndex, seal: StateSeal) -> None:
    """Discard the views and rebuild them from the whole log."""
    _discard_queues(queues)
    index.clear()
    _index_again(commit_log.segments, commit_log.first, queues, index, seal)
    remove_set_aside(queues.directory)
    for queue in queues:
        queue.visible_end = queue.end


def _index_again(
    segments: list[Segment],
    start: int,
    queues: ConsumeQueueTable,
    index: KeyIndex,
    seal: StateSeal,
    *,
    incomplete: IncompleteAppends | None = None,
    torn_from: int = _BEYOND,
) -> tuple[int, list[DamagedRange], int]:
    """Replay the log from `start` on and add every sound record to the views.

    Return the end of the log, the damaged ranges, and the offset of the last update that deletes a topic.
    """
    log_first = segments[0].base if segments else 0
    builder = QueueBuilder(
        queues.get, queues.get_or_create, queues.drop_topic, log_first=log_first, incomplete=incomplete
    )
    borders = RecordBorders([aside(queues.directory), queues.directory], queues.file_entries)
    scan = LogScan(segments, start, torn_from=torn_from, borders=borders, state_check=seal)
    indexed = index.end_offset
    unwritten = 0
    for part in scan:
        base, records = part.segment.base, columns.LogRecords.locate(part.segment.view, part.starts)
        builder.add(records, base)
        if base + int(part.starts[0]) <= indexed:
            records = columns.LogRecords.locate(records.view, part.starts[part.starts + base > indexed])
        index.put_keys(records, base)
        unwritten += part.end - part.segment.base - int(part.starts[0])
        if unwritten > _WRITE_OUT_BYTES:
            unwritten = 0
            _write_out(queues)
    _write_out(queues)
    return scan.end, scan.damage + [DamagedRange(at, at) for at in builder.refused], builder.deleted_at


def _open_append_begin(found: RecoveredStore, segments: list[Segment], start: int) -> int | None:
    """Return the begin of the atomic append that contains `start`, None if the state queue has none."""
    queue = found.queues.get(STATE_QUEUE)
    if queue is None:
        return None
    last = queue.partition_point(queue.first, queue.end, lambda at, _size: at < start) - 1
    at = queue.physical_offset_at(last) if last >= queue.first else None
    if at is None or not _is_sound_at(segments, at):
        return None
    segment = next(each for each in segments if each.base <= at < each.end)
    updates = read_state_updates(segment.view, at - segment.base)
    return at if any(isinstance(update, AtomicAppendBegin) for update in updates) else None


def _save_unknown_rest(found: RecoveredStore, segments: list[Segment], end: int) -> None:
    """Save what looks like records after the end of the log, if damage hides where they start: the log is cut there."""
    segment = next((each for each in segments if each.base <= end < each.end), None)
    if segment is None or (end >= found.torn_from and segment.view[end - segment.base :][:8] == bytes(8)):
        return
    if next(find_candidates(segment, end - segment.base + 1), None) is not None:
        path = found.log.directory.with_name(f"{files.CUT_OFF_PREFIX}{end:020d}")
        with contextlib.suppress(OSError):  # a full disk must not keep the store closed
            files.replace_file(path, bytes(segment.view[end - segment.base :]).rstrip(b"\0"))
        log.error(
            "the log is damaged at physical offset %(end)s, and nothing tells where the records behind it start; the"
            " log ends there now, and the rest is saved in %(path)s",
            {"end": end, "path": path},
        )


def _truncate_after(found: RecoveredStore, segments: list[Segment], end: int) -> None:
    """Remove everything after the last sound record: segments, remnants and queue entries."""
    kept = [segment for segment in segments if segment.base <= end]
    for segment in segments[len(kept) :]:
        segment.delete()
    sync_directory(found.log.directory)  # a segment that comes back after a power loss would have old records
    if kept and end < kept[-1].end:
        kept[-1].erase_from(end - kept[-1].base)
    found.log.adopt(kept, end)
    for queue in found.queues:
        queue.truncate(end)
        queue.erase_unflushed()
        queue.visible_end = queue.end


def _write_out(queues: ConsumeQueueTable) -> None:
    for queue in queues:
        if queue.is_dirty:
            try:
                queue.write_out()
            except OSError as cause:
                if cause.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                remove_set_aside(queues.directory)  # the new files need its space
                queue.write_out()
            queue.trim_recent()


def store_times(view: memoryview, starts: Starts) -> Starts:
    """Return the store time of each record, in ms."""
    batch = columns.decode(view, starts, columns=["store_timestamp"])
    micros: Starts = batch.column(0).cast("int64").to_numpy()
    return micros // 1000
