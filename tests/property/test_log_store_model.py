"""A log store against a plain list, under any operations and any damage to its files.

The model is the log itself: a list of the records in order. The contents of queues, keys and topics are derived from
it, as in the store, but here by a loop over the list each time.
"""

import asyncio
import os
import shutil
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.drafts import decode_messages, make_draft
from tests.support.log_stores import checkpoint, copy_as_crashed, overwrite, small_settings

from sparrow.model.errors import UnknownTopic
from sparrow.model.queue import Queue, QueueBounds
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore
from sparrow.store.log.state.updates import STATE_QUEUE
from sparrow.store.spi import AtEnd, Moved, Slice
from sparrow.wire import columns, record
from sparrow.wire.hashes import tags_code
from sparrow.wire.queue_batches import QueueBatch

HOUR_MS = 3_600_000
SETTINGS = small_settings(queue_file_entries=3, index_slots=2, index_entries=6, retention_hours=1, hot_bytes=2048)
TOPICS = ("A", "B")
QUEUES = [Queue(topic, queue_id) for topic in TOPICS for queue_id in (0, 1)]
KEYS = ("Aa", "BB", "k")
GROUPS = ("g", "h")
TAGS = ("", "x", "y")

queues = st.sampled_from(QUEUES)
topics = st.sampled_from(TOPICS)
drafted = st.builds(
    make_draft,
    st.integers(0, 700).map(lambda n: b"%d:" % n + bytes(n)),
    tags=st.sampled_from(TAGS),
    keys=st.lists(st.sampled_from(KEYS), max_size=2).map(" ".join),
)


@dataclass
class Written:
    """A record in the log: a message, or a state record of a topic."""

    start: int
    end: int
    queue: Queue = STATE_QUEUE
    offset: int = 0
    data: bytes = b""
    keys: frozenset[str] = frozenset()
    tags: str = ""
    store_ms: int = 0
    made: str = ""
    gone: str = ""
    begun: int = -1
    """For a record of an atomic append: where the log ended before the append."""
    noted: int = -1
    """For the end of an atomic append: its number in the ledger."""


@dataclass
class Model:
    """The records, and the committed offsets of groups."""

    log: list[Written] = field(default_factory=list)
    first: int = 0
    committed: dict[tuple[str, Queue], int] = field(default_factory=dict)
    ever_committed: dict[tuple[str, Queue], set[int]] = field(default_factory=lambda: defaultdict(set))

    def ledger(self) -> int | None:
        return max((written.noted for written in self.log if written.noted >= 0), default=None)

    def topics(self) -> set[str]:
        alive: set[str] = set()
        for written in self.log:
            alive |= {written.made} - {""}
            alive -= {written.gone}
        return alive

    def queues(self) -> dict[Queue, list[Written]]:
        """All messages of each queue since its topic was created, including trimmed ones."""
        found: dict[Queue, list[Written]] = defaultdict(list)
        for written in self.log:
            if written.gone:
                for queue in [queue for queue in found if queue.topic == written.gone]:
                    del found[queue]
            elif written.data:
                found[written.queue].append(written)
        return found

    def kept(self, queue: Queue) -> list[Written]:
        return [written for written in self.queues()[queue] if written.start >= self.first]

    def bounds(self, queue: Queue) -> QueueBounds:
        end = len(self.queues()[queue])
        return QueueBounds(end - len(self.kept(queue)), end)


