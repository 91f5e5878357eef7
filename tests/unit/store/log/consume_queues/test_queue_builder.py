"""Building consume queues from raw log data: entries, fillers, and refused records."""

import numpy as np
import pytest

from sparrow.model.delay_levels import DELAY_LEVELS_MS
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import PROPERTY_TAGS, SCHEDULE_TOPIC
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.store.log.consume_queues.consume_queue import ENTRY, FILLER_SIZE
from sparrow.store.log.consume_queues.queue_builder import QueueBuilder
from sparrow.store.log.consume_queues.queue_table import ConsumeQueueTable
from sparrow.store.log.state.updates import STATE_QUEUE, GroupUpdate, StateUpdate, TopicUpdate, encode_updates
from sparrow.wire import columns, record
from sparrow.wire.hashes import tags_code

A, B = Queue("A", 0), Queue("B", 0)


class RawLog:
    """The bytes of a segment that starts at `base`, and the queues built from its records."""

    def __init__(self, folder, base: int = 0) -> None:
        self.folder, self.base = folder, base
        self.data = bytearray()
        self.starts: list[int] = []
        self.queues = ConsumeQueueTable(folder / "consumequeue", 8)
        self.builder = self.new_dispatcher()

    def new_dispatcher(self) -> QueueBuilder:
        return QueueBuilder(self.queues.get, self.queues.get_or_create, self.queues.drop_topic, log_first=self.base)

    def add(self, queue: Queue, offset: int, **more: object) -> int:
        """Append a record and return its physical offset."""
        at = self.base + len(self.data)
        topic, queue_id = queue
        more = {"body": b"body", **more}
        message = StoredMessage(topic=topic, queue_id=queue_id, queue_offset=offset, physical_offset=at, **more)
        self.starts.append(len(self.data))
        self.data += record.encode_message(message)
        return at

    def add_all(self, queue: Queue, offsets) -> list[int]:
        return [self.add(queue, offset) for offset in offsets]

    def say(self, *words: StateUpdate, offset: int = 0) -> int:
        ((_, body),) = encode_updates(words)
        return self.add(STATE_QUEUE, offset, body=body)

    def file(self, first: int = 0, stop: int | None = None) -> None:
        """Build queues from the records `first` to `stop`."""
        starts = np.array(self.starts[first:stop], np.int64)
        self.builder.add(columns.LogRecords.locate(bytes(self.data), starts), self.base)

    def entries(self, queue: Queue) -> list[tuple[int, int, int]]:
        found = self.queues.get(queue)
        return [] if found is None else list(ENTRY.iter_unpack(found.entries(found.first, found.end - found.first)))

    def places(self, queue: Queue) -> list[int | None]:
        """Return the physical offsets of the queue's messages; None for a filler."""
        return [None if size == FILLER_SIZE else at for at, size, _ in self.entries(queue)]

    @property
    def refused(self) -> list[int]:
        return self.builder.refused


@pytest.fixture
def raw(tmp_path):
    return RawLog(tmp_path)


# -- entries ----------------------------------------------------------------------------------------------------------


def test_records_of_several_queues_go_to_their_queues_in_log_order(raw):
    queues = [A, Queue("A", 1), Queue("A", 300), B]
    wanted = {queue: [] for queue in queues}
    for offset in range(5):
        for queue in queues if offset % 2 else reversed(queues):
            wanted[queue].append(raw.add(queue, offset))
    raw.file()
    assert {queue.queue: raw.places(queue.queue) for queue in raw.queues} == wanted
    assert raw.refused == []


def test_an_entry_has_the_location_size_and_tags_code(raw):
    at = raw.add(A, 0, properties={PROPERTY_TAGS: "TagA"})
    end = raw.add(A, 1)
    raw.file()
    assert raw.entries(A) == [(at, end - at, tags_code("TagA")), (end, len(raw.data) - end, 0)]


