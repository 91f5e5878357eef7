"""The commit log: locations of records, segments, and truncation."""

import threading

import pytest

from sparrow.model.errors import StoreFull
from sparrow.store.log.commit_log.commit_log import BLANK_RECORD_BYTES, CommitLog
from sparrow.store.log.commit_log.segment import Segment
from sparrow.wire.record import MAGIC_BLANK

SIZE = 4096


@pytest.fixture
def log(tmp_path):
    log = CommitLog(tmp_path, SIZE)
    yield log
    log.close()


def write(log: CommitLog, size: int, byte: bytes = b"x") -> int:
    segment, at = log.allocate(size)
    log.write(segment, byte * size)
    return at


def blank(rest: int) -> bytes:
    return rest.to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big", signed=True)


def test_an_empty_log_has_no_file_and_starts_at_0(log, tmp_path):
    assert (log.first, log.written, list(tmp_path.iterdir())) == (0, 0, [])
    assert log.raw(0, 100) == b""
    assert log.size_at(0) is None
    assert log.segment_at(0) is None


def test_records_are_contiguous(log):
    assert [write(log, 100), write(log, 50), write(log, 10)] == [0, 100, 150]
    assert log.written == 160


def test_a_record_that_leaves_no_room_for_a_blank_record_goes_to_the_next_segment(log):
    write(log, SIZE - 200)
    assert write(log, 200 - BLANK_RECORD_BYTES) == SIZE - 200, "the record must fit exactly"
    assert write(log, 100) == SIZE
    assert log.raw(SIZE - BLANK_RECORD_BYTES, 100) == blank(BLANK_RECORD_BYTES)


def test_the_rest_of_a_segment_is_a_blank_record_and_counts_as_written(log):
    write(log, SIZE - 200)
    assert write(log, 200 - BLANK_RECORD_BYTES + 1) == SIZE
    assert log.written == SIZE + 193
    assert log.raw(SIZE - 200, 1000) == blank(200) + bytes(192)
    assert [segment.base for segment in log.segments] == [0, SIZE]


def test_raw_bytes_come_from_one_segment_and_end_with_the_log(log):
    write(log, 3000, b"a")
    write(log, 3000, b"b")
    assert log.raw(2990, 10_000) == b"a" * 10 + blank(SIZE - 3000) + bytes(SIZE - 3000 - 8)
    assert log.raw(SIZE, 10_000) == b"b" * 3000
    assert log.raw(SIZE + 2999, 10) == b"b"
    assert log.raw(SIZE + 3000, 10) == b""
    assert log.raw(-1, 10) == b""


def test_free_bytes_are_the_room_in_the_active_segment(log):
    assert log.free_bytes() == 0
    write(log, 100)
    assert log.free_bytes() == SIZE - 100 - BLANK_RECORD_BYTES


def test_the_next_segment_is_prepared_when_the_active_one_is_half_full(log, tmp_path):
    write(log, SIZE // 2)
    log.prepare()
    assert len(list(tmp_path.iterdir())) == 1
    write(log, 91)
    log.prepare()
    log.prepare()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{0:020d}", f"{SIZE:020d}"]
    assert write(log, SIZE // 2) == SIZE
    log.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_an_unused_prepared_segment_is_removed_by_close(log, tmp_path):
    write(log, SIZE // 2 + 1)
    log.prepare()
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == [f"{0:020d}"]


def test_a_segment_created_while_it_is_being_prepared_survives_close(log, tmp_path, monkeypatch):
    """The writer creates the segment that it needs; the late maintenance thread must not remove it as unused."""
    write(log, SIZE // 2 + 1)
    keeper = threading.Thread(target=log.prepare)
    create = Segment.create

    def slowly(directory, base, size):
        made = create(directory, base, size)
        if threading.current_thread() is not keeper:
            keeper.start()
            keeper.join(0.3)  # it has finished by then, or waits for this thread
        return made

    monkeypatch.setattr(Segment, "create", slowly)
    write(log, SIZE // 2, b"b")
    keeper.join()
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir())[:2] == [f"{0:020d}", f"{SIZE:020d}"]
    assert (tmp_path / f"{SIZE:020d}").read_bytes()[:10] == b"b" * 10


@pytest.mark.parametrize("end", [0, 100, 3000, SIZE, SIZE + 100, 2 * SIZE + 50])
def test_truncate_erases_everything_after_the_cut(log, tmp_path, end):
    for _ in range(3):
        write(log, 3000)
    log.prepare()
    log.truncate(end)
    assert log.written == end
    left = b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert left[end:] == bytes(len(left) - end)
    assert write(log, 10, b"y") == end
    assert log.raw(end, 100) == b"y" * 10


def test_whole_segments_are_dropped_but_never_the_last(log):
    for _ in range(3):
        write(log, 3000)
    assert log.drop_before(SIZE - 1) == []
    dropped = log.drop_before(2 * SIZE - 1)
    assert [segment.base for segment in dropped] == [0]
    assert log.first == SIZE
    assert log.segment_at(0) is None
    assert log.raw(0, 10) == b""
    assert [segment.base for segment in log.drop_before(1 << 40)] == [SIZE]
    assert log.first == 2 * SIZE
    assert write(log, 10) == 2 * SIZE + 3000


def test_a_record_size_is_returned_only_if_it_is_plausible(log):
    write(log, 200, b"\0")
    for claimed, believed in [(200, 200), (201, None), (91, 91), (90, None), (-1, None), (0, None)]:
        log.segments[0].mapping[0:4] = claimed.to_bytes(4, "big", signed=True)
        assert log.size_at(0) == believed
    assert log.size_at(110) is None, "no record fits between there and the end"
    assert log.size_at(1 << 40) is None


def test_a_full_disk_refuses_the_next_segment_and_leaves_the_log_unchanged(log, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    write(log, 3000)
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "create", full)
        with pytest.raises(StoreFull):
            log.allocate(3000)
    with pytest.raises(StoreFull):
        log.allocate(3000)  # refused without asking the disk again
    assert (log.written, log.raw(2999, 100)) == (3000, b"x")
    assert write(log, 100) == 3000, "a record that fits must still be accepted"
    log._refuse_until = 0.0
    assert write(log, 3000) == SIZE


# -- reserved segments ------------------------------------------------------------------------------------------------


def test_reserved_segments_are_used_in_order_and_no_others_are_created(log, tmp_path, monkeypatch):
    write(log, 100)
    log.reserve(2)
    assert sorted(int(file.name) for file in tmp_path.iterdir()) == [0, SIZE, 2 * SIZE]
    log.reserve(1)
    log.prepare()
    monkeypatch.setattr(Segment, "create", None)
    assert [write(log, SIZE - 100), write(log, SIZE - 100)] == [SIZE, 2 * SIZE]


def test_an_empty_log_also_reserves_its_first_segment(log, tmp_path):
    log.reserve(2)
    assert [write(log, SIZE - 100), write(log, SIZE - 100)] == [0, SIZE]
    assert len(list(tmp_path.iterdir())) == 2


def test_unused_reserved_segments_are_removed_by_truncate_and_by_close(tmp_path):
    log = CommitLog(tmp_path, SIZE)
    at = write(log, 100)
    log.reserve(3)
    log.truncate(at + 100)
    assert len(list(tmp_path.iterdir())) == 1
    log.reserve(3)
    log.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_is_reported_when_segments_are_reserved(log, monkeypatch):
    write(log, 100)

    def full(*_: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(Segment, "create", full)
    with pytest.raises(StoreFull):
        log.reserve(1)
    with pytest.raises(StoreFull, match="a moment ago"):
        log.reserve(1)
    log.reserve(0)
