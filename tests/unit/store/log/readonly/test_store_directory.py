"""A store directory is read in place, in any state of its files."""

import os
import pickle
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.support.drafts import make_draft
from tests.support.log_stores import (
    checkpoint,
    copy_as_crashed,
    corrupt_log,
    overwrite,
    segment_path,
    small_settings,
)

from sparrow.model import Queue
from sparrow.model.errors import DataLost, Refused
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore
from sparrow.store.log.consume_queues.consume_queue import ENTRY, FILLER_SIZE
from sparrow.store.log.readonly import readonly_log
from sparrow.store.log.readonly.store_directory import SegmentRecords, StoreDirectory
from sparrow.store.log.state.updates import TopicUpdate
from sparrow.wire import record
from sparrow.wire.hashes import tags_code

QUEUE = Queue("orders", 0)
SETTINGS = small_settings()


@pytest.fixture
async def store(tmp_path: Path) -> Iterator[LogStore]:
    async with LogStore(tmp_path / "store", SETTINGS) as opened:
        await opened.catalog.put_topic(Topic(name="orders"))
        yield opened


def fill(store: LogStore, count: int, *, queues: int = 1, body_bytes: int = 100) -> None:
    for number in range(count):
        body = str(number).ljust(body_bytes)
        store.append_nowait(Queue("orders", number % queues), [make_draft(body, tags=f"t{number % 3}")])


def records(parts: Iterator[SegmentRecords]) -> list[bytes]:
    return [
        bytes(part.view[start : start + size])
        for part in parts
        for start, size in zip(part.starts.tolist(), part.sizes.tolist(), strict=True)
    ]


def offsets(parts: Iterator[SegmentRecords]) -> list[int]:
    return [record.decode(data).queue_offset for data in records(parts)]


def bodies(parts: Iterator[SegmentRecords]) -> list[str]:
    return [record.decode(data).body.decode().strip() for data in records(parts)]


def test_a_path_that_is_not_a_store_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not a store directory"):
        StoreDirectory(tmp_path)
    with pytest.raises(Refused, match="not a store directory"):
        StoreDirectory(tmp_path / "nothing")


@pytest.mark.parametrize("other", ["batchconsumequeue/orders/0", "consumequeue_rocksdb", "consumequeue/CURRENT"])
def test_other_consume_queue_formats_are_refused(tmp_path: Path, other: str) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / other).mkdir(parents=True)
    with pytest.raises(Refused, match="plain consume queues"):
        StoreDirectory(tmp_path)


def test_an_empty_store_has_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    directory = StoreDirectory(tmp_path)
    assert directory.topics() == []
    assert directory.bounds("orders") == {}
    assert directory.physical_bounds() == (0, 0)
    assert directory.mean_bytes(QUEUE) == directory.offset_at(QUEUE, 0) == 0
    assert directory.first_physical_offset(QUEUE) is None
    with pytest.raises(Refused, match="has no queue"):
        directory.read(QUEUE, 0, 1, rows_max=1)


async def test_reading_writes_nothing_and_takes_no_lock(store: LogStore, tmp_path: Path) -> None:
    fill(store, 60)
    copy = copy_as_crashed(store, tmp_path / "copy")
    (copy / "lock").unlink()
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in copy.rglob("*")}
    directory = StoreDirectory(copy)
    assert len(records(directory.read(QUEUE, 0, 60, rows_max=7))) == 60
    assert len(records(directory.scan(*directory.physical_bounds(), rows_max=7))) == 61
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in copy.rglob("*")} == before


async def test_a_pickled_directory_contains_only_its_path(store: LogStore) -> None:
    fill(store, 3)
    directory = pickle.loads(pickle.dumps(StoreDirectory(str(store.path))))
    assert directory.bounds("orders") == {0: (0, 3)}


async def test_parts_hold_a_limited_number_of_rows_of_one_segment(store: LogStore) -> None:
    fill(store, 60)
    parts = list(StoreDirectory(store.path).read(QUEUE, 5, 55, rows_max=8))
    assert max(len(part.starts) for part in parts) == 8
    assert parts[0].first_offset == 5
    assert parts[-1].next_offset == 55
    assert all(before.next_offset == after.first_offset for before, after in pairwise(parts))
    assert all(len(part.view) == SETTINGS.segment_bytes for part in parts)
    assert all((np.diff(part.starts) > 0).all() for part in parts)
    assert offsets(iter(parts)) == list(range(5, 55))


