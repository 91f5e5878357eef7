"""State of topics, groups and offsets, rebuilt from the state records of the log."""

import logging
import shutil
import stat
from contextlib import contextmanager

import msgspec
import pytest
from tests.support.drafts import make_draft
from tests.support.log_stores import SMALL_SETTINGS, corrupt_log

from sparrow.model.errors import IllegalName, Refused, StoreFull, UnknownTopic
from sparrow.model.message import LOOPBACK_HOST, Draft
from sparrow.model.queue import Queue, QueueBounds
from sparrow.model.topic import Group, Topic
from sparrow.store.log.append.writer import LogWriter
from sparrow.store.log.reader import LogReader
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.recovery.recovery import recover
from sparrow.store.log.state.group_offsets import LogGroupOffsets
from sparrow.store.log.state.state_store import StateStore
from sparrow.store.log.state.tables import StateSnapshot
from sparrow.store.log.state.updates import STATE_QUEUE, GroupUpdate, OffsetsUpdate, QueueEndsUpdate, TopicUpdate
from sparrow.wire import record

TOPICS = {name: Topic(name=name, read_queues=n) for n, name in enumerate("ABC", 1)}
A0, A1 = Queue("A", 0), Queue("A", 1)


async def no_wait(_: int) -> None:
    """Do not wait until the log is durable."""


class Parts:
    """The open files of a store and its state store; there is no checkpoint, so views are rebuilt from the log."""

    def __init__(self, path) -> None:
        self.path = path
        found = recover(path, SMALL_SETTINGS)
        self.log, self.queues = found.log, found.queues
        self.writer = LogWriter(
            found.log,
            store_host=record.pack_host(LOOPBACK_HOST),
            message_bytes_max=SMALL_SETTINGS.message_bytes_max,
            visible_after="written",
            now_ms=lambda: 1,
            on_growth=None,
        )
        reader = LogReader(found.log, hot_bytes=1 << 20, checked_from=found.checked_from)
        self.memory = StateStore(path, found.queues, self.writer, reader, found.seal, lambda: 1)
        self.state = self.memory.tables
        self.offsets = LogGroupOffsets(self.memory, self.writer.lock, no_wait)

    def append(self, queue: Queue, *bodies: bytes | str) -> int:
        """Append messages and return the physical offset of the first."""
        return self.writer.append(
            self.queues.get_or_create(queue), [make_draft(body) for body in bodies]
        ).physical_offsets[0]

    def append_sealed(self, body: bytes) -> None:
        """Append a state record with any body."""
        queue, seal = self.queues.get_or_create(STATE_QUEUE), self.memory.seal
        at = self.writer.allocate(queue, Draft(body=body, properties=seal.properties(body, 0, 0)))
        self.writer.append(queue, [Draft(body=body, properties=seal.properties(body, at, queue.end))])

    def say(self, *words) -> int:
        """Append state updates and return the physical offset of their record."""
        self.memory.append(list(words))
        return self.queues.get(STATE_QUEUE).physical_offset_at(self.queues.get(STATE_QUEUE).end - 1)

    def say_topic(self, name: str) -> int:
        return self.say(TopicUpdate(name, TOPICS[name]))


@contextmanager
def opened(path):
    """Open the store and rebuild its state."""
    parts = Parts(path)
    try:
        parts.memory.reload()
        yield parts
    finally:
        parts.log.close()


def known(path) -> set[str]:
    with opened(path) as parts:
        return set(parts.state.topics)


# -- rebuilding -------------------------------------------------------------------------------------------------------


def test_a_new_store_is_empty_and_writes_no_record(tmp_path):
    with opened(tmp_path) as parts:
        assert (parts.state.topics, parts.state.groups, parts.state.offsets) == ({}, {}, {})
        assert (list(parts.queues), parts.log.written) == ([], 0)


def test_all_state_is_rebuilt_from_state_records_alone(tmp_path):
    with opened(tmp_path) as parts:
        parts.say_topic("A")
        parts.say(TopicUpdate("B", TOPICS["B"]), GroupUpdate("g", Group(name="g", retries_max=3)))
        parts.say(OffsetsUpdate("A", "g", {0: 5, 1: 7}), TopicUpdate("B", None))
    assert not (tmp_path / files.STATE_SNAPSHOT_FILE).exists()
    with opened(tmp_path) as parts:
        assert parts.state.topics == {"A": TOPICS["A"]}
        assert parts.state.groups == {"g": Group(name="g", retries_max=3)}
        assert parts.offsets.committed_nowait("g", A0) == 5
        assert parts.offsets.committed_nowait("g", A1) == 7
        assert parts.offsets.committed_nowait("g", Queue("A", 2)) is None
        assert parts.offsets.committed_nowait("other", A0) is None


