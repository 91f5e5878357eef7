"""Scanning the log: valid records, blank records, damage, and the end of the log."""

import pytest

from sparrow.model.message import StoredMessage
from sparrow.model.queue import Queue
from sparrow.store.log.commit_log.commit_log import CommitLog
from sparrow.store.log.commit_log.log_scan import DamagedRange, LogScan, RecordBorder
from sparrow.wire import record

SIZE = 4096
BODY = b"0123456789" * 10


class Log:
    """Valid records in a real log, each of which can be damaged."""

    def __init__(self, folder):
        self.log = CommitLog(folder, SIZE)
        self.starts: list[int] = []
        self.size = len(record.encode_message(StoredMessage(topic="T", body=BODY)))

    def add(self, count: int) -> "Log":
        for _ in range(count):
            segment, at = self.log.allocate(self.size)
            self.log.write(segment, record.encode_message(StoredMessage(topic="T", body=BODY, physical_offset=at)))
            self.starts.append(at)
        return self

    def spoil(self, n: int, at: int = 100, data: bytes = b"\xff") -> None:
        segment = self.log.segment_at(self.starts[n])
        place = self.starts[n] - segment.base + at
        segment.mapping[place : place + len(data)] = data

    def borders(self, after: int, before: int) -> list[RecordBorder]:
        """Return what the entries of a consume queue say."""
        return [RecordBorder(at, self.size, Queue("T", 0), 0) for at in self.starts if after < at < before]

    def scanned(self, start: int = 0, *, has_queues: bool = True) -> tuple[list[int], LogScan]:
        scan = LogScan(self.log.segments, start, **({"borders": self.borders} if has_queues else {}))
        found = [part.segment.base + at for part in scan for at in part.starts.tolist()]
        return found, scan


@pytest.fixture
def written(tmp_path):
    made = Log(tmp_path)
    yield made
    made.log.close()


def test_an_empty_log_ends_where_it_starts(written):
    found, scan = written.scanned()
    assert (found, scan.end, scan.damage) == ([], 0, [])


@pytest.mark.parametrize("count", [1, 20, 21, 22, 50])
def test_all_records_are_found_across_blank_records_and_segments(written, count):
    found, scan = written.add(count).scanned()
    assert (found, scan.end, scan.damage) == (written.starts, written.log.written, [])


def test_a_scan_may_start_at_any_record(written):
    written.add(50)
    for n in (1, 20, 21, 22, 49):
        found, scan = written.scanned(written.starts[n])
        assert (found, scan.end) == (written.starts[n:], written.log.written)
    found, scan = written.scanned(written.log.written)
    assert (found, scan.end) == ([], written.log.written)


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (100, b"\xff"),  # the body
        (4, b"\0\0\0\0"),  # the magic
        (0, b"\0\0\0\1"),  # the size: too small
        (0, b"\x7f\0\0\0"),  # too large
        (0, b"\0\0\1\0"),  # into the middle of the next
        (28, b"\1"),  # the physical offset: a record of another location
        (0, bytes(150)),  # the whole record
    ],
)
@pytest.mark.parametrize("n", [0, 5, 20, 21, 30])
def test_the_next_valid_record_after_a_damaged_one_is_found(written, n, at, data):
    written.add(50)
    written.spoil(n, at, data)
    found, scan = written.scanned()
    assert found == written.starts[:n] + written.starts[n + 1 :]
    (hole,) = scan.damage
    assert hole.start <= written.starts[n]
    assert hole.end == written.starts[n + 1]
    assert scan.end == written.log.written


@pytest.mark.parametrize(("at", "data"), [(100, b"\xff"), (8, b"\xff"), (28, b"\1"), (60, b"\xff")])
def test_without_queues_the_lengths_of_a_damaged_record_show_the_next(written, at, data):
    written.add(50)
    written.spoil(5, at, data)
    found, _ = written.scanned(has_queues=False)
    assert found == [start for start in written.starts if start != written.starts[5] or at == 60]


def test_without_queues_a_lost_header_costs_the_rest_of_the_segment(written):
    """Bytes that look like records may be in the body of the record whose size is lost."""
    written.add(50)
    written.spoil(5, 0, bytes(88))
    found, scan = written.scanned(has_queues=False)
    assert found == written.starts[:5] + [start for start in written.starts if start >= SIZE]
    assert scan.end == written.log.written


def test_adjacent_damage_is_one_range(written):
    written.add(10)
    for n in (3, 4, 5):
        written.spoil(n)
    found, scan = written.scanned()
    assert found == written.starts[:3] + written.starts[6:]
    assert scan.damage == [DamagedRange(written.starts[3], written.starts[6])]


def test_a_torn_tail_is_the_end_and_not_damage(written):
    written.add(10)
    written.spoil(9, 120, bytes(written.size - 120))
    found, scan = written.scanned()
    assert (found, scan.end, scan.damage) == (written.starts[:9], written.starts[9], [])


@pytest.mark.parametrize("place", [7, record.FIXED_HEADER_BYTES])
def test_a_record_in_a_body_is_not_accepted(written, place):
    """A message may contain a record in its body, even with the physical offset at which it lies."""
    inner = record.encode_message(StoredMessage(topic="T", body=b"inner", physical_offset=place))
    segment, at = written.log.allocate(500)
    outer = record.encode_message(StoredMessage(topic="T", body=inner, physical_offset=at))
    written.log.write(segment, outer)
    written.starts.append(at)
    written.add(1)
    written.spoil(0, 4, b"\0")
    found, scan = written.scanned()
    assert found == [written.starts[1]]
    assert scan.damage == [DamagedRange(0, len(outer))]
