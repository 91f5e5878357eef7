"""Small files that are replaced atomically, and ignored if damaged."""

import os

import pytest

from sparrow.store.log.key_index.index_file import IndexCheckpoint
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.recovery.checkpoint import Checkpoint, RocketMQCheckpoint, StoreLayout

VALUE = Checkpoint(4711, {"T": {0: 5, 11: 6}}, IndexCheckpoint("20260101000000000", 7))


def test_a_saved_file_is_loaded(tmp_path):
    path = tmp_path / "file"
    assert files.load(path, Checkpoint) is None
    files.save(path, VALUE)
    assert files.load(path, Checkpoint) == VALUE
    files.save(path, Checkpoint(0, {}, None))
    assert files.load(path, Checkpoint) == Checkpoint(0, {}, None)
    assert list(tmp_path.iterdir()) == [path], "no temporary file may remain"


def test_every_damaged_byte_and_every_truncation_is_detected(tmp_path):
    path = tmp_path / "file"
    files.save(path, VALUE)
    sound = path.read_bytes()
    for at in range(len(sound)):
        if at != 8:  # the line end between checksum and value is not checked
            path.write_bytes(sound[:at] + bytes([sound[at] ^ 0x40]) + sound[at + 1 :])
            loaded = files.load(path, Checkpoint)
            assert loaded is None or (at < 8 and loaded == VALUE), at
        path.write_bytes(sound[:at])
        assert files.load(path, Checkpoint) is None, at


@pytest.mark.parametrize("raw", [b"", b"\0" * 100, b"\xff" * 100, b"00000000\n", b"-0000001\n{}"])
def test_arbitrary_bytes_are_ignored(tmp_path, raw):
    path = tmp_path / "file"
    path.write_bytes(raw)
    assert files.load(path, Checkpoint) is None


def test_a_file_of_another_type_is_ignored(tmp_path):
    path = tmp_path / "file"
    files.save(path, StoreLayout(1, 2, 3, 4))
    assert files.load(path, Checkpoint) is None


def test_a_crash_while_saving_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.save(path, VALUE)

    def crash(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError):
        files.save(path, Checkpoint(9, {}, None))
    monkeypatch.undo()
    assert files.load(path, Checkpoint) == VALUE


def test_the_checkpoint_of_rocketmq_has_4096_bytes_of_longs(tmp_path):
    path = tmp_path / "checkpoint"
    assert files.load_rocketmq(path) is None
    times = RocketMQCheckpoint(1_700_000_000_001, 1_700_000_000_002, 1_700_000_000_003)
    files.save_rocketmq(path, times)
    raw = path.read_bytes()
    assert len(raw) == 4096
    assert raw[:24] == b"".join(n.to_bytes(8, "big") for n in (1_700_000_000_001, 1_700_000_000_002, 1_700_000_000_003))
    assert files.load_rocketmq(path) == times
    path.write_bytes(raw[:20])
    assert files.load_rocketmq(path) is None