async def test_entries_missing_from_files_are_read_from_the_log(store: LogStore, tmp_path: Path) -> None:
    fill(store, 20)
    checkpoint(store)
    fill(store, 20)
    copy = copy_as_crashed(store, tmp_path / "copy")
    for path in (copy / "consumequeue/orders/0").iterdir():
        if int(path.name) >= 20 * 20:
            path.unlink()  # if it exists: the maintenance thread may not have written it
    directory = StoreDirectory(copy)
    assert directory.bounds("orders") == {0: (0, 40)}
    assert offsets(directory.read(QUEUE, 0, 40, rows_max=100)) == list(range(40))


async def test_entries_from_the_log_have_the_same_tags_codes_as_those_in_files(store: LogStore, tmp_path: Path) -> None:
    fill(store, 30)
    code = frozenset([tags_code("t1")])
    copy = copy_as_crashed(store, tmp_path / "copy")
    for path in (copy / "consumequeue/orders/0").glob("*"):
        path.unlink()
    for path in (store.path, copy):
        directory = StoreDirectory(path)
        assert directory.bounds("orders") == {0: (0, 30)}
        assert offsets(directory.read(QUEUE, 0, 30, rows_max=4, tags_codes=code)) == list(range(1, 30, 3))


async def test_a_torn_tail_is_the_end(store: LogStore, tmp_path: Path) -> None:
    fill(store, 10)
    (last,) = store.append_nowait(QUEUE, [make_draft("torn")]).physical_offsets
    copy = copy_as_crashed(store, tmp_path / "copy")
    corrupt_log(copy, last, SETTINGS.segment_bytes, bytes(8))
    directory = StoreDirectory(copy)
    assert directory.bounds("orders") == {0: (0, 10)}
    assert directory.physical_bounds()[1] == last
    assert len(records(directory.scan(0, last + 1000, rows_max=100))) == 11


async def test_a_new_object_sees_later_messages(store: LogStore) -> None:
    for count in range(1, 40):
        fill(store, 1)
        directory = StoreDirectory(store.path)
        assert directory.bounds("orders") == {0: (0, count)}
        assert directory.physical_bounds() == (0, store.written)


class _WritesFirst(readonly_log.ReadonlySegment):
    """A segment that runs a callback before its first read."""

    __slots__ = ("before",)

    @property
    def view(self) -> memoryview:
        if (before := self.before) is not None:
            self.before = None
            before()
        return super().view


async def test_a_writer_during_the_scan_leaves_no_gap(store: LogStore) -> None:
    """The writer fills the rest of a segment that was read already, and continues in the next, which was not."""
    fill(store, 12)
    store._log.prepare()
    directory = StoreDirectory(store.path)
    _, following = directory._log.segments
    late = _WritesFirst(following.path, following.base, following.size)
    late.before = lambda: fill(store, 20)
    directory._log.adopt([directory._log.segments[0], late], late.end)
    assert store.written < following.base
    assert directory.bounds("orders") == {0: (0, 32)}
    assert offsets(directory.read(QUEUE, 0, 32, rows_max=100)) == list(range(32))


async def test_a_checkpoint_between_two_reads_changes_nothing(store: LogStore) -> None:
    fill(store, 10)
    assert StoreDirectory(store.path).bounds("orders") == {0: (0, 10)}
    checkpoint(store)
    fill(store, 30)
    assert StoreDirectory(store.path).bounds("orders") == {0: (0, 40)}
    assert offsets(StoreDirectory(store.path).read(QUEUE, 0, 40, rows_max=100)) == list(range(40))


async def test_a_topic_deleted_in_the_log_is_gone_although_its_files_exist(store: LogStore, tmp_path: Path) -> None:
    fill(store, 10)
    checkpoint(store)
    store._state.append([TopicUpdate("orders", None)])
    copy = copy_as_crashed(store, tmp_path / "copy")
    assert "orders" not in StoreDirectory(copy).topics()
    assert StoreDirectory(copy).bounds("orders") == {}
    store._state.append([TopicUpdate("orders", Topic(name="orders"))])


async def test_a_topic_created_again_starts_at_offset_0(store: LogStore) -> None:
    fill(store, 10)
    assert StoreDirectory(store.path).bounds("orders") == {0: (0, 10)}
    await store.catalog.delete_topic("orders")
    await store.catalog.put_topic(Topic(name="orders"))
    appended = store.append_nowait(QUEUE, [make_draft("new"), make_draft("newer")])
    directory = StoreDirectory(store.path)
    assert directory.bounds("orders") == {0: (0, 2)}
    assert bodies(directory.read(QUEUE, 0, 2, rows_max=9)) == ["new", "newer"]
    assert directory.first_physical_offset(QUEUE) == appended.physical_offsets[0]


