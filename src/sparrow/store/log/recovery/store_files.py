"""Files of a store at a start: their sizes, the segments of the log, and a truncation that was interrupted."""

from __future__ import annotations

import logging
from pathlib import Path

from sparrow.settings import LogSettings
from sparrow.store.log.commit_log.log_scan import DamagedRange
from sparrow.store.log.commit_log.mapped_pages import sync_directory
from sparrow.store.log.commit_log.segment import Segment
from sparrow.store.log.consume_queues.consume_queue import ENTRY
from sparrow.store.log.key_index.index_file import INDEX_HEADER_BYTES
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.recovery.checkpoint import StoreLayout, Truncation

log = logging.getLogger(__name__)

_BEYOND = 1 << 62


def read_layout(path: Path, settings: LogSettings) -> StoreLayout:
    """Return the layout of the store; for RocketMQ's, from file sizes; for a new one, from the settings."""
    wanted = StoreLayout(
        settings.segment_bytes, settings.queue_file_entries, settings.index_slots, settings.index_entries
    )
    kept = files.load(path / files.LAYOUT_FILE, StoreLayout)
    if kept is None:
        return _rocketmq_layout(path, wanted)
    if kept != wanted:
        log.warning(
            "the settings ask for other file sizes (%(of_settings)s) than the store has (%(of_store)s);"
            " a store keeps its sizes, and the settings are ignored",
            {"of_settings": wanted, "of_store": kept},
        )
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
        # The numbers of slots and entries are not stored anywhere: such an index is rebuilt.
        for stale in (path / "index").iterdir():
            stale.unlink()
    return StoreLayout(segment_bytes, queue_file_entries or wanted.queue_file_entries, slots, entries)


def open_segments(directory: Path, size: int) -> tuple[list[Segment], int, list[DamagedRange]]:
    """Open the segments; return them, the offset up to which no file is truncated, and the missing ranges."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    sync_directory(directory.parent)
    whole_to, missing = _BEYOND, []
    segments: list[Segment] = []
    for path in sorted(directory.iterdir()):
        if not (path.name.isascii() and path.name.isdecimal() and len(path.name) == 20):
            continue
        base = int(path.name)
        if segments and base != segments[-1].end:
            log.error(
                "segments are missing from offset %(after)s to %(before)s; restore the files to get their messages",
                {"after": segments[-1].end, "before": base},
            )
            missing.append(DamagedRange(segments[-1].end, base))
        if path.stat().st_size < size:
            log.warning(
                "segment %(path)s has %(bytes)s bytes instead of %(expected)s; its last whole record ends the log",
                {"path": path, "bytes": path.stat().st_size, "expected": size},
            )
            whole_to = min(whole_to, base)
        segments.append(Segment.open(path, size))
    return segments, whole_to, missing


def finish_truncation(path: Path, segments: list[Segment]) -> None:
    """Repeat a truncation that the last stop interrupted. The views are built again."""
    begun = files.load(path / files.TRUNCATION_FILE, Truncation)
    if begun is None:
        return
    log.warning("the truncation at physical offset %(end)s is finished", {"end": begun.end})
    files.remove_file(path / files.CHECKPOINT_FILE)
    files.remove_file(path / files.STATE_SNAPSHOT_FILE)
    while len(segments) > 1 and segments[-1].base >= begun.end:
        segments.pop().delete()
    if segments and begun.end < segments[-1].end:
        segments[-1].erase_from(max(0, begun.end - segments[-1].base))
        segments[-1].sync()
