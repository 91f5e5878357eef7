"""The state store: appends state updates to the log, applies them to the tables, and replays them at a start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from sparrow.model.errors import CorruptRecord, NotLeader, Unavailable
from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.store.log.append.writer import LogWriter
from sparrow.store.log.consume_queues.consume_queue import ConsumeQueue
from sparrow.store.log.consume_queues.queue_table import ConsumeQueueTable
from sparrow.store.log.reader import LogReader
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.state import rocketmq_config
from sparrow.store.log.state.state_seal import StateSeal
from sparrow.store.log.state.tables import StateSnapshot, StateTables
from sparrow.store.log.state.updates import (
    STATE_QUEUE,
    AtomicAppendBegin,
    LedgerUpdate,
    OffsetsUpdate,
    QueueEndsUpdate,
    StateKeyUpdate,
    StateUpdate,
    TopicUpdate,
    decode_updates,
    encode_updates,
)
from sparrow.wire import record

log = logging.getLogger(__name__)

_DAY_MS = 86_400_000


class StateStore:
    """State tables, and their updates in the state queue."""

    def __init__(
        self,
        path: Path,
        queues: ConsumeQueueTable,
        writer: LogWriter,
        reader: LogReader,
        seal: StateSeal,
        now_ms: Callable[[], int],
        *,
        ledger_retention_days: float = 90,
    ) -> None:
        self.tables = StateTables()
        self.seal = seal
        self._ledger_keep_ms = int(ledger_retention_days * _DAY_MS)
        self._path, self._queues, self._writer, self._reader, self._now_ms = path, queues, writer, reader, now_ms
        self._snapshot_at = -1

    # -- replay -------------------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Load the state from the log, or from RocketMQ's files if the log has no state yet."""
        self.tables.clear()
        self._snapshot_at = -1
        queue = self._queues.get(STATE_QUEUE)
        if queue is not None and queue.end:  # a truncation may have left an empty one
            self._replay(queue)
            self._adopt_key()
        elif (self._path / "config").is_dir() and not self._is_following:
            self.append(rocketmq_config.read_rocketmq_config(self._path / "config"))
        self.name_topics()
        for topic in self.tables.ends:
            self.continue_emptied_queues(topic)

    def continue_emptied_queues(self, topic: str) -> None:
        """Let the queues whose messages retention has deleted continue where they ended."""
        if topic not in self.tables.topics:
            return
        for queue_id, end in self.tables.ends.get(topic, {}).items():
            queue = self._queues.get_or_create(Queue(topic, queue_id))
            if queue.end == 0:
                queue.start_at(end)

    def _replay(self, queue: ConsumeQueue) -> None:
        snapshot = files.load(self._path / files.STATE_SNAPSHOT_FILE, StateSnapshot)
        start = int(queue.first)
        if snapshot is not None and snapshot.log_end <= self._writer.log.written and snapshot.next_offset <= queue.end:
            self.tables.restore(snapshot)
            start = max(start, snapshot.next_offset)
        for offset in range(start, queue.end):
            self.tables.apply(self._updates_at(queue, offset), queue.physical_offset_at(offset) or 0)

    def _adopt_key(self) -> None:
        """Use the key that the log has, if another one, or none, is in the key file. What was accepted stays so."""
        key = self.tables.seal_key
        if key is not None and key != self.seal.key:
            log.warning("the key of the state records is taken from the log: sparrow.key has another one, or is lost")
            self.seal.adopt(key, int(self._writer.log.written))

    @property
    def _is_following(self) -> bool:
        return isinstance(self._writer.refusal, NotLeader)

    def name_topics(self) -> None:
        """Create topics for queues that have none: RocketMQ does not store all its system topics in a file."""
        if self._is_following:
            return  # the leader creates them
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
            log.warning("topics %(topics)s are created for queues that have none", {"topics": sorted(counts)})
            self.append(
                [TopicUpdate(name, Topic(name=name, read_queues=n, write_queues=n)) for name, n in counts.items()]
            )

    def deletes_topic_after(self, physical_offset: int) -> bool:
        """Return whether a topic is deleted by an update after the offset; truncation there restores the topic."""
        queue = self._queues.get(STATE_QUEUE)
        if queue is None:
            return False
        first = queue.partition_point(queue.first, queue.end, lambda at, _size: at < physical_offset)
        return any(
            isinstance(update, TopicUpdate) and update.topic is None
            for offset in range(first, queue.end)
            for update in self._updates_at(queue, offset)
        )

    def truncation_point(self, physical_offset: int) -> int:
        """Return the offset, or the begin of the atomic append that a truncation there would leave incomplete."""
        queue = self._queues.get(STATE_QUEUE)
        if queue is not None:
            last = queue.partition_point(queue.first, queue.end, lambda at, _size: at < physical_offset) - 1
            updates = self._updates_at(queue, last) if last >= queue.first else []
            if any(isinstance(update, AtomicAppendBegin) for update in updates):
                return queue.physical_offset_at(last) or 0
        return physical_offset

    def _updates_at(self, queue: ConsumeQueue, offset: int) -> list[StateUpdate]:
        at = queue.physical_offset_at(offset)
        data = self._reader.record_at(at) if at is not None else None
        if data is None:
            log.error(
                "state record %(offset)s at physical offset %(physical_offset)s is lost; it is skipped",
                {"offset": offset, "physical_offset": "unknown" if at is None else at},
            )
            return []
        message = record.decode(data, expand=False)
        if not self.seal.is_accepted(message):
            log.error(
                "the state record at physical offset %(physical_offset)s is not sealed by this store; it is skipped",
                {"physical_offset": at},
            )
            return []
        try:
            return decode_updates(message.body, at or 0)
        except CorruptRecord as cause:
            log.error("a state record cannot be read and is skipped: %(error)s", {"error": cause})
            return []

    # -- appends ------------------------------------------------------------------------------------------------------

    def append(self, updates: list[StateUpdate]) -> int:
        """Append updates to the log, apply them, and return the end of the last record."""
        with self._writer.lock:
            if updates and self.tables.seal_key is None:
                updates = [self._new_key(self._queues.get_or_create(STATE_QUEUE)), *updates]
            return self._append(updates)

    def _append(self, updates: list[StateUpdate]) -> int:
        queue = self._queues.get_or_create(STATE_QUEUE)
        end = int(self._writer.log.written)
        for batch, body in encode_updates(updates):
            draft = Draft(body=body, born_ms=self._now_ms(), properties=self.seal.properties(body, 0, 0))
            at = self._writer.allocate(queue, draft)
            draft.properties = self.seal.properties(body, at, queue.end)
            appended = self._writer.append(queue, [draft])
            assert appended.physical_offsets[0] == at, "the digest covers the place"
            end = appended.end
            self.tables.apply(batch, at)
        return end

    def _new_key(self, queue: ConsumeQueue) -> StateUpdate:
        """Return the update with which the first state record begins: it sets the key by which all are sealed."""
        self._writer.check_may_append(queue)
        return StateKeyUpdate(self.seal.key or self.seal.create(int(self._writer.log.written)))

    def ensure_key(self) -> None:
        """Append the key now, if no state record has it yet, so that the next one need not."""
        with self._writer.lock:
            if self.tables.seal_key is None:
                self._append([self._new_key(self._queues.get_or_create(STATE_QUEUE))])

    def append_one(self, update: StateUpdate) -> int:
        """Append one update in a record of its own, and return the record's physical offset."""
        with self._writer.lock:
            self.append([update])
            queue = self._queues.get_or_create(STATE_QUEUE)
            return queue.physical_offset_at(queue.end - 1) or 0

    def encoded_bytes(self, update: StateUpdate) -> int:
        """Return the size of the record of a single update."""
        ((_, body),) = encode_updates([update])
        draft = Draft(body=body, properties=self.seal.properties(body, 0, 0))
        return self._writer.size_of(self._queues.get_or_create(STATE_QUEUE), draft)

    def ledger_covers(self, scope: str, number: int) -> bool:
        """Return whether the ledger of a scope is at the number or above."""
        noted = self.tables.ledger.get(scope)
        return noted is not None and noted.number >= number

    def flush_offsets(self) -> int:
        """Append the offsets that were committed since the last call, and return the end of the last record."""
        with self._writer.lock:
            updates = self.tables.take_changed_offsets()
            try:
                return self.append(updates)
            except BaseException:
                self.tables.unflushed_offsets |= {
                    (update.topic, update.group) for update in updates if isinstance(update, OffsetsUpdate)
                }
                raise

    def flush_offsets_if_possible(self) -> None:
        """Append the offsets that were committed since the last call, if this replica may write now."""
        with self._writer.lock:
            if self._is_following:
                self.discard_unflushed_offsets()
            elif not isinstance(self._writer.refusal, Unavailable):  # such as a leader with too few followers
                self.flush_offsets()

    def discard_unflushed_offsets(self) -> None:
        """Set offsets that were committed since the last flush back to those in the log, which the other replicas have.

        A leader writes them every second. When its leadership ends, nobody else knows the last ones.
        """
        with self._writer.lock:
            for topic, group in sorted(self.tables.unflushed_offsets):
                at = self.tables.offsets_record_at(topic, group)
                if at < 0:
                    self.tables.apply([OffsetsUpdate(topic, group, None)], at)
                elif (data := self._reader.record_at(at)) is not None:
                    updates = decode_updates(record.decode(data, expand=False).body, at)
                    known = [one for one in updates if isinstance(one, OffsetsUpdate)]
                    self.tables.apply([one for one in known if (one.topic, one.group) == (topic, group)], at)
            self.tables.unflushed_offsets.clear()

    def rewrite_before(self, physical_offset: int, emptied: list[ConsumeQueue]) -> None:
        """Append again the state whose newest record is below the offset, and the ends of emptied queues.

        Called before retention deletes that part of the log.
        """
        ends: dict[str, dict[int, int]] = {}
        for queue in emptied:
            topic, queue_id = queue.queue
            ends.setdefault(topic, dict(self.tables.ends.get(topic, {})))[queue_id] = queue.end
        with self._writer.lock:
            self.append([QueueEndsUpdate(topic, of_topic) for topic, of_topic in ends.items()])
            self.tables.expire_scopes(physical_offset, self._now_ms() - self._ledger_keep_ms)
            updates = self.tables.updates_before(physical_offset)
            # In records of their own: versions without a ledger skip these records, and no others.
            self.append([update for update in updates if not isinstance(update, LedgerUpdate)])
            self.append([update for update in updates if isinstance(update, LedgerUpdate)])

    def snapshot(self) -> None:
        """Save a snapshot, so that the next start need not replay all updates."""
        queue = self._queues.get(STATE_QUEUE)
        if queue is None or queue.end == self._snapshot_at:
            return
        with self._writer.lock:  # for a moment: sends wait meanwhile
            tables, next_offset, log_end = self.tables.copy(), queue.end, self._writer.log.written
        snapshot = tables.snapshot(next_offset, log_end)
        files.save(self._path / files.STATE_SNAPSHOT_FILE, snapshot)
        self._snapshot_at = snapshot.next_offset