async def test_adjacent_ranges_of_the_log_give_every_record_once(store: LogStore) -> None:
    fill(store, 60, queues=3)
    directory = StoreDirectory(store.path)
    first, end = directory.physical_bounds()
    whole = records(directory.scan(first, end, rows_max=1000))
    assert len(whole) == 61
    for step in (61, 250, 1000, 4096):
        parts = [part for at in range(first, end, step) for part in directory.scan(at, min(at + step, end), rows_max=4)]
        assert records(iter(parts)) == whole
        assert max(len(part.starts) for part in parts) <= 4


async def test_half_messages_and_rollbacks_are_not_scanned(store: LogStore) -> None:
    store.append_nowait(
        QUEUE, [make_draft("shown"), make_draft("half", sys_flag=4), make_draft("rolled back", sys_flag=12)]
    )
    store.append_nowait(QUEUE, [make_draft("shown too")])
    directory = StoreDirectory(store.path)
    found = bodies(directory.scan(*directory.physical_bounds(), rows_max=100))
    assert found[1:] == ["shown", "shown too"]  # after the state record of the topic
    assert directory.bounds("orders") == {0: (0, 2)}


async def test_a_damaged_record_is_skipped(store: LogStore, tmp_path: Path) -> None:
    fill(store, 30)
    checkpoint(store)
    copy = copy_as_crashed(store, tmp_path / "copy")
    place = record.decode(records(StoreDirectory(copy).read(QUEUE, 7, 8, rows_max=1))[0]).physical_offset
    corrupt_log(copy, place, SETTINGS.segment_bytes, bytes(40))
    directory = StoreDirectory(copy)
    assert offsets(directory.read(QUEUE, 0, 30, rows_max=100)) == [*range(7), *range(8, 30)]
    assert len(records(directory.scan(*directory.physical_bounds(), rows_max=100))) == 30


@pytest.mark.parametrize("place", [-5, 0, 300, 4000, 1 << 40])
async def test_a_damaged_entry_loses_only_its_own_record(store: LogStore, tmp_path: Path, place: int) -> None:
    fill(store, 60)
    checkpoint(store)
    copy = copy_as_crashed(store, tmp_path / "copy")
    overwrite(copy / "consumequeue/orders/0" / f"{24 * 20:020d}", 3 * 20, ENTRY.pack(place, 200, 0))
    assert offsets(StoreDirectory(copy).read(QUEUE, 20, 60, rows_max=100)) == [*range(20, 27), *range(28, 60)]


async def test_a_truncated_segment_is_read_up_to_its_end(store: LogStore, tmp_path: Path) -> None:
    fill(store, 60)
    checkpoint(store)
    copy = copy_as_crashed(store, tmp_path / "copy")
    in_first = len(records(StoreDirectory(copy).scan(0, 2000, rows_max=100))) - 2
    os.truncate(segment_path(copy, 0), 2000)
    found = offsets(StoreDirectory(copy).read(QUEUE, 0, 60, rows_max=100))
    assert found[:in_first] == list(range(in_first))
    assert found[in_first:] == list(range(60 - len(found) + in_first, 60))
    assert in_first < len(found) < 60


async def test_a_missing_segment_between_others_is_data_lost(store: LogStore, tmp_path: Path) -> None:
    fill(store, 80)
    checkpoint(store)
    copy = copy_as_crashed(store, tmp_path / "copy")
    segment_path(copy, 4096).unlink()
    with pytest.raises(DataLost) as caught:
        list(StoreDirectory(copy).read(QUEUE, 0, 80, rows_max=100))
    assert 0 < caught.value.asked < caught.value.first < 80
    asked, first = caught.value.asked, caught.value.first
    assert offsets(StoreDirectory(copy).read(QUEUE, 0, asked, rows_max=100)) == list(range(asked))
    assert offsets(StoreDirectory(copy).read(QUEUE, first, 80, rows_max=100)) == list(range(first, 80))
    with pytest.raises(DataLost):
        list(StoreDirectory(copy).scan(0, 9000, rows_max=100))


async def test_reading_beyond_the_bounds_is_refused(store: LogStore) -> None:
    fill(store, 3)
    with pytest.raises(Refused, match="ends at 3"):
        StoreDirectory(store.path).read(QUEUE, 0, 4, rows_max=1)


