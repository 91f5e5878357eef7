"""Log stores with tiny files, so that every file rolls, and copies of them as a crash leaves them."""

import shutil
from pathlib import Path

import msgspec

from sparrow.settings import LogSettings
from sparrow.store.log import LogStore
from sparrow.store.log.state.tables import EncodedStateSnapshot, StateSnapshot

SMALL_SETTINGS = LogSettings(
    segment_bytes=4096,
    queue_file_entries=8,
    index_slots=8,
    index_entries=16,
    message_bytes_max=2048,
    warm_bytes=0,
    flush_interval_ms=5,
    # No background checkpoints or state records during a test.
    checkpoint_interval_ms=3_600_000,
    offset_flush_interval_ms=3_600_000,
    disk_clean_ratio=1,
    disk_force_ratio=1,
    disk_refuse_ratio=1,
)


def loaded(snapshot: EncodedStateSnapshot) -> StateSnapshot:
    """Return a snapshot as it is read from its file."""
    return msgspec.json.decode(msgspec.json.encode(snapshot), type=StateSnapshot)


def small_settings(**changes: object) -> LogSettings:
    return SMALL_SETTINGS.model_copy(update=changes)


def copy_as_crashed(store: LogStore, to: Path) -> Path:
    """Copy the files as a kill would leave them at this moment. The store itself continues; the caller closes it."""
    with store._threads.paused(), store._writer.lock:
        shutil.copytree(store.path, to)
    return to


def checkpoint(store: LogStore) -> None:
    """Write a checkpoint, as the store's own thread does; never at the same time."""
    with store._threads.maintenance.paused():
        store._maintenance.checkpoint()


def index_keys(store: LogStore) -> None:
    """Index the keys that wait in memory, as the store's own thread does; never at the same time."""
    with store._threads.maintenance.paused():
        store._maintenance.catch_up_key_index()


def overwrite(path: Path, at: int, data: bytes) -> None:
    """Change some bytes of a file, as disk corruption would."""
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def segment_path(store_path: Path, base: int) -> Path:
    return store_path / "commitlog" / f"{base:020d}"


def corrupt_log(store_path: Path, physical_offset: int, segment_bytes: int, data: bytes = b"\xff") -> None:
    """Overwrite a byte of the log, in the segment that holds it."""
    base = physical_offset - physical_offset % segment_bytes
    overwrite(segment_path(store_path, base), physical_offset - base, data)