def test_locations_count_from_the_start_of_the_log_and_not_of_the_segment(tmp_path):
    raw = RawLog(tmp_path, base=1 << 30)
    places = raw.add_all(A, range(3))
    raw.file()
    assert raw.places(A) == places
    assert places[0] == 1 << 30


def test_no_records_create_no_queue(raw):
    raw.file()
    assert list(raw.queues) == []


def test_building_in_parts_gives_the_same_entries_as_building_at_once(raw):
    places = [(raw.add(A, n), raw.add(B, n)) for n in range(6)]
    for n in range(0, 12, 5):
        raw.file(n, n + 5)
    assert raw.places(A) == [at for at, _ in places]
    assert raw.places(B) == [at for _, at in places]


def test_building_twice_changes_nothing(raw):
    raw.add_all(A, range(4))
    raw.add_all(B, [0, 1, 3])
    raw.file()
    once = raw.entries(A), raw.entries(B)
    for first, stop in ((0, None), (2, 5), (3, 4)):
        raw.file(first, stop)
        assert (raw.entries(A), raw.entries(B)) == once
    raw.builder = raw.new_dispatcher()
    raw.file()
    assert (raw.entries(A), raw.entries(B), raw.refused) == (*once, [])


def test_only_the_missing_part_of_partly_indexed_records_is_added(raw):
    places = raw.add_all(A, range(6))
    raw.file(0, 3)
    raw.file(1, 6)
    assert (raw.places(A), raw.refused) == (places, [])


@pytest.mark.parametrize("sys_flag", [record.TRANSACTION_PREPARED, record.TRANSACTION_ROLLED_BACK])
def test_half_messages_and_rollbacks_get_no_entry_and_leave_no_gap(raw, sys_flag):
    first = raw.add(A, 0)
    raw.add(A, 0, sys_flag=sys_flag)
    raw.add(B, 0, sys_flag=sys_flag)
    second = raw.add(A, 1, sys_flag=record.TRANSACTION_COMMITTED)
    raw.file()
    assert (raw.places(A), raw.refused) == ([first, second], [])
    assert raw.queues.get(B) is None


def test_half_messages_alone_create_no_queue(raw):
    raw.add(A, 0, sys_flag=record.TRANSACTION_PREPARED)
    raw.file()
    assert list(raw.queues) == []


def test_entries_of_delay_queues_hold_the_delivery_time_instead_of_the_tags_code(raw):
    levels = [Queue(SCHEDULE_TOPIC, 2), Queue(SCHEDULE_TOPIC, 0)]
    for n in range(3):
        for level in levels:
            raw.add(level, n, store_ms=1_700_000_000_000 + n, properties={PROPERTY_TAGS: "TagA"})
    raw.add(Queue(SCHEDULE_TOPIC, 18), 0, properties={PROPERTY_TAGS: "TagA"})
    raw.file()
    for level in levels:
        due = [code for _, _, code in raw.entries(level)]
        assert due == [1_700_000_000_000 + n + DELAY_LEVELS_MS[level.id] for n in range(3)]
    assert [code for _, _, code in raw.entries(Queue(SCHEDULE_TOPIC, 18))] == [tags_code("TagA")]


# -- missing records --------------------------------------------------------------------------------------------------


def test_fillers_replace_missing_records_and_point_to_the_next_one(raw):
    raw.add_all(A, range(6))
    sizes = np.diff([*raw.starts, len(raw.data)]).tolist()
    places, raw.starts = raw.starts, [raw.starts[n] for n in (0, 3, 5)]
    raw.file()
    filler = FILLER_SIZE, 0
    assert raw.entries(A) == [
        (places[0], sizes[0], 0),
        (places[3], *filler),
        (places[3], *filler),
        (places[3], sizes[3], 0),
        (places[5], *filler),
        (places[5], sizes[5], 0),
    ]
    assert raw.refused == []