async def test_a_segment_deleted_while_reading_is_data_lost(store: LogStore, tmp_path: Path) -> None:
    fill(store, 60)
    checkpoint(store)
    copy = copy_as_crashed(store, tmp_path / "copy")
    directory = StoreDirectory(copy)
    assert directory.bounds("orders") == {0: (0, 60)}
    segment_path(copy, 0).unlink()
    with pytest.raises(DataLost) as caught:
        list(directory.read(QUEUE, 0, 60, rows_max=100))
    assert caught.value.asked == 0
    kept = StoreDirectory(copy).bounds("orders")[0]
    assert 0 < kept.first == caught.value.first < 60
    with pytest.raises(DataLost):
        StoreDirectory(copy).read(QUEUE, 0, 60, rows_max=100)
    assert offsets(StoreDirectory(copy).read(QUEUE, *kept, rows_max=100)) == list(range(*kept))
    with pytest.raises(DataLost):
        list(directory.scan(0, 5000, rows_max=1))
    with pytest.raises(DataLost):
        list(StoreDirectory(copy).scan(0, 5000, rows_max=1))


async def test_a_queue_file_deleted_while_reading_is_data_lost(store: LogStore, tmp_path: Path) -> None:
    fill(store, 60)
    checkpoint(store)
    copy = copy_as_crashed(store, tmp_path / "copy")
    directory = StoreDirectory(copy)
    assert directory.bounds("orders") == {0: (0, 60)}
    (copy / "consumequeue/orders/0" / f"{0:020d}").unlink()
    with pytest.raises(DataLost):
        list(directory.read(QUEUE, 0, 60, rows_max=100))


async def test_fillers_are_skipped(store: LogStore, tmp_path: Path) -> None:
    fill(store, 16)
    checkpoint(store)
    copy = copy_as_crashed(store, tmp_path / "copy")
    overwrite(copy / "consumequeue/orders/0" / f"{0:020d}", 3 * 20, ENTRY.pack(500, FILLER_SIZE, 0))
    assert offsets(StoreDirectory(copy).read(QUEUE, 0, 16, rows_max=100)) == [0, 1, 2, *range(4, 16)]


async def test_entries_with_filter_bitmaps_cannot_be_filtered_by_tag(store: LogStore, tmp_path: Path) -> None:
    fill(store, 16)
    checkpoint(store)
    copy = copy_as_crashed(store, tmp_path / "copy")
    overwrite(
        copy / "consumequeue/orders/0" / f"{0:020d}", 3 * 20 + 12, (-(1 << 63) + 100).to_bytes(8, "big", signed=True)
    )
    assert len(records(StoreDirectory(copy).read(QUEUE, 0, 16, rows_max=100))) == 16
    with pytest.raises(Refused, match="filter bitmaps"):
        list(StoreDirectory(copy).read(QUEUE, 0, 16, rows_max=100, tags_codes=frozenset([1])))


async def test_the_mean_size_is_that_of_the_newest_messages(store: LogStore) -> None:
    fill(store, 5, body_bytes=100)
    (size,) = {len(data) for data in records(StoreDirectory(store.path).read(QUEUE, 0, 5, rows_max=9))}
    assert StoreDirectory(store.path).mean_bytes(QUEUE) == size
    assert StoreDirectory(store.path).mean_bytes(Queue("orders", 5)) == 0


async def test_the_number_of_cached_mappings_is_limited(store: LogStore) -> None:
    fill(store, 500)
    directory = StoreDirectory(store.path)
    assert len(records(directory.scan(*directory.physical_bounds(), rows_max=100))) == 501
    assert len(list((store.path / "commitlog").iterdir())) > readonly_log._MAPPINGS_MAX
    assert len(readonly_log._mappings) == readonly_log._MAPPINGS_MAX


async def test_a_new_file_with_the_same_name_is_mapped_again(store: LogStore, tmp_path: Path) -> None:
    place = store.append_nowait(QUEUE, [make_draft("first", flag=1)]).physical_offsets[0]
    copy = copy_as_crashed(store, tmp_path / "copy")

    def flags() -> list[int]:
        return [record.decode(data).flag for data in records(StoreDirectory(copy).read(QUEUE, 0, 1, rows_max=9))]

    assert flags() == [1]
    shutil.copy(segment_path(copy, 0), tmp_path / "other")
    overwrite(tmp_path / "other", place + 16, b"\0\0\0\2")
    (tmp_path / "other").rename(segment_path(copy, 0))
    assert flags() == [2]
