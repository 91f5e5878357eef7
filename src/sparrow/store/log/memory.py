"""What the store knows of topics, groups and offsets: says it into the log, and hears it again at a start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from sparrow.model.errors import CorruptRecord, Refused, SparrowError, UnknownTopic
from sparrow.model.message import Draft
from sparrow.model.queue import Queue, QueueOffset
from sparrow.model.topic import Topic
from sparrow.store.log import checkpoint as files
from sparrow.store.log import rocketmq
from sparrow.store.log.consume_queue import ConsumeQueue
from sparrow.store.log.queues import Queues
from sparrow.store.log.reader import Reader
from sparrow.store.log.views import STATE, OffsetsSaid, Snapshot, State, TopicSaid, Word, in_records, words_of
from sparrow.store.log.writer import Writer
from sparrow.wire import record

log = logging.getLogger(__name__)


class Memory:
    """State, and its words in the log."""

    def __init__(self, path: Path, queues: Queues, writer: Writer, reader: Reader, now_ms: Callable[[], int]) -> None:
        self.state = State()
        self._path, self._queues, self._writer, self._reader, self._now_ms = path, queues, writer, reader, now_ms
        self._snapshot_at = -1

    # -- hearing ------------------------------------------------------------------------------------------------------

    def recall(self) -> None:
        """Hear again what the log says."""
        self.state.forget()
        self._snapshot_at = -1
        queue = self._queues.get(STATE)
        if queue is not None:
            self._replay(queue)
        elif (self._path / "config").is_dir():
            self.say(rocketmq.words_in(self._path / "config"))
        self._name_topics()

    def _replay(self, queue: ConsumeQueue) -> None:
        snapshot = files.load(self._path / files.SNAPSHOT, Snapshot)
        start = int(queue.first)
        if snapshot is not None and snapshot.log_end <= self._writer.log.written and snapshot.next_offset <= queue.end:
            self.state.restore(snapshot)
            start = max(start, snapshot.next_offset)
        for offset in range(start, queue.end):
            at = queue.physical_offset_at(offset)
            data = self._reader.record_at(at) if at is not None else None
            if data is None:
                log.error("a state record is lost", extra={"offset": offset, "physical_offset": at})
                continue
            message = record.decode(data)
            try:
                self.state.hear(words_of(message.body, message.physical_offset), message.physical_offset)
            except CorruptRecord as cause:
                log.error("a state record is left out", extra={"cause": str(cause)})

    def _name_topics(self) -> None:
        """A queue whose topic nobody speaks of (RocketMQ keeps some of its own in no file) gets it back."""
        counts: dict[str, int] = {}
        for queue in self._queues:
            topic, queue_id = queue.queue
            if topic not in self.state.topics and topic != STATE.topic:
                counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        if counts:
            log.warning("topics are known by their queues only", extra={"topics": sorted(counts)})
            self.say([TopicSaid(name, Topic(name=name, read_queues=n, write_queues=n)) for name, n in counts.items()])

    # -- saying -------------------------------------------------------------------------------------------------------

    def say(self, words: list[Word]) -> int:
        """Put words into the log and take them in; the offset behind the last one."""
        with self._writer.lock:
            queue = self._queues.of(STATE)
            end = int(self._writer.log.written)
            for portion, body in in_records(words):
                appended = self._writer.append(queue, [Draft(body=body, born_ms=self._now_ms())])
                end = appended.end
                self.state.hear(portion, appended.physical_offsets[0])
        return end

    def say_offsets(self) -> None:
        """Put the offsets that were committed since the last time into the log."""
        with self._writer.lock:
            words = self.state.say_offsets()
            try:
                self.say(words)
            except SparrowError:
                self.state.unsaid |= {(word.topic, word.group) for word in words if isinstance(word, OffsetsSaid)}
                raise

    def say_before(self, physical_offset: int) -> None:
        """Say again what was last said below the offset: that part of the log is about to go."""
        with self._writer.lock:
            self.say(self.state.say_before(physical_offset))

    def snapshot(self) -> None:
        """Save saying everything again at the next start."""
        queue = self._queues.get(STATE)
        if queue is None or queue.end == self._snapshot_at:
            return
        with self._writer.lock:
            snapshot = self.state.snapshot(queue.end, self._writer.log.written)
        files.save(self._path / files.SNAPSHOT, snapshot)
        self._snapshot_at = snapshot.next_offset

    # -- offsets ------------------------------------------------------------------------------------------------------

    def committed(self, group: str, queue: Queue) -> QueueOffset | None:
        offset = self.state.offsets.get((queue.topic, group), {}).get(queue.id)
        return None if offset is None else QueueOffset(offset)

    def commit(self, group: str, queue: Queue, offset: int) -> QueueOffset | None:
        """Counts at once, and is said with the next `say_offsets`. Returns what stood there before."""
        if queue.topic not in self.state.topics:
            raise UnknownTopic(queue.topic)
        if offset < 0:
            raise Refused(f"{offset} is no offset: they start at 0")
        with self._writer.lock:
            offsets = self.state.offsets.setdefault((queue.topic, group), {})
            previous = offsets.get(queue.id)
            if previous != offset:
                offsets[queue.id] = offset
                self.state.unsaid.add((queue.topic, group))
        return None if previous is None else QueueOffset(previous)
