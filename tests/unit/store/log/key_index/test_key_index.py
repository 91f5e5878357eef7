"""The key index: RocketMQ's format, hash chains, full files, truncation and damage."""

import struct

import numpy as np
import pytest

from sparrow.store.log.key_index.index_file import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    IndexCheckpoint,
    IndexFile,
)
from sparrow.store.log.key_index.key_index import KeyIndex
from sparrow.wire.hashes import index_hash

NOW_MS = 1_700_000_000_000
EVER = (0, 1 << 62)


def put(index, *entries: tuple[int, int, int]) -> None:
    """Each entry is (hash, physical offset, seconds since `NOW_MS`)."""
    hashes, offsets, seconds = zip(*entries, strict=True)
    index.put(np.array(hashes, np.int32), np.array(offsets, np.int64), NOW_MS + 1000 * np.array(seconds, np.int64))


@pytest.fixture
def index(tmp_path):
    index = KeyIndex(tmp_path / "index", slots=3, entries=5)
    index.load(None, trust=True)
    yield index
    index.close()


def reloaded(index: KeyIndex) -> KeyIndex:
    index.close()
    index.load(None, trust=True)
    return index


def test_the_published_vector_is_stored_at_the_positions_of_rocketmq(tmp_path):
    assert index_hash("TopicTest", "ORDER_1") == 1_111_208_162
    file = IndexFile(tmp_path / "20231114221320000", 5_000_000, 20_000_000)
    file.open_for_writing()
    assert file.path.stat().st_size == 420_000_040
    put(file, (1_111_208_162, 123_456, 0))
    put(file, (7, 200_000, 1), (1_111_208_162, 300_000, 2))
    file.write_slots()
    with open(file.path, "rb") as raw:
        assert struct.unpack(">qqqqii", raw.read(40)) == (NOW_MS, NOW_MS + 2000, 123_456, 300_000, 2, 4)
        raw.seek(4_832_688)
        assert raw.read(4) == (3).to_bytes(4, "big")
        raw.seek(40 + 20_000_000 + 20)
        assert struct.unpack(">iqii", raw.read(20)) == (1_111_208_162, 123_456, 0, 0)
        assert struct.unpack(">iqii", raw.read(20)) == (7, 200_000, 1, 0)
        assert struct.unpack(">iqii", raw.read(20)) == (1_111_208_162, 300_000, 2, 1)
    file.close()


def test_a_file_is_named_by_its_creation_time_and_later_ones_sort_after_it(index):
    for n in range(12):
        put(index, (n, 100 * n, 0))
    names = [file.path.name for file in index.files]
    assert len(names) == 3
    assert all(len(name) == 17 and name.isdigit() for name in names)
    assert names == sorted(set(names))


def test_a_chain_runs_from_the_newest_to_the_oldest_entry(index):
    put(index, (1, 100, 0), (4, 200, 0), (1, 300, 0))
    put(index, (7, 400, 0))
    assert index.candidates(1, *EVER, 10) == [300, 100]
    assert index.candidates(1, *EVER, 1) == [300]
    assert [index.candidates(key, *EVER, 10) for key in (4, 7, 10, 2)] == [[200], [400], [], []]
    (file,) = index.files
    assert file.read(1, 4)["previous"].tolist() == [0, 1, 2, 3], "1, 4 and 7 share a slot"


@pytest.mark.parametrize("step", [1, 2, 3, 7, 20])
def test_the_size_of_the_parts_does_not_change_the_index(index, step):
    entries = [(n % 4, 100 * n, n) for n in range(20)]
    for at in range(0, 20, step):
        put(index, *entries[at : at + step])
    for found in (index, reloaded(index)):
        for key in range(4):
            assert found.candidates(key, *EVER, 100) == [100 * n for n in range(19, -1, -1) if n % 4 == key]


def test_a_full_file_is_followed_by_another_and_both_are_searched(index):
    put(index, *((1, 100 * n, n) for n in range(6)))
    assert [file.count for file in index.files] == [5, 3]
    assert index.candidates(1, *EVER, 100) == [500, 400, 300, 200, 100, 0]
    assert index.candidates(1, *EVER, 3) == [500, 400, 300]


def test_the_keys_of_one_record_stay_in_one_file(index):
    put(index, (1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 100, 0), (5, 100, 0), (6, 100, 0))
    assert [file.read(1, file.count - 1)["physical_offset"].tolist() for file in index.files] == [[0] * 3, [100] * 3]
    assert index.end_offset == 100


@pytest.mark.timeout(10)
def test_a_record_with_more_keys_than_a_file_holds_is_still_indexed(index):
    put(index, *((n, 100, 0) for n in range(9)))
    assert [index.candidates(n, *EVER, 10) for n in range(9)] == [[100]] * 9