def test_a_queue_whose_first_records_are_missing_still_starts_at_0(raw):
    raw.add_all(B, range(3))
    at = raw.add(A, 2)
    raw.file()
    assert raw.places(A) == [None, None, at]
    assert raw.queues.get(A).first == 0


def test_records_missing_between_two_parts_become_fillers(raw):
    places = raw.add_all(A, range(6))
    raw.file(0, 2)
    raw.file(4, 6)
    assert raw.places(A) == [*places[:2], None, None, *places[4:]]


def test_records_deleted_by_retention_are_not_missing(tmp_path):
    raw = RawLog(tmp_path, base=4096)
    places = raw.add_all(A, [700, 701, 702])
    raw.file()
    queue = raw.queues.get(A)
    assert (queue.first, queue.end, raw.places(A)) == (700, 703, places)
    assert raw.refused == []


def test_records_missing_after_the_deleted_ones_become_fillers(tmp_path):
    raw = RawLog(tmp_path, base=4096)
    places = raw.add_all(A, range(700, 704))
    del raw.starts[1]
    raw.file()
    assert raw.places(A) == [places[0], None, *places[2:]]
    assert raw.queues.get(A).first == 700


# -- invalid records --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, 1, 3, 7, 1000, (1 << 63) - 1])
@pytest.mark.parametrize("base", [0, 1 << 20])
def test_a_record_with_a_jumping_offset_is_refused_and_its_neighbours_stay(tmp_path, wrong, base):
    raw = RawLog(tmp_path, base)
    offsets = [*range(5), wrong, *range(6, 10)]
    places = raw.add_all(A, offsets)
    raw.file()
    assert raw.places(A) == [*places[:5], None, *places[6:]]
    assert raw.refused == [places[5]]


def test_a_first_record_with_a_jumping_offset_is_refused(raw):
    places = raw.add_all(A, [1 << 40, 1, 2, 3])
    raw.file()
    assert raw.places(A) == [None, *places[1:]]
    assert raw.refused == places[:1]


def test_an_offset_that_is_too_high_for_the_size_of_the_log_is_refused(raw):
    """No later record contradicts it, but that many records cannot be missing in so few bytes."""
    places = raw.add_all(A, [0, 1, 2, 1 << 50])
    raw.file()
    assert (raw.places(A), raw.refused) == (places[:3], places[3:])
    places.append(raw.add(A, 3))
    raw.file(4)
    assert raw.places(A) == [*places[:3], places[4]]


@pytest.mark.parametrize("wrong", [(900, 800), (800, 900), (0, 1), (1, 0)])
def test_two_jumps_are_both_refused(raw, wrong):
    places = raw.add_all(A, [0, 1, 2, wrong[0], 4, wrong[1], 6, 7, 8])
    raw.file()
    assert raw.places(A) == [*places[:3], None, places[4], None, *places[6:]]
    assert sorted(raw.refused) == [places[3], places[5]]


def test_one_of_two_records_with_the_same_offset_is_refused(raw):
    places = raw.add_all(A, [0, 1, 2, 2, 4, 5])
    raw.file()
    assert raw.places(A) in ([*places[:2], at, None, *places[4:]] for at in places[2:4])
    assert len(raw.refused) == 1


def test_a_jump_in_one_queue_does_not_affect_another(raw):
    for n in range(4):
        raw.add(A, 1 << 60 if n == 1 else n)
        raw.add(B, n)
    raw.file()
    assert None not in raw.places(B)
    assert len(raw.places(B)) == 4
    assert len(raw.refused) == 1