def test_only_records_after_the_snapshot_are_replayed(tmp_path):
    """The records before the snapshot are damaged in the log: their state must come from the snapshot."""
    with opened(tmp_path) as parts:
        at = parts.say_topic("A")
        parts.memory.snapshot()
        parts.say_topic("B")
        parts.say(OffsetsUpdate("A", "g", {0: 5}))
    corrupt_log(tmp_path, at + record.FIXED_HEADER_BYTES, SMALL_SETTINGS.segment_bytes)
    with opened(tmp_path) as parts:
        assert parts.state.topics == {"A": TOPICS["A"], "B": TOPICS["B"]}
        assert parts.offsets.committed_nowait("g", A0) == 5
    (tmp_path / files.STATE_SNAPSHOT_FILE).unlink()
    assert known(tmp_path) == {"B"}


def test_records_after_a_snapshot_override_it(tmp_path):
    with opened(tmp_path) as parts:
        parts.say_topic("A")
        parts.say_topic("B")
        parts.memory.snapshot()
        parts.say(TopicUpdate("A", None), TopicUpdate("B", Topic(name="B", permission=4)))
    with opened(tmp_path) as parts:
        assert parts.state.topics == {"B": Topic(name="B", permission=4)}


@pytest.mark.parametrize("too_far", ["next_offset", "log_end"])
def test_a_snapshot_of_a_longer_log_is_ignored(tmp_path, too_far):
    with opened(tmp_path) as parts:
        parts.say_topic("A")
        here = {"next_offset": 1, "log_end": int(parts.log.written)}
    words = [(0, TopicUpdate("C", TOPICS["C"]))]
    files.save(tmp_path / files.STATE_SNAPSHOT_FILE, StateSnapshot(**here, words=words))
    assert known(tmp_path) == {"C"}
    files.save(tmp_path / files.STATE_SNAPSHOT_FILE, StateSnapshot(**{**here, too_far: here[too_far] + 1}, words=words))
    assert known(tmp_path) == {"A"}


def test_a_damaged_snapshot_is_ignored(tmp_path):
    with opened(tmp_path) as parts:
        parts.say_topic("A")
        parts.memory.snapshot()
    snapshot = tmp_path / files.STATE_SNAPSHOT_FILE
    snapshot.write_bytes(snapshot.read_bytes().replace(b'"A"', b'"Z"'))
    assert known(tmp_path) == {"A"}


def test_a_snapshot_is_written_only_if_the_state_changed(tmp_path):
    with opened(tmp_path) as parts:
        parts.memory.snapshot()
        assert not (tmp_path / files.STATE_SNAPSHOT_FILE).exists()
        parts.say_topic("A")
        parts.memory.snapshot()
        made = (tmp_path / files.STATE_SNAPSHOT_FILE).stat().st_ino
        parts.memory.snapshot()
        assert (tmp_path / files.STATE_SNAPSHOT_FILE).stat().st_ino == made


def test_a_reload_replays_nothing_twice_and_drops_unflushed_commits(tmp_path):
    with opened(tmp_path) as parts:
        parts.say_topic("A")
        parts.offsets.commit_nowait("g", A0, 3)
        end = parts.log.written
        parts.memory.reload()
        assert set(parts.state.topics) == {"A"}
        assert parts.offsets.committed_nowait("g", A0) is None
        assert parts.log.written == end


@pytest.mark.parametrize("body", [b"", b"not words", b'[{"type":"unheard of"}]', b"\xff"])
def test_an_unreadable_state_record_is_skipped_and_logged(tmp_path, caplog, body):
    with opened(tmp_path) as parts:
        parts.say_topic("A")
        parts.append_sealed(body)
        parts.say_topic("B")
    caplog.clear()
    assert known(tmp_path) == {"A", "B"}
    ours = [entry for entry in caplog.records if entry.name == "sparrow.store.log.state.state_store"]
    assert [entry.levelno for entry in ours] == [logging.ERROR]
    assert ours[0].message.startswith("a state record cannot be read and is skipped: ")