def test_entries_are_found_by_time_in_whole_seconds(index):
    put(index, *((1, 100 * n, 10 * n) for n in range(4)))
    assert index.candidates(1, NOW_MS + 10_000, NOW_MS + 20_000, 10) == [200, 100]
    assert index.candidates(1, NOW_MS + 10_999, NOW_MS + 19_999, 10) == [100]
    assert index.candidates(1, NOW_MS + 31_000, 1 << 62, 10) == []
    assert index.candidates(1, 0, NOW_MS - 1, 10) == []


def test_times_that_do_not_fit_are_clamped(index):
    put(index, (1, 0, 0), (1, 100, -50), (1, 200, 1 << 40))
    assert index.files[0].read(1, 3)["seconds"].tolist() == [0, 0, 2**31 - 1]


def test_the_last_indexed_time_and_offset_are_known(index):
    assert (index.end_offset, index.last_ms) == (-1, 0)
    put(index, *((1, 100 * n, n) for n in range(7)))
    for found in (index, reloaded(index)):
        assert (found.end_offset, found.last_ms) == (600, NOW_MS + 6000)


@pytest.mark.parametrize("log_end", [0, 1, 100, 101, 300, 350, 400, 500, 900, 5000])
def test_truncating_the_log_removes_the_entries_beyond_its_end(index, log_end):
    put(index, *((n % 2, 100 * n, n) for n in range(10)))
    index.truncate(log_end)
    kept = [n for n in range(10) if 100 * n < log_end]
    for found in (index, reloaded(index)):
        for key in (0, 1):
            assert found.candidates(key, *EVER, 100) == [100 * n for n in reversed(kept) if n % 2 == key]
        assert found.end_offset == (100 * kept[-1] if kept else -1)
    put(index, *((0, 10_000 + n, 20) for n in range(6)))
    assert index.candidates(0, NOW_MS + 20_000, 1 << 62, 100) == [10_000 + n for n in range(5, -1, -1)]


def test_after_a_crash_only_entries_before_the_checkpoint_are_kept(index):
    put(index, *((1, 100 * n, n) for n in range(6)))
    mark = index.mark()
    assert mark == IndexCheckpoint(index.files[1].path.name, 3)
    put(index, *((1, 100 * n, n) for n in range(6, 12)))
    index.load(mark, trust=False)
    assert index.candidates(1, *EVER, 100) == [500, 400, 300, 200, 100, 0]
    put(index, *((1, 100 * n, n) for n in range(6, 9)))
    assert index.candidates(1, *EVER, 100) == [100 * n for n in range(8, -1, -1)]
    index.load(None, trust=False)
    assert list(index.directory.iterdir()) == []


@pytest.mark.parametrize("previous", [1, 2, 3, 4, -1, 2**31 - 1])
def test_a_circular_chain_ends(index, previous):
    put(index, *((1, 100 * n, n) for n in range(4)))
    (file,) = index.files
    entry = np.array([(1, 100, 1, previous)], INDEX_ENTRY)
    with open(file.path, "r+b") as raw:
        raw.seek(INDEX_HEADER_BYTES + 4 * 3 + 2 * INDEX_ENTRY_BYTES)
        raw.write(entry.tobytes())
    assert index.candidates(1, *EVER, 100)[:2] == [300, 200]


@pytest.mark.parametrize("slot", [-1, 5, 100, 2**31 - 1])
def test_a_slot_with_an_invalid_position_finds_nothing(index, slot):
    put(index, *((1, 100 * n, n) for n in range(4)))
    index.close()
    (path,) = index.directory.iterdir()
    with open(path, "r+b") as raw:
        raw.seek(INDEX_HEADER_BYTES + 4)
        raw.write(slot.to_bytes(4, "big", signed=True))
    index.load(None, trust=True)
    assert index.candidates(1, *EVER, 100) == []


def test_files_without_records_are_deleted_but_never_the_newest(index):
    put(index, *((1, 100 * n, n) for n in range(10)))
    index.drop_files_before(300)
    assert len(index.files) == 3
    index.drop_files_before(301)
    assert len(index.files) == 2
    index.drop_files_before(1 << 40)
    assert len(index.files) == len(list(index.directory.iterdir())) == 1


def test_a_partial_write_on_a_full_disk_is_not_counted(index, monkeypatch):
    put(index, (1, 0, 0))
    import os

    pwrite = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:10], at))
        with pytest.raises(OSError):
            put(index, (1, 100, 0))
    assert index.candidates(1, *EVER, 10) == [0]
    put(index, (1, 100, 0))
    assert index.candidates(1, *EVER, 10) == [100, 0]
