"""What the store knows of topics, groups, tokens, offsets and scopes: says it into the log, and hears it at a start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from sparrow.model.errors import CorruptRecord
from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.store.log.append.writer import LogWriter
from sparrow.store.log.consume_queues.consume_queue import ConsumeQueue
from sparrow.store.log.consume_queues.queue_table import ConsumeQueueTable
from sparrow.store.log.reader import LogReader
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.state import rocketmq_config
from sparrow.store.log.state.updates import (
    STATE_QUEUE,
    AtomicAppendBegin,
    LedgerUpdate,
    OffsetsUpdate,
    QueueEndsUpdate,
    StateSnapshot,
    StateTables,
    StateUpdate,
    TopicUpdate,
    decode_updates,
    encode_updates,
)
from sparrow.wire import record

log = logging.getLogger(__name__)

_DAY_MS = 86_400_000


class StateStore:
    """State, and its words in the log."""

    def __init__(
        self,
        path: Path,
        queues: ConsumeQueueTable,
        writer: LogWriter,
        reader: LogReader,
        now_ms: Callable[[], int],
        *,
        ledger_retention_days: float = 90,
    ) -> None:
        self.tables = StateTables()
        self._ledger_keep_ms = int(ledger_retention_days * _DAY_MS)
        self._path, self._queues, self._writer, self._reader, self._now_ms = path, queues, writer, reader, now_ms
        self._snapshot_at = -1

    # -- hearing ------------------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Hear again what the log says."""
        self.tables.clear()
        self._snapshot_at = -1
        queue = self._queues.get(STATE_QUEUE)
        if queue is not None:
            self._replay(queue)
        elif (self._path / "config").is_dir():
            self.append(rocketmq_config.read_rocketmq_config(self._path / "config"))
        self._name_topics()
        for topic, ends in self.tables.ends.items():
            for queue_id, end in ends.items():
                if topic in self.tables.topics and self._queues.get_or_create(Queue(topic, queue_id)).end == 0:
                    self._queues.get_or_create(Queue(topic, queue_id)).start_at(end)

    def _replay(self, queue: ConsumeQueue) -> None:
        snapshot = files.load(self._path / files.STATE_SNAPSHOT_FILE, StateSnapshot)
        start = int(queue.first)
        if snapshot is not None and snapshot.log_end <= self._writer.log.written and snapshot.next_offset <= queue.end:
            self.tables.restore(snapshot)
            start = max(start, snapshot.next_offset)
        for offset in range(start, queue.end):
            self.tables.apply(self._words_at(queue, offset), queue.physical_offset_at(offset) or 0)

    def _name_topics(self) -> None:
        """A queue whose topic nobody speaks of (RocketMQ keeps some of its own in no file) gets it back."""
        counts: dict[str, int] = {}
        for queue in self._queues:
            topic, queue_id = queue.queue
            if topic in self.tables.topics or topic == STATE_QUEUE.topic:
                continue
            if queue.end == 0:
                self._queues.drop(queue)
            else:
                counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        if counts:
            log.warning("topics are known by their queues only", extra={"topics": sorted(counts)})
            self.append(
                [TopicUpdate(name, Topic(name=name, read_queues=n, write_queues=n)) for name, n in counts.items()]
            )

    def deletes_topic_after(self, physical_offset: int) -> bool:
        """Whether a topic is deleted by a word behind the offset: cut there, and the topic is back."""
        queue = self._queues.get(STATE_QUEUE)
        if queue is None:
            return False
        first = queue.partition_point(queue.first, queue.end, lambda at, _size: at < physical_offset)
        return any(
            isinstance(word, TopicUpdate) and word.topic is None
            for offset in range(first, queue.end)
            for word in self._words_at(queue, offset)
        )

    def truncation_point(self, physical_offset: int) -> int:
        """The offset, or where the group begins that a cut at the offset would leave without its end."""
        queue = self._queues.get(STATE_QUEUE)
        if queue is not None:
            last = queue.partition_point(queue.first, queue.end, lambda at, _size: at < physical_offset) - 1
            if last >= queue.first and any(isinstance(word, AtomicAppendBegin) for word in self._words_at(queue, last)):
                return queue.physical_offset_at(last) or 0
        return physical_offset

    def _words_at(self, queue: ConsumeQueue, offset: int) -> list[StateUpdate]:
        at = queue.physical_offset_at(offset)
        data = self._reader.record_at(at) if at is not None else None
        if data is None:
            log.error("a state record is lost", extra={"offset": offset, "physical_offset": at})
            return []
        try:
            return decode_updates(record.decode(data, expand=False).body, at or 0)
        except CorruptRecord as cause:
            log.error("a state record is left out", extra={"cause": str(cause)})
            return []

    # -- saying -------------------------------------------------------------------------------------------------------

    def append(self, words: list[StateUpdate]) -> int:
        """Put words into the log and take them in; the offset behind the last one."""
        with self._writer.lock:
            queue = self._queues.get_or_create(STATE_QUEUE)
            end = int(self._writer.log.written)
            for portion, body in encode_updates(words):
                appended = self._writer.append(queue, [Draft(body=body, born_ms=self._now_ms())])
                end = appended.end
                self.tables.apply(portion, appended.physical_offsets[0])
        return end

    def append_one(self, word: StateUpdate) -> int:
        """The same for a word that is to have a record of its own; where that stands."""
        with self._writer.lock:
            self.append([word])
            queue = self._queues.get_or_create(STATE_QUEUE)
            return queue.physical_offset_at(queue.end - 1) or 0

    def encoded_bytes(self, word: StateUpdate) -> int:
        """What a word takes in the log when it is said alone."""
        ((_, body),) = encode_updates([word])
        return self._writer.size_of(self._queues.get_or_create(STATE_QUEUE), Draft(body=body))

    def ledger_covers(self, scope: str, number: int) -> bool:
        """Whether the ledger says that a scope is as far, or further."""
        noted = self.tables.ledger.get(scope)
        return noted is not None and noted.number >= number

    def flush_offsets(self) -> None:
        """Put the offsets that were committed since the last time into the log."""
        with self._writer.lock:
            words = self.tables.take_changed_offsets()
            try:
                self.append(words)
            except BaseException:
                self.tables.unflushed_offsets |= {
                    (word.topic, word.group) for word in words if isinstance(word, OffsetsUpdate)
                }
                raise

    def rewrite_before(self, physical_offset: int, emptied: list[ConsumeQueue]) -> None:
        """That part of the log is about to go: say again what was last said in it, and where emptied queues go on."""
        ends: dict[str, dict[int, int]] = {}
        for queue in emptied:
            topic, queue_id = queue.queue
            ends.setdefault(topic, dict(self.tables.ends.get(topic, {})))[queue_id] = queue.end
        with self._writer.lock:
            self.append([QueueEndsUpdate(topic, of_topic) for topic, of_topic in ends.items()])
            self.tables.expire_scopes(physical_offset, self._now_ms() - self._ledger_keep_ms)
            words = self.tables.updates_before(physical_offset)
            # In records of their own: a Sparrow that knows no ledger passes over them, and over nothing else.
            self.append([word for word in words if not isinstance(word, LedgerUpdate)])
            self.append([word for word in words if isinstance(word, LedgerUpdate)])

    def snapshot(self) -> None:
        """Save saying everything again at the next start."""
        queue = self._queues.get(STATE_QUEUE)
        if queue is None or queue.end == self._snapshot_at:
            return
        with self._writer.lock:
            snapshot = self.tables.snapshot(queue.end, self._writer.log.written)
        files.save(self._path / files.STATE_SNAPSHOT_FILE, snapshot)
        self._snapshot_at = snapshot.next_offset
