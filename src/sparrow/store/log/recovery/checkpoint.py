"""Checkpoint, layout and the names of a store's small files, which are replaced atomically and have a checksum."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from struct import Struct
from typing import TypeVar
from zlib import crc32

import msgspec

from sparrow.store.log.commit_log.mapped_pages import sync_directory
from sparrow.store.log.key_index.index_file import IndexCheckpoint

log = logging.getLogger(__name__)

CHECKPOINT_FILE, STATE_SNAPSHOT_FILE, LAYOUT_FILE = "sparrow.checkpoint", "sparrow.state", "sparrow.layout"
HIGH_WATERMARK_FILE, TRUNCATION_FILE = "sparrow.high_watermark", "sparrow.truncation"
KEY_FILE, CUT_OFF_PREFIX = "sparrow.key", "sparrow.cut_off."
ROCKETMQ_CHECKPOINT_FILE, ABORT_FILE, LOCK_FILE = "checkpoint", "abort", "lock"
_ROCKETMQ = Struct(">qqqqq")
_ROCKETMQ_BYTES = 4096


class StoreLayout(msgspec.Struct, frozen=True):
    """File sizes that are fixed when a store is created."""

    segment_bytes: int
    queue_file_entries: int
    index_slots: int
    index_entries: int


class Checkpoint(msgspec.Struct, frozen=True):
    """The views on disk are complete for the log below `views_offset`. Field names are part of the file format."""

    views_offset: int
    queue_ends: dict[str, dict[int, int]]
    """topic -> queue id -> end at that offset: a queue with a lower end has lost entries."""
    index: IndexCheckpoint | None
    emptied: dict[str, list[int]] = {}
    """topic -> ids of queues whose messages retention has deleted: they may have no files."""


class HighWatermark(msgspec.Struct, frozen=True):
    """Enough replicas have the log below this physical offset."""

    physical_offset: int


class Truncation(msgspec.Struct, frozen=True):
    """A truncation that was begun: the log ends here, whatever lies behind."""

    end: int


class RocketMQCheckpoint(msgspec.Struct, frozen=True):
    """RocketMQ's checkpoint file: store times of the newest records that are durable in log, queues and index."""

    log_ms: int
    queues_ms: int
    index_ms: int


_Value = TypeVar("_Value")


def save(path: Path, value: msgspec.Struct) -> None:
    """Write a value to a file, durably. After a crash in between, the file has either the old or the new value."""
    body = msgspec.json.encode(value)
    replace_file(path, b"%08x\n" % crc32(body) + body)


def load(path: Path, kind: type[_Value]) -> _Value | None:
    """Return the value in a file, None if the file is missing or damaged."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        if int(raw[:8], 16) == crc32(raw[9:]):
            return msgspec.json.decode(raw[9:], type=kind)
        why = "checksum mismatch"
    except ValueError as cause:  # msgspec's errors are ValueErrors too
        why = str(cause)
    log.warning("file %(path)s is damaged and is ignored: %(error)s", {"path": path, "error": why})
    return None


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably. Only its owner can read it: the state contains secrets of tokens."""
    fresh = path.with_name(path.name + ".new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    sync_directory(path.parent)


def remove_file(path: Path) -> None:
    """Delete a file durably, if it exists: it must not return after a power loss."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    sync_directory(path.parent)


def load_rocketmq(path: Path) -> RocketMQCheckpoint | None:
    try:
        raw = path.read_bytes()[: _ROCKETMQ.size]
    except FileNotFoundError:
        return None
    if len(raw) < _ROCKETMQ.size:
        return None
    return RocketMQCheckpoint(*_ROCKETMQ.unpack(raw)[:3])


def save_rocketmq(path: Path, times: RocketMQCheckpoint) -> None:
    """Write RocketMQ's checkpoint, from which a Java broker that opens the directory starts its recovery."""
    replace_file(
        path, _ROCKETMQ.pack(times.log_ms, times.queues_ms, times.index_ms, 0, 0).ljust(_ROCKETMQ_BYTES, b"\0")
    )