@pytest.mark.parametrize(
    "queue",
    [
        *(Queue(name, 0) for name in ("../outside", "..", ".", "/outside", "a/b", "", "a b", "a\0b", "ü")),
        Queue("A", -1),
        Queue("A", -(1 << 31)),
        Queue(SCHEDULE_TOPIC, -1),
    ],
)
def test_a_record_with_an_invalid_queue_is_refused_and_no_file_outside_the_directory_changes(tmp_path, queue):
    raw = RawLog(tmp_path / "store" / "deep")
    first = raw.add(A, 0)
    wrong = raw.add_all(queue, range(2))
    second = raw.add(A, 1)
    raw.file()
    for found in raw.queues:
        found.write_out()
    assert raw.places(A) == [first, second]
    assert raw.refused == wrong
    folder = raw.queues.directory
    made = {path for path in tmp_path.rglob("*") if not folder.is_relative_to(path)}
    assert made == {folder / "A", folder / "A" / "0", folder / "A" / "0" / f"{0:020d}"}


# -- deletion of topics -----------------------------------------------------------------------------------------------


@pytest.fixture
def with_deletion(raw):
    """A and B have messages; A is deleted and created again; both get more."""
    raw.say(TopicUpdate("A", Topic(name="A")))
    raw.add_all(A, range(2))
    raw.add_all(Queue("A", 1), range(2))
    raw.before = raw.add_all(B, range(2))
    raw.say(GroupUpdate("g", None), TopicUpdate("A", None), offset=1)
    raw.say(TopicUpdate("A", Topic(name="A")), offset=2)
    raw.after = raw.add_all(A, range(3))
    raw.before.append(raw.add(B, 2))
    return raw


def test_a_deletion_drops_earlier_entries_and_keeps_later_ones(with_deletion):
    raw = with_deletion
    raw.file()
    assert raw.places(A) == raw.after
    assert raw.queues.get(Queue("A", 1)) is None
    assert raw.places(B) == raw.before
    assert len(raw.places(STATE_QUEUE)) == 3
    assert raw.refused == []


def test_a_deletion_works_for_any_split_of_the_log(tmp_path, with_deletion):
    for cut in range(1, len(with_deletion.starts)):
        raw = RawLog(tmp_path / f"{cut}")
        raw.data, raw.starts = with_deletion.data, with_deletion.starts
        raw.file(0, cut)
        raw.file(cut)
        assert (raw.places(A), raw.places(B)) == (with_deletion.after, with_deletion.before)
        assert (len(raw.places(STATE_QUEUE)), raw.refused) == (3, [])


def test_building_a_deletion_twice_changes_nothing(with_deletion):
    raw = with_deletion
    raw.file()
    once = raw.entries(A), raw.entries(B), raw.entries(STATE_QUEUE)
    raw.file()
    assert (raw.entries(A), raw.entries(B), raw.entries(STATE_QUEUE)) == once


def test_a_deletion_removes_the_files_of_the_queue(raw):
    raw.add(A, 0)
    raw.file()
    raw.queues.get(A).write_out()
    folder = raw.queues.get(A).directory
    assert folder.is_dir()
    raw.say(TopicUpdate("A", None))
    raw.file(1)
    assert raw.queues.get(A) is None
    assert not folder.exists()


def test_one_record_may_delete_several_topics(raw):
    raw.add(A, 0)
    raw.add(B, 0)
    at = raw.add(Queue("C", 0), 0)
    raw.say(TopicUpdate("A", None), TopicUpdate("B", None), TopicUpdate("../C", None))
    raw.file()
    assert [queue.queue.topic for queue in raw.queues] == ["C", STATE_QUEUE.topic]
    assert raw.places(Queue("C", 0)) == [at]


def test_an_unreadable_state_record_deletes_nothing_and_is_logged(raw, caplog):
    at = raw.add(A, 0)
    raw.add(STATE_QUEUE, 0, body=b'[{"type":"topic","name":"A"')
    raw.file()
    assert raw.places(A) == [at]
    assert "a state record cannot be read and is skipped" in caplog.text


def test_a_state_record_in_another_topic_deletes_nothing(raw):
    at = raw.add(A, 0)
    ((_, body),) = encode_updates([TopicUpdate("A", None)])
    raw.add(B, 0, body=body)
    raw.file()
    assert raw.places(A) == [at]
