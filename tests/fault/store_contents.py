"""Served messages and log records of a store, for tests that damage one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sparrow.model.errors import ProtocolError
from sparrow.model.queue import Queue
from sparrow.settings import KIB, LogSettings
from sparrow.store.log import LogStore
from sparrow.store.log.state.updates import STATE_QUEUE
from sparrow.store.spi import AtEnd, Moved, Slice
from sparrow.wire import record

HOUR_MS = 3_600_000

SMALL_SETTINGS = LogSettings(
    segment_bytes=16 * KIB,
    queue_file_entries=32,
    index_slots=61,
    index_entries=4096,
    warm_bytes=0,
    # No background work: a test decides itself when a checkpoint is written.
    checkpoint_interval_ms=HOUR_MS,
    offset_flush_interval_ms=HOUR_MS,
)


class Place(NamedTuple):
    queue: Queue
    offset: int


class AppendedRecord(NamedTuple):
    """An appended record: its location and its bytes."""

    place: Place
    physical_offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.physical_offset + len(self.data)


def open_store(path: Path, settings: LogSettings = SMALL_SETTINGS) -> LogStore:
    """Open the store, with the disk-space check disabled."""
    return LogStore(path, settings, disk_ratio=lambda _: 0.1)


async def read_served(store: LogStore, queues: Iterable[Queue]) -> dict[Place, bytes]:
    """Return every record of these queues by the place at which it was read. Each read must make progress."""
    found: dict[Place, bytes] = {}
    for queue in queues:
        offset = 0
        while True:
            result = await store.read(queue, offset, count_max=100)
            if isinstance(result, AtEnd):
                break
            if isinstance(result, Moved):
                assert result.to > offset, f"a reader of {queue} at {offset} is moved back to {result.to}"
                offset = result.to
                continue
            assert result.next_offset > offset, f"a reader of {queue} makes no progress at {offset}"
            if len(result.sizes) == result.next_offset - offset:
                for data in _split_records(result):
                    found[Place(queue, offset)] = data
                    offset += 1
            else:
                # A record is missing here: read one by one, so that each record's place is the requested one.
                for each in range(offset, result.next_offset):
                    one = await store.read(queue, each, count_max=1)
                    assert isinstance(one, Slice)
                    for data in _split_records(one):
                        found[Place(queue, each)] = data
                offset = result.next_offset
    return found


def _split_records(result: Slice) -> Iterator[bytes]:
    data, at = result.tobytes(), 0
    for size in result.sizes:
        yield data[at : at + size]
        at += size
    assert at == len(data), "the sizes of a slice must add up to its bytes"


def stated_place(data: bytes) -> Place | None:
    """Return the place that a record's own bytes state, or None for an unreadable record."""
    try:
        message = record.decode(data, expand=False)
    except ProtocolError:
        return None
    return Place(message.queue, message.queue_offset)


def assert_records_match_places(found: dict[Place, bytes], *, except_at: Iterable[Place] = ()) -> None:
    """Assert that each served record can be decoded and states the place at which it was read."""
    for place in found.keys() - set(except_at):
        assert stated_place(found[place]) == place, f"the record read at {place} states another place"


def assert_same_records(
    found: dict[Place, bytes], expected: dict[Place, bytes], *, except_at: Iterable[Place] = ()
) -> None:
    """Assert that exactly these records are served, byte for byte, except at the places to be ignored.

    The store may have appended state records when it was opened.
    """
    if found == expected:
        return
    places = (found.keys() | expected.keys()) - set(except_at)
    missing = sorted(place for place in places if place not in found)
    added = sorted(place for place in places if place not in expected and place.queue != STATE_QUEUE)
    assert not missing, f"{len(missing)} records are missing, the first is {missing[0]}"
    assert not added, f"{len(added)} records were never appended, the first is {added[0]}"
    changed = [place for place in places if place in expected and found[place] != expected[place]]
    assert not changed, f"{len(changed)} records differ, the first is {changed[0]}"


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A folder in memory: a test of this kind opens thousands of stores."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="sparrow-", dir=memory if memory.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
