"""Segments: single files of the commit log."""

import pytest

from sparrow.store.log.commit_log.segment import Segment, segment_name


def test_a_segment_is_named_by_its_first_byte_and_has_its_full_size_from_the_start(tmp_path):
    segment = Segment.create(tmp_path, 1_073_741_824, 8192)
    assert segment.path.name == segment_name(1_073_741_824) == "00000000001073741824"
    assert (segment.path.stat().st_size, segment.end) == (8192, 1_073_741_824 + 8192)
    assert segment.path.stat().st_blocks * 512 >= 8192, "blocks must be allocated before they are written"
    assert segment.pread(0, 8192) == bytes(8192)


def test_data_written_to_the_mapping_is_read_from_the_file(tmp_path):
    segment = Segment.create(tmp_path, 0, 4096)
    segment.mapping[10:15] = b"hello"
    segment.sync()
    assert segment.pread(10, 5) == b"hello"
    assert bytes(segment.view[10:15]) == b"hello"
    assert segment.path.read_bytes()[10:15] == b"hello"


def test_a_truncated_segment_is_extended_with_zeros(tmp_path):
    path = tmp_path / segment_name(4096)
    path.write_bytes(b"abc")
    segment = Segment.open(path, 4096)
    assert segment.base == 4096
    assert segment.pread(0, 4096) == b"abc" + bytes(4093)


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 5000, 8192])
def test_erasing_writes_zeros_to_the_end_and_keeps_the_size(tmp_path, at):
    segment = Segment.create(tmp_path, 0, 8192)
    segment.mapping[:] = b"x" * 8192
    segment.erase_from(at)
    assert segment.pread(0, 8192) == b"x" * at + bytes(8192 - at)
    assert bytes(segment.view) == b"x" * at + bytes(8192 - at)
    assert segment.path.stat().st_blocks * 512 >= 8192, "a mapped write must not meet a full disk"


def test_a_view_stays_valid_after_its_segment_is_deleted_and_closed(tmp_path):
    segment = Segment.create(tmp_path, 0, 4096)
    segment.mapping[0:5] = b"hello"
    view = segment.view[0:5]
    segment.delete()
    segment.close()
    segment.close()
    assert not segment.path.exists()
    assert bytes(view) == b"hello"
