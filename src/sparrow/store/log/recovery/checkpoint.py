"""What a start may rely on without reading the whole log: small files, replaced whole and checked by a checksum."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from struct import Struct
from typing import TypeVar
from zlib import crc32

import msgspec

from sparrow.store.log.key_index.index_file import IndexCheckpoint

log = logging.getLogger(__name__)

CHECKPOINT_FILE, STATE_SNAPSHOT_FILE, LAYOUT_FILE = "sparrow.checkpoint", "sparrow.state", "sparrow.layout"
ROCKETMQ_CHECKPOINT_FILE, ABORT_FILE, LOCK_FILE = "checkpoint", "abort", "lock"
_ROCKETMQ = Struct(">qqqqq")
_ROCKETMQ_BYTES = 4096


class StoreLayout(msgspec.Struct, frozen=True):
    """What a store fixes for its life."""

    segment_bytes: int
    queue_file_entries: int
    index_slots: int
    index_entries: int


class Checkpoint(msgspec.Struct, frozen=True):
    """Queues and index hold, on disk, everything below `views_offset`."""

    views_offset: int
    queue_ends: dict[str, dict[int, int]]
    """topic -> queue id -> end, as of that place: a queue that has less lost something."""
    index: IndexCheckpoint | None
    emptied: dict[str, list[int]] = {}
    """topic -> ids of queues in which retention left nothing: they may have no files."""


class RocketMQCheckpoint(msgspec.Struct, frozen=True):
    """RocketMQ's own file: store times of the newest records that are safe in log, queues and index."""

    log_ms: int
    queues_ms: int
    index_ms: int


_Value = TypeVar("_Value")


def save(path: Path, value: msgspec.Struct) -> None:
    """Replace the file by the value, so that a crash leaves the old one or the new one."""
    body = msgspec.json.encode(value)
    replace_file(path, b"%08x\n" % crc32(body) + body)


def load(path: Path, kind: type[_Value]) -> _Value | None:
    """The value in the file; None if there is no file, or a damaged one."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        if int(raw[:8], 16) == crc32(raw[9:]):
            return msgspec.json.decode(raw[9:], type=kind)
        why = "its checksum does not match"
    except ValueError as cause:  # msgspec's errors are ValueErrors too
        why = str(cause)
    log.warning("a damaged file is left aside", extra={"path": str(path), "why": why})
    return None


def replace_file(path: Path, data: bytes) -> None:
    fresh = path.with_name(path.name + ".new")
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def load_rocketmq(path: Path) -> RocketMQCheckpoint | None:
    try:
        raw = path.read_bytes()[: _ROCKETMQ.size]
    except FileNotFoundError:
        return None
    if len(raw) < _ROCKETMQ.size:
        return None
    return RocketMQCheckpoint(*_ROCKETMQ.unpack(raw)[:3])


def save_rocketmq(path: Path, times: RocketMQCheckpoint) -> None:
    """So that a Java broker that opens the directory knows where to begin."""
    replace_file(
        path, _ROCKETMQ.pack(times.log_ms, times.queues_ms, times.index_ms, 0, 0).ljust(_ROCKETMQ_BYTES, b"\0")
    )
