"""The consume queue: its entries in memory and in files."""

import os
import tracemalloc

import pytest

from sparrow.model.queue import Queue, QueueBounds
from sparrow.store.log.consume_queues.consume_queue import ENTRY, ENTRY_BYTES, FILLER_SIZE, ConsumeQueue
from sparrow.store.log.consume_queues.queue_table import ConsumeQueueTable
from sparrow.wire.hashes import tags_code

Q = Queue("TopicTest", 1)
PER_FILE = 4


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "TopicTest" / "1"


@pytest.fixture
def queue(folder):
    return ConsumeQueue(Q, folder, PER_FILE)


def fill(queue: ConsumeQueue, count: int) -> None:
    """Message n is at 100 n, has 100 bytes and the tags code -n."""
    for n in range(queue.end, queue.end + count):
        queue.extend(ENTRY.pack(100 * n, 100, -n))
    queue.visible_end = queue.end


def numbers(raw: bytes) -> list[int]:
    return [at // 100 for at, _, _ in ENTRY.iter_unpack(raw)]


def reloaded(queue: ConsumeQueue, log_first: int = 0, log_end: int = 1 << 40) -> ConsumeQueue:
    again = ConsumeQueue(queue.queue, queue.directory, PER_FILE)
    again.load(log_first, log_end)
    return again


def test_an_entry_has_the_20_bytes_of_rocketmq(queue, folder):
    queue.extend(ENTRY.pack(123456, 124, tags_code("TagA")))
    queue.write_out()
    assert (folder / f"{0:020d}").read_bytes()[:20].hex() == "000000000001e2400000007c000000000027a807"


def test_files_have_full_size_and_are_named_by_their_first_byte(queue, folder):
    fill(queue, 2 * PER_FILE + 1)
    queue.write_out()
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert sizes == {f"{n * PER_FILE * 20:020d}": PER_FILE * 20 for n in range(3)}


def test_entries_are_in_no_file_before_write_out(queue, folder):
    fill(queue, 3)
    assert queue.is_dirty
    assert not folder.exists()
    queue.write_out()
    assert not queue.is_dirty
    assert reloaded(queue).end == 3


@pytest.mark.parametrize("written_out", range(12))
def test_entries_are_read_from_several_files_and_from_memory(queue, written_out):
    fill(queue, written_out)
    queue.write_out()
    queue.trim_recent()
    queue.trim_recent()
    fill(queue, 12 - written_out)
    for offset in range(12):
        for count in (1, 2, PER_FILE, 5, 12, 100):
            assert numbers(queue.entries(offset, count)) == list(range(offset, min(12, offset + count)))
    assert queue.entries(12, 5) == b""
    assert queue.physical_offset_at(12) is None
    assert queue.physical_offset_at(11) == 1100


def test_an_idle_queue_releases_its_memory_and_a_busy_one_keeps_its_newest_entries(queue):
    fill(queue, 6)
    queue.write_out()
    queue.trim_recent()
    assert queue.is_recent(0), "the queue grew since the last round"
    queue.trim_recent()
    assert not queue.is_recent(5)
    assert queue.is_recent(6)
    fill(queue, 1)
    queue.trim_recent()
    queue.trim_recent()
    assert queue.is_recent(6), "entries that are not in a file must stay in memory"
    assert numbers(queue.entries(0, 10)) == list(range(7))


def test_a_second_write_out_writes_only_new_entries(queue, folder):
    fill(queue, 3)
    queue.write_out()
    (folder / f"{0:020d}").write_bytes(bytes(PER_FILE * 20))
    fill(queue, 2)
    queue.write_out()
    raw = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    assert numbers(raw)[3:5] == [3, 4]
    assert raw[:60] == bytes(60)


@pytest.mark.parametrize("end", range(12))
def test_a_truncated_queue_keeps_the_entries_below_and_continues_there(queue, end):
    fill(queue, 9)
    queue.write_out()
    queue.trim_recent()
    queue.trim_recent()
    fill(queue, 2)
    queue.cut(end)
    kept = min(end, 11)
    assert queue.bounds == QueueBounds(0, kept)
    assert numbers(queue.entries(0, 100)) == list(range(kept))
    if queue.is_dirty:
        queue.write_out()
    assert reloaded(queue).end == kept
    fill(queue, 3)
    queue.write_out()
    assert numbers(reloaded(queue).entries(0, 100)) == list(range(kept + 3))


def test_entries_that_point_outside_the_log_are_not_loaded(queue):
    fill(queue, 10)
    queue.write_out()
    again = reloaded(queue, log_first=250, log_end=700)
    assert again.bounds == QueueBounds(3, 7)
    assert reloaded(queue, log_first=5000, log_end=6000).bounds == QueueBounds(10, 10)


def test_truncating_the_log_removes_the_entries_beyond_its_end(queue):
    fill(queue, 10)
    queue.truncate(601)
    assert queue.end == 7
    queue.truncate(600)
    assert queue.end == 6


def test_expired_entries_are_out_of_bounds_but_still_stored(queue):
    fill(queue, 6)
    queue.expired_to = 4
    assert queue.bounds == QueueBounds(4, 6)
    assert numbers(queue.entries(0, 6)) == [0, 1, 2, 3, 4, 5]
    queue.cut(2)
    assert queue.bounds == QueueBounds(2, 2)
    fill(queue, 1)
    assert queue.bounds == QueueBounds(2, 3)


def test_a_queue_that_starts_at_a_later_offset_has_fillers_before_it(queue, folder):
    queue.start_at(PER_FILE + 2)
    assert queue.bounds == QueueBounds(6, 6)
    fill(queue, 4)
    queue.write_out()
    assert sorted(path.name for path in folder.iterdir()) == [f"{n * PER_FILE * 20:020d}" for n in (1, 2)]
    first = (folder / f"{PER_FILE * 20:020d}").read_bytes()
    assert first[: 2 * ENTRY_BYTES] == ENTRY.pack(0, FILLER_SIZE, 0) * 2
    again = reloaded(queue, log_first=600)
    assert again.bounds == QueueBounds(6, 10)
    assert again.is_sound()


def test_the_partition_point_is_the_first_entry_that_fails_the_predicate(queue):
    fill(queue, 11)
    queue.write_out()
    for point in range(11):
        assert queue.partition_point(0, 11, lambda at, _, n=point: at < 100 * n) == point
    assert queue.partition_point(0, 11, lambda _at, size: size == 100) == 11
    assert queue.partition_point(4, 4, lambda *_: True) == 4


def test_files_without_messages_are_deleted_but_never_the_last(queue, folder):
    fill(queue, 2 * PER_FILE)
    queue.write_out()
    queue.drop_files_before(399)
    assert (queue.first, len(list(folder.iterdir()))) == (4, 1)
    queue.drop_files_before(1 << 40)
    assert (queue.bounds, len(list(folder.iterdir()))) == (QueueBounds(8, 8), 1)
    assert reloaded(queue, log_first=1 << 39).bounds == QueueBounds(8, 8)


@pytest.mark.parametrize(
    ("at", "junk"), [(5, b"\xff" * 20), (5, bytes(20)), (5, ENTRY.pack(450, 100, 0)), (7, ENTRY.pack(100, 100, 0))]
)
def test_invalid_entries_are_detected(queue, folder, at, junk):
    fill(queue, 8)
    queue.write_out()
    assert reloaded(queue).is_sound()
    path = folder / f"{PER_FILE * 20:020d}"
    with open(path, "r+b") as file:
        file.seek((at - PER_FILE) * ENTRY_BYTES)
        file.write(junk)
    again = reloaded(queue)
    assert again.end != 8 or not again.is_sound()


def test_a_partial_write_is_continued(queue, monkeypatch):
    fill(queue, 6)
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:7], at))
    queue.write_out()
    monkeypatch.undo()
    assert numbers(reloaded(queue).entries(0, 10)) == list(range(6))


def test_a_failed_write_loses_no_entry_and_can_be_repeated(queue, monkeypatch):
    fill(queue, 6)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError):
            queue.write_out()
    assert queue.is_dirty
    queue.write_out()
    assert numbers(reloaded(queue).entries(0, 10)) == list(range(6))


def test_ten_thousand_idle_queues_take_little_memory(tmp_path):
    queues = ConsumeQueueTable(tmp_path, 300_000)
    tracemalloc.start()
    for n in range(10_000):
        queues.get_or_create(Queue("T", n)).extend(ENTRY.pack(0, 100, 0))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / 10_000 < 2_000, "a queue must use less than 2,000 bytes"
    assert len(os.listdir(tmp_path)) == 0