def test_a_state_record_without_the_digest_of_the_store_is_not_believed(tmp_path, caplog):
    with opened(tmp_path) as parts:
        parts.say_topic("A")
        body = msgspec.json.encode([TopicUpdate("forged", Topic(name="forged"))])
        parts.append(STATE_QUEUE, body)
        at = parts.writer.log.written
        digest = parts.memory.seal.properties(body, at + 1, parts.queues.get(STATE_QUEUE).end)  # of another place
        parts.writer.append(parts.queues.get(STATE_QUEUE), [Draft(body=body, properties=digest)])
        parts.say_topic("B")
        assert parts.memory._updates_at(parts.queues.get(STATE_QUEUE), 1) == []
    assert known(tmp_path) == {"A", "B"}
    assert "is not sealed by this store" in caplog.text


def test_state_of_an_older_version_has_no_digest_and_is_believed(tmp_path):
    with opened(tmp_path) as parts:
        parts.append(STATE_QUEUE, msgspec.json.encode([TopicUpdate("old", Topic(name="old"))]))
        assert not (tmp_path / files.KEY_FILE).exists()
    with opened(tmp_path) as parts:
        assert "old" in parts.state.topics
        parts.say_topic("A")
        assert stat.S_IMODE((tmp_path / files.KEY_FILE).stat().st_mode) == 0o600
        parts.append(STATE_QUEUE, msgspec.json.encode([TopicUpdate("forged", Topic(name="forged"))]))
    assert known(tmp_path) == {"old", "A"}


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_lost_key_is_taken_from_the_log(tmp_path, is_damaged):
    with opened(tmp_path) as parts:
        parts.say_topic("A")
        key = parts.memory.seal.key
    if is_damaged:
        (tmp_path / files.KEY_FILE).write_bytes(b"damaged")
    else:
        (tmp_path / files.KEY_FILE).unlink()
    with opened(tmp_path) as parts:
        assert parts.state.topics.keys() == {"A"}
        assert parts.memory.seal.key == key
        parts.say_topic("B")
    assert known(tmp_path) == {"A", "B"}


def test_a_lost_state_record_is_skipped_and_logged(tmp_path, caplog):
    with opened(tmp_path) as parts:
        parts.say_topic("A")
        at = parts.say_topic("C")
        parts.say_topic("B")
    corrupt_log(tmp_path, at + record.FIXED_HEADER_BYTES, SMALL_SETTINGS.segment_bytes)
    assert known(tmp_path) == {"A", "B"}
    assert "state record 1 at physical offset unknown is lost; it is skipped" in caplog.messages


# -- queues without a topic, and queues without messages ---------------------------------------------------------------


def test_topics_known_only_by_their_queues_are_created_again_and_recorded(tmp_path, caplog):
    with opened(tmp_path) as parts:
        parts.say_topic("A")
        parts.append(A0, "a")
        parts.append(Queue("Forgotten", 0), "x")
        parts.append(Queue("Forgotten", 5), "x")
    caplog.clear()
    with opened(tmp_path) as parts:
        forgotten = Topic(name="Forgotten", read_queues=6, write_queues=6)
        assert parts.state.topics == {"A": TOPICS["A"], "Forgotten": forgotten}
        assert "topics ['Forgotten'] are created for queues that have none" in caplog.messages
        end = parts.log.written
    caplog.clear()
    with opened(tmp_path) as parts:
        assert parts.state.topics["Forgotten"] == forgotten
        assert parts.log.written == end
        assert "are created for queues that have none" not in caplog.text


def test_a_queue_without_topic_and_messages_is_dropped(tmp_path):
    with opened(tmp_path) as parts:
        parts.say_topic("A")
        parts.queues.get_or_create(A0)
        parts.queues.get_or_create(Queue("Nobodys", 0))
        parts.memory.reload()
        assert [queue.queue for queue in parts.queues] == [STATE_QUEUE, A0]
        assert set(parts.state.topics) == {"A"}


@pytest.fixture
def emptied(tmp_path):
    """A store whose log starts after all messages of A0 and A1; B0 still has one."""
    with opened(tmp_path) as parts:
        for name in "AB":
            parts.say_topic(name)
        parts.append(A0, *"01234")
        parts.append(A1, "0")
        while parts.log.written < SMALL_SETTINGS.segment_bytes:
            parts.append(Queue("B", 0), bytes(1500))
        keep = SMALL_SETTINGS.segment_bytes
        parts.memory.rewrite_before(keep, [parts.queues.get(A0), parts.queues.get(A1)])
        for segment in parts.log.drop_before(keep):
            segment.delete()
    shutil.rmtree(tmp_path / "consumequeue", ignore_errors=True)
    return tmp_path