class LogStoreMachine(RuleBasedStateMachine):
    """Rules change store and model; the invariants compare them."""

    def __init__(self) -> None:
        super().__init__()
        # Use a file system in memory if there is one: syncing each step to disk would take most of the time.
        self.home = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.path = self.home / "store-0"
        self.lives = 0
        self.said_again_to = 0
        self.now_ms = 1_700_000_000_000
        self.loop = asyncio.new_event_loop()
        self.model = Model()
        self.open()

    def open(self) -> None:
        self.store = LogStore(self.path, SETTINGS, now_ms=lambda: self.now_ms)

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def teardown(self) -> None:
        self.store.close_blocking()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.home)

    # -- normal operation ---------------------------------------------------------------------------------------------

    @initialize()
    def start(self) -> None:
        for topic in TOPICS:
            self.put_topic(topic)

    @rule(topic=topics)
    def put_topic(self, topic: str) -> None:
        self.run(self.store.catalog.put_topic(Topic(name=topic)))
        self.model.log.append(Written(self.store.written, self.store.written, made=topic))

    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        if topic not in self.model.topics():
            with pytest.raises(UnknownTopic):
                self.run(self.store.catalog.delete_topic(topic))
            return
        self.run(self.store.catalog.delete_topic(topic))
        self.model.log.append(Written(self.store.written, self.store.written, gone=topic))
        for key in [key for key in self.model.committed if key[1].topic == topic]:
            del self.model.committed[key]

    @rule(queue=queues, drafts=st.lists(drafted, min_size=1, max_size=4))
    def append(self, queue: Queue, drafts: list) -> None:
        if queue.topic not in self.model.topics():
            with pytest.raises(UnknownTopic):
                self.store.append_nowait(queue, drafts)
            return
        self.now_ms += 7
        end = self.model.bounds(queue).end
        appended = self.store.append_nowait(queue, drafts)
        assert (appended.offset, appended.store_ms) == (end, self.now_ms)
        self.note(queue, appended)

    @rule(queue=queues, sizes=st.lists(st.integers(0, 300), min_size=1, max_size=9), tag=st.sampled_from(TAGS))
    def append_encoded(self, queue: Queue, sizes: list[int], tag: str) -> None:
        if queue.topic not in self.model.topics():
            return
        self.now_ms += 7
        encoded = columns.encode(
            pa.array([bytes(size) for size in sizes], pa.binary()),
            topic=queue.topic,
            tags=pa.array([tag] * len(sizes), pa.string()),
            keys=pa.array([KEYS[size % 3] for size in sizes], pa.string()),
        )
        end = self.model.bounds(queue).end
        appended = self.store.append_encoded_nowait(queue, encoded.data, encoded.sizes)
        assert (appended.offset, len(appended.physical_offsets)) == (end, len(sizes))
        self.note(queue, appended)

    @rule(
        parts=st.lists(st.tuples(queues, st.lists(st.integers(0, 700), max_size=12)), max_size=4),
        step=st.integers(-1, 2),
    )
    def append_atomically(self, parts: list[tuple[Queue, list[int]]], step: int) -> None:
        parts = [part for part in parts if part[0].topic in self.model.topics()]
        self.now_ms += 7
        noted = self.model.ledger()
        number = max(0, (-1 if noted is None else noted) + step)
        begun, bounds = self.store.written, {queue: self.model.bounds(queue).end for queue in QUEUES}
        batches = []
        for queue, sizes in parts:
            encoded = columns.encode(
                pa.array([bytes(size) for size in sizes], pa.binary()),
                topic=queue.topic,
                keys=pa.array([KEYS[size % 3] for size in sizes], pa.string()),
            )
            batches.append(QueueBatch(queue, memoryview(encoded.data), encoded.sizes))
        is_new = noted is None or number > noted
        assert self.run(self.store.append_atomically("scope", number, batches)) == is_new
        if not is_new:
            assert self.store.written == begun
            return
        found: list[Written] = []
        for queue, end in bounds.items():
            wanted = [size for name, sizes in parts if name == queue for size in sizes]
            for n, size in enumerate(wanted):
                (data,) = self.run(self.store.read(queue, end + n, count_max=1)).records()
                message = record.decode(data)
                assert (message.body, message.queue_offset) == (bytes(size), end + n)
                at = message.physical_offset
                keys = frozenset(message.keys)
                found.append(
                    Written(at, at + len(data), queue, end + n, bytes(data), keys, "", message.store_ms, begun=begun)
                )
        self.model.log += sorted(found, key=lambda written: written.start)
        self.model.log.append(Written(self.store.written, self.store.written, begun=begun, noted=number))

    def note(self, queue: Queue, appended) -> None:
        for n, at in enumerate(appended.physical_offsets):
            data = self.run(self.store.record_at(at))
            message = record.decode(data)
            assert (message.queue, message.queue_offset, message.physical_offset) == (queue, appended.offset + n, at)
            self.model.log.append(
                Written(
                    at,
                    at + len(data),
                    queue,
                    message.queue_offset,
                    data,
                    frozenset(message.keys),
                    message.tags or "",
                    message.store_ms,
                )
            )
        assert self.model.log[-1].end == appended.end == self.store.written

    @rule(group=st.sampled_from(GROUPS), queue=queues, offset=st.integers(0, 9))
    def commit(self, group: str, queue: Queue, offset: int) -> None:
        if queue.topic not in self.model.topics():
            with pytest.raises(UnknownTopic):
                self.run(self.store.offsets.commit(group, queue, offset))
            return
        assert self.run(self.store.offsets.commit(group, queue, offset)) == self.model.committed.get((group, queue))
        self.model.committed[group, queue] = offset
        self.model.ever_committed[group, queue].add(offset)

    @rule(queue=queues, offset=st.integers(-2, 12), count_max=st.integers(1, 5), tag=st.sampled_from((None, *TAGS)))
    def read(self, queue: Queue, offset: int, count_max: int, tag: str | None) -> None:
        codes = None if tag is None else frozenset({tags_code(tag)})
        result = self.run(self.store.read(queue, offset, count_max=count_max, tags_codes=codes))
        bounds = self.model.bounds(queue)
        assert result.bounds == bounds
        if offset == bounds.end:
            assert isinstance(result, AtEnd)
        elif not bounds.first <= offset < bounds.end:
            assert result == Moved(bounds.first if offset < bounds.first else bounds.end, bounds)
        else:
            wanted = [
                written
                for written in self.model.kept(queue)
                if written.offset >= offset and (tag is None or written.tags == tag)
            ]
            assert isinstance(result, Slice)
            assert result.tobytes() == b"".join(written.data for written in wanted[:count_max])
            stop = wanted[count_max].offset if len(wanted) > count_max else bounds.end
            assert offset < result.next_offset <= stop

    # -- maintenance --------------------------------------------------------------------------------------------------

    @rule()
    def checkpoint(self) -> None:
        with self.store._threads.maintenance.paused():
            checkpoint(self.store)

    @rule()
    def trim(self) -> None:
        self.now_ms += HOUR_MS // 2
        first = self.store.first
        self.run(self.store.trim())
        assert self.store.first >= first
        if self.store.first > first:
            self.said_again_to = self.store.written
        self.model.first = self.store.first
        oldest_ms = self.now_ms - HOUR_MS
        young = [written for written in self.model.log if written.data and written.store_ms > oldest_ms]
        assert all(written.start >= self.store.first for written in young), (
            "retention must not delete records too early"
        )
        # Retention appended the state of topics at the head before it dropped the old records; the model ignores where.

    # -- stops and crashes, and what they may lose --------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.store.close_blocking()
        self.open()

    @rule()
    def crash(self) -> None:
        self.lives += 1
        path = copy_as_crashed(self.store, self.home / f"store-{self.lives}")
        self.store.close_blocking()
        shutil.rmtree(self.path)
        self.path = path
        self.open()
        self.adopt_committed()

    def adopt_committed(self) -> None:
        """A crash may lose commits that were not in the log yet, but it must not invent any."""
        for group in GROUPS:
            for queue in QUEUES:
                offset = self.run(self.store.offsets.committed(group, queue))
                if offset is None:
                    self.model.committed.pop((group, queue), None)
                else:
                    assert offset in self.model.ever_committed[group, queue]
                    self.model.committed[group, queue] = offset

    def none_is_trimmed_away(self) -> bool:
        """Return whether the log still holds a message of every queue that ever had one."""
        return all(self.model.kept(queue) for queue in self.model.queues())

    @precondition(none_is_trimmed_away)
    @rule(
        lost=st.sets(st.sampled_from(["consumequeue", "index", "sparrow.checkpoint", "sparrow.state"]), min_size=1),
        by_crash=st.booleans(),
    )
    def lose_views(self, lost: set[str], by_crash: bool) -> None:
        if by_crash:
            self.crash()
        self.store.close_blocking()
        for name in lost:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self.open()

    @precondition(none_is_trimmed_away)
    @rule(
        victim=st.sampled_from([*QUEUES, STATE_QUEUE, "sparrow.checkpoint", "sparrow.state"]),
        at=st.integers(0, 1000),
        junk=st.sampled_from([b"\0", b"\xff", b"\x5a"]),
    )
    def garble_views(self, victim: Queue | str, at: int, junk: bytes) -> None:
        """Overwrite all files of a queue, or a few bytes of the small files, which have checksums."""
        self.store.close_blocking()
        if isinstance(victim, Queue):
            for path in (self.path / "consumequeue" / victim.topic / str(victim.id)).glob("*"):
                overwrite(path, 0, junk * path.stat().st_size)
        else:
            path = self.path / victim
            if path.exists():
                overwrite(path, at % path.stat().st_size, junk * 3)
        self.open()

    @precondition(none_is_trimmed_away)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        last_gone = max((written.end for written in self.model.log if written.gone), default=0)
        lowest = max(self.model.first, last_gone, self.said_again_to)
        ends = sorted(
            {
                written.end
                for written in self.model.log
                # test_engine.py tests cuts that remove the deletion of a topic.
                # Do not cut records that retention re-appended: no other copy of that state exists.
                # A cut inside an atomic append moves back to its start.
                if lowest <= max(written.begun, 0) <= written.end or (lowest <= written.end and written.begun < 0)
                if written.made or written.data or written.noted >= 0
            }
        )
        if not ends:
            return
        end = data.draw(st.sampled_from(ends))
        self.store.replica.truncate(end)
        for written in self.model.log:
            if written.noted >= 0 and written.begun < end < written.end:
                end = written.begun
        assert self.store.written >= end
        self.model.log = [written for written in self.model.log if written.end <= end]
        self.adopt_committed()

    # -- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def topics_are_those_that_were_made(self) -> None:
        assert set(self.run(self.store.catalog.list_topics())) == self.model.topics()

    @invariant()
    def queues_hold_what_was_written(self) -> None:
        for queue in QUEUES:
            bounds = self.model.bounds(queue)
            assert self.run(self.store.bounds(queue)) == bounds, queue
            data, offset = b"", int(bounds.first)
            while offset < bounds.end:
                result = self.run(self.store.read(queue, offset, count_max=100))
                assert isinstance(result, Slice)
                assert result.next_offset > offset
                assert [message.queue_offset for message in decode_messages(result)] == list(
                    range(offset, result.next_offset)
                )
                data, offset = data + result.tobytes(), result.next_offset
            assert data == b"".join(written.data for written in self.model.kept(queue))

    @invariant()
    def keys_find_what_carries_them(self) -> None:
        for topic in TOPICS:
            for key in KEYS:
                holders = [
                    written
                    for queue in QUEUES
                    if queue.topic == topic
                    for written in self.model.kept(queue)
                    if key in written.keys
                ]
                found = self.run(self.store.find_by_key(topic, key, limit=1000))
                expected = {written.start: written.data for written in sorted(holders, key=lambda held: held.start)}
                assert [record.decode(data).physical_offset for data in found] == list(expected), key
                assert found == list(expected.values())

    @invariant()
    def the_ledger_says_how_far_groups_have_got(self) -> None:
        assert self.run(self.store.ledger("scope")) == self.model.ledger()

    @invariant()
    def committed_offsets_are_those_committed(self) -> None:
        for group in GROUPS:
            for queue in QUEUES:
                assert self.run(self.store.offsets.committed(group, queue)) == self.model.committed.get((group, queue))


# Fewer examples than other state machines: each step opens and damages files.
LogStoreMachine.TestCase.settings = hypothesis_settings(
    stateful_step_count=50, max_examples=hypothesis_settings().max_examples // 4
)
TestLogStoreAgainstAList = LogStoreMachine.TestCase
