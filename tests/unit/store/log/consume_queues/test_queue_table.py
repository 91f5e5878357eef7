"""The table of all consume queues: created, loaded from disk, and dropped."""

import errno
import os

import pytest

from sparrow.model.queue import Queue, QueueBounds
from sparrow.store.log.consume_queues.consume_queue import ENTRY, ConsumeQueue
from sparrow.store.log.consume_queues.queue_table import ConsumeQueueTable
from sparrow.store.log.state.updates import STATE_QUEUE

A0, A1, B0 = Queue("A", 0), Queue("A", 1), Queue("B", 0)
PER_FILE = 4
END = 1 << 40


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "consumequeue"


@pytest.fixture
def queues(folder):
    return ConsumeQueueTable(folder, PER_FILE)


def fill(queue: ConsumeQueue, count: int) -> None:
    """Message n is at 100 n and has 100 bytes."""
    for n in range(queue.end, queue.end + count):
        queue.extend(ENTRY.pack(100 * n, 100, 0))
    queue.visible_end = queue.end
    queue.write_out()


@pytest.fixture
def filled(queues):
    for queue, count in ((A0, 3), (A1, 9), (B0, 1)):
        fill(queues.get_or_create(queue), count)
    return queues


def names(queues: ConsumeQueueTable) -> list[Queue]:
    return sorted(queue.queue for queue in queues)


def test_a_queue_is_created_once(queues):
    made = queues.get_or_create(A0)
    assert queues.get_or_create(A0) is queues.get(A0) is made
    assert (made.queue, made.bounds) == (A0, QueueBounds(0, 0))


def test_looking_up_a_queue_does_not_create_it(queues, folder):
    assert queues.get(A0) is None
    assert list(queues) == []
    assert not folder.exists()


def test_a_queue_without_messages_has_no_files(queues, folder):
    queues.get_or_create(A0)
    assert not folder.exists()


def test_a_queue_has_the_path_of_rocketmq(filled, folder):
    assert (folder / "A" / "1" / f"{PER_FILE * 20:020d}").is_file()
    assert (folder / "B" / "0" / f"{0:020d}").is_file()


@pytest.mark.parametrize("topic", ["", ".", "..", "../A", "a/b", "/A", "a b"])
def test_a_topic_that_is_not_a_valid_folder_name_is_an_assertion_error(queues, topic):
    with pytest.raises(AssertionError):
        queues.get_or_create(Queue(topic, 0))
    assert list(queues) == []


def test_only_the_state_queue_is_internal(queues):
    assert queues.get_or_create(STATE_QUEUE).is_internal
    assert not queues.get_or_create(A0).is_internal


def test_queues_may_be_created_and_dropped_during_iteration(filled):
    seen = []
    for number, queue in enumerate(filled):
        seen.append(queue.queue)
        filled.get_or_create(Queue("New", number))
        filled.drop(queue)
    assert seen == [A0, A1, B0]
    assert names(filled) == [Queue("New", number) for number in range(3)]


def test_ends_lists_the_queues_that_ever_had_a_message(filled):
    filled.get_or_create(Queue("Empty", 0))
    filled.get_or_create(Queue("Emptied", 2)).start_at(7)
    assert filled.ends() == {"A": {0: 3, 1: 9}, "B": {0: 1}, "Emptied": {2: 7}}


def test_dead_letter_topics_are_recognised_by_their_prefix(queues):
    for topic in ("%DLQ%g", "%RETRY%g", "DLQ", "a%DLQ%"):
        queues.get_or_create(Queue(topic, 0))
    assert [queue.queue.topic for queue in queues.dead_letter_queues()] == ["%DLQ%g"]


# -- on disk ----------------------------------------------------------------------------------------------------------


def test_queues_are_loaded_from_disk_with_their_entries(filled, folder):
    again = ConsumeQueueTable(folder, PER_FILE)
    again.load(0, END)
    assert again.ends() == filled.ends()
    for queue in filled:
        assert again.get(queue.queue).entries(0, 100) == queue.entries(0, 100)
        assert again.get(queue.queue).bounds == queue.bounds


@pytest.mark.parametrize("likely", [None, {}, {"A": {0: 3, 1: 9}}, {"A": {0: 1, 1: 1000}, "Gone": {5: 5}}])
def test_a_wrong_hint_of_queue_ends_changes_nothing(filled, folder, likely):
    again = ConsumeQueueTable(folder, PER_FILE)
    again.load(0, END, likely)
    assert again.ends() == filled.ends()


def test_only_entries_that_point_into_the_log_are_loaded(filled, folder):
    again = ConsumeQueueTable(folder, PER_FILE)
    again.load(200, 500)
    assert {queue.queue: queue.bounds for queue in again} == {
        A0: QueueBounds(2, 3),
        A1: QueueBounds(2, 5),
        B0: QueueBounds(1, 1),
    }


def test_a_missing_folder_holds_no_queues(queues):
    queues.load(0, END)
    assert list(queues) == []


def test_other_files_and_folders_are_left_alone(filled, folder):
    (folder / "a b" / "0").mkdir(parents=True)
    (folder / "A" / "x").mkdir()
    (folder / "A" / "-1").mkdir()
    (folder / "lost+found").mkdir()
    (folder / "notes").write_text("mine")
    again = ConsumeQueueTable(folder, PER_FILE)
    again.load(0, END)
    assert names(again) == [A0, A1, B0]
    again.clear()
    assert (folder / "notes").read_text() == "mine"
    assert (folder / "A" / "x").is_dir()


# -- dropping ---------------------------------------------------------------------------------------------------------


def test_dropping_a_topic_drops_all_its_queues_and_no_others(filled, folder):
    held = filled.get(A1)
    assert [queue.queue for queue in filled.of_topic("A")] == [A0, A1]
    filled.drop_topic("A")
    assert names(filled) == [B0]
    assert filled.of_topic("A") == []
    assert held.is_deleted
    assert not filled.get(B0).is_deleted
    assert not (folder / "A" / "0").exists()
    assert not (folder / "A" / "1").exists()
    assert (folder / "B" / "0").is_dir()


def test_dropping_an_unknown_topic_is_no_error(filled):
    filled.drop_topic("Unknown")
    assert len(names(filled)) == 3


def test_a_dropped_queue_is_created_empty_again(filled):
    filled.drop(filled.get(A1))
    again = filled.get_or_create(A1)
    assert (again.bounds, again.is_deleted) == (QueueBounds(0, 0), False)
    fill(again, 1)
    assert len(again.entries(0, 100)) == ENTRY.size


def test_a_dropped_queue_writes_no_more_files(filled):
    queue = filled.get(A0)
    queue.extend(ENTRY.pack(300, 100, 0))
    filled.drop(queue)
    assert not queue.is_dirty
    assert not queue.directory.exists()


def test_clear_removes_everything_from_memory_and_disk(filled, folder):
    filled.clear()
    assert list(filled) == []
    assert filled.get(A0) is None
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    filled.load(0, END)
    assert list(filled) == []


def test_a_file_that_could_not_be_synced_is_synced_by_the_next_checkpoint(queues, monkeypatch):
    queue = queues.get_or_create(A0)
    fill(queue, 1)
    synced: list[str] = []
    failing = [OSError(errno.EIO, "a failing disk")]

    def sync(descriptor: int) -> None:
        if failing:
            raise failing.pop()
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fdatasync", sync)
    with pytest.raises(OSError, match="a failing disk"):
        queues.sync()
    queues.sync()
    queues.sync()  # nothing is left
    assert synced == [str(queue.directory / f"{0:020d}")]