def test_emptied_queues_continue_at_their_offsets_although_views_are_lost(emptied):
    with opened(emptied) as parts:
        assert parts.log.first == SMALL_SETTINGS.segment_bytes
        assert parts.queues.get(A0).bounds == QueueBounds(5, 5)
        assert parts.queues.get(A1).bounds == QueueBounds(1, 1)
        parts.append(A0, "next")
        assert parts.queues.get(A0).bounds == QueueBounds(5, 6)
    with opened(emptied) as parts:
        assert parts.queues.get(A0).bounds == QueueBounds(5, 6)
        assert parts.queues.get(A1).bounds == QueueBounds(1, 1)


def test_state_from_a_deleted_segment_was_appended_again(emptied):
    with opened(emptied) as parts:
        assert parts.state.topics == {name: TOPICS[name] for name in "AB"}


def test_newly_emptied_queues_are_recorded_with_earlier_ones(emptied):
    with opened(emptied) as parts:
        parts.append(A0, "next")
        parts.memory.rewrite_before(0, [parts.queues.get(A0)])
        assert parts.state.ends == {"A": {0: 6, 1: 1}}


def test_an_emptied_queue_of_a_deleted_topic_starts_at_0_again(emptied):
    with opened(emptied) as parts:
        parts.say(TopicUpdate("A", None), QueueEndsUpdate("A", None))
        parts.queues.drop_topic("A")
        parts.say_topic("A")
    with opened(emptied) as parts:
        assert parts.state.ends == {}
        assert parts.queues.get_or_create(A0).bounds == QueueBounds(0, 0)


# -- later deletions --------------------------------------------------------------------------------------------------


def test_only_a_deletion_at_or_after_the_position_counts(tmp_path):
    with opened(tmp_path) as parts:
        assert not parts.memory.deletes_topic_after(0)
        parts.say_topic("A")
        at = parts.say(TopicUpdate("A", None))
        parts.say(TopicUpdate("B", TOPICS["B"]), GroupUpdate("g", None), OffsetsUpdate("A", "g", None))
        assert parts.memory.deletes_topic_after(0)
        assert parts.memory.deletes_topic_after(at)
        assert not parts.memory.deletes_topic_after(at + 1)


# -- offsets ----------------------------------------------------------------------------------------------------------


def test_a_commit_takes_effect_at_once_and_returns_the_previous_offset(tmp_path):
    with opened(tmp_path) as parts:
        parts.say_topic("A")
        assert parts.offsets.commit_nowait("g", A0, 5) is None
        assert parts.offsets.commit_nowait("g", A0, 3) == 5
        assert parts.offsets.commit_nowait("g", A0, 3) == 3
        assert parts.offsets.committed_nowait("g", A0) == 3


def test_commits_are_written_together_and_only_if_they_changed(tmp_path):
    with opened(tmp_path) as parts:
        parts.say_topic("A")
        for n in range(10):
            parts.offsets.commit_nowait("g", A0, n)
            parts.offsets.commit_nowait("g", A1, n)
        said = parts.queues.get(STATE_QUEUE).end
        parts.memory.flush_offsets()
        assert parts.queues.get(STATE_QUEUE).end == said + 1
        parts.offsets.commit_nowait("g", A0, 9)
        parts.memory.flush_offsets()
        assert parts.queues.get(STATE_QUEUE).end == said + 1
    with opened(tmp_path) as parts:
        assert parts.state.offsets == {("A", "g"): {0: 9, 1: 9}}


def test_offsets_that_could_not_be_written_are_written_the_next_time(tmp_path):
    with opened(tmp_path) as parts:
        parts.say_topic("A")
        parts.offsets.commit_nowait("g", A0, 5)
        parts.writer.refusal = StoreFull(tmp_path, "for a test")
        with pytest.raises(StoreFull):
            parts.memory.flush_offsets()
        parts.writer.refusal = None
        parts.memory.flush_offsets()
    with opened(tmp_path) as parts:
        assert parts.offsets.committed_nowait("g", A0) == 5


def test_an_invalid_commit_is_refused_and_changes_nothing(tmp_path):
    with opened(tmp_path) as parts:
        parts.say_topic("A")
        for group, queue, offset, error in (
            ("g", Queue("Unknown", 0), 0, UnknownTopic),
            ("g", A0, -1, Refused),
            ("no group", A0, 0, IllegalName),
        ):
            with pytest.raises(error):
                parts.offsets.commit_nowait(group, queue, offset)
        assert (parts.state.offsets, parts.state.unflushed_offsets) == ({}, set())
