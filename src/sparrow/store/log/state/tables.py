"""The state of a log store in memory, as the sum of its updates.

The tables record for each entry where its newest update is in the log. Before retention drops that part of the log, the
update is appended again; a snapshot on disk saves replaying all updates at every start.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from sparrow.model.access.token import Token
from sparrow.model.topic import Group, Topic
from sparrow.store.log.state.updates import (
    AtomicAppendBegin,
    EpochUpdate,
    GroupUpdate,
    LedgerUpdate,
    MarkUpdate,
    OffsetsUpdate,
    QueueEndsUpdate,
    StateKeyUpdate,
    StateUpdate,
    TokenUpdate,
    TopicUpdate,
)

_Subject = tuple[str, str, str]
_NOT_WRITTEN = 1 << 62
_PIECE_UPDATES = 1_000
_ENCODER = msgspec.json.Encoder(order="sorted")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class StateSnapshot(msgspec.Struct):
    """All state as of one offset of the state queue."""

    next_offset: int
    """In the state queue: updates from here on are not in the snapshot."""
    log_end: int
    """If the log was truncated below this physical offset, the snapshot is invalid."""
    words: list[tuple[int, StateUpdate]]
    """Updates, each with the physical offset of its record. The name is part of the file format."""


class EncodedStateSnapshot(msgspec.Struct):
    """A `StateSnapshot` with its updates as JSON."""

    next_offset: int
    log_end: int
    words: msgspec.Raw


class StateTables:
    """The state that all updates so far add up to. Changed under the writer's lock."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.offsets: dict[tuple[str, str], dict[int, int]] = {}
        """(topic, group) -> queue id -> offset."""
        self.ends: dict[str, dict[int, int]] = {}
        """topic -> queue id -> end, of queues whose messages retention has deleted."""
        self.marks: dict[str, int] = {}
        self.tokens: dict[str, Token] = {}
        self.ledger: dict[str, LedgerUpdate] = {}
        self.epochs: list[tuple[int, int]] = []
        """Leader epochs of a replicated log, and where they start."""
        self.seal_key: str | None = None
        """The key by which state records are sealed; None if none was sealed yet."""
        self.unflushed_offsets: set[tuple[str, str]] = set()
        """(topic, group) whose offsets changed since they were last appended: commits are frequent and batched."""
        self._written_at: dict[_Subject, int] = {}

    def clear(self) -> None:
        """Empty all tables, before the log is replayed."""
        self.topics.clear()
        self.groups.clear()
        self.offsets.clear()
        self.ends.clear()
        self.marks.clear()
        self.tokens.clear()
        self.ledger.clear()
        self.epochs.clear()
        self.seal_key = None
        self.unflushed_offsets.clear()
        self._written_at.clear()

    def apply(self, updates: Iterable[StateUpdate], physical_offset: int) -> None:
        """Apply updates of a record at a physical offset."""
        for update in updates:
            match update:
                case TopicUpdate(name, topic):
                    subject = ("topic", name, "")
                    _set(self.topics, name, topic)
                case GroupUpdate(name, group):
                    subject = ("group", name, "")
                    _set(self.groups, name, group)
                case OffsetsUpdate(topic_name, group_name, offsets):
                    subject = ("offsets", topic_name, group_name)
                    _set(self.offsets, (topic_name, group_name), None if offsets is None else dict(offsets))
                case QueueEndsUpdate(topic_name, ends):
                    subject = ("queues", topic_name, "")
                    _set(self.ends, topic_name, None if ends is None else dict(ends))
                case MarkUpdate(name, value):
                    subject = ("mark", name, "")
                    self.marks[name] = value
                case TokenUpdate(token):
                    subject = ("token", token.name, "")
                    self.tokens[token.name] = token
                case LedgerUpdate(scope, number, ms):
                    subject = ("ledger", scope, "")
                    self.ledger[scope] = LedgerUpdate(scope, number, ms)
                case EpochUpdate(starts):
                    subject = ("epochs", "", "")
                    self.epochs = list(starts)
                case StateKeyUpdate(key):
                    subject = ("key", "", "")
                    self.seal_key = key
                case AtomicAppendBegin():
                    continue  # no state: recovery makes sure that an end follows
            if self._is_set(update):
                self._written_at[subject] = physical_offset
            else:
                self._written_at.pop(subject, None)

    @staticmethod
    def _is_set(update: StateUpdate) -> bool:
        match update:
            case TopicUpdate(_, value) | GroupUpdate(_, value):
                return value is not None
            case OffsetsUpdate(_, _, offsets):
                return offsets is not None
            case QueueEndsUpdate(_, ends):
                return ends is not None
            case MarkUpdate() | TokenUpdate() | LedgerUpdate() | EpochUpdate() | StateKeyUpdate():
                return True
            case AtomicAppendBegin():
                return False

    def offsets_record_at(self, topic: str, group: str) -> int:
        """Return the physical offset of the newest record with a group's offsets; -1 if there is none."""
        return self._written_at.get(("offsets", topic, group), -1)

    def take_changed_offsets(self) -> list[StateUpdate]:
        """Return updates for the offsets that changed since the last call."""
        changed, self.unflushed_offsets = self.unflushed_offsets, set()
        return [self._offsets_update(subject) for subject in sorted(changed) if subject in self.offsets]

    def updates_before(self, physical_offset: int) -> list[StateUpdate]:
        """Return updates for all entries whose newest record is below the offset, to be appended again."""
        return [self._update(subject) for subject, at in self._written_at.items() if at < physical_offset]

    def expire_scopes(self, physical_offset: int, older_than_ms: int) -> None:
        """Drop ledger entries that are older than a time and whose newest record is below the offset."""
        for scope, entry in list(self.ledger.items()):
            subject = ("ledger", scope, "")
            if entry.ms < older_than_ms and self._written_at[subject] < physical_offset:
                del self.ledger[scope], self._written_at[subject]

    def ledger_record_at(self, scope: str) -> int:
        """Return the physical offset of the newest ledger record of a scope; -1 if there is none."""
        return self._written_at.get(("ledger", scope, ""), -1)

    def subject_values(self) -> list[tuple[_Subject, int, bytes]]:
        """Return each entry with the physical offset of its newest record, and its value in a form to be compared.

        The offset of an entry that has changed since is above every offset of the log.
        """
        changed = {("offsets", topic, group) for topic, group in self.unflushed_offsets}
        return [
            (subject, _NOT_WRITTEN if subject in changed else at, _comparable(self._update(subject)))
            for subject, at in self._written_at.items()
        ]

    def copy(self) -> StateTables:
        """Return the tables as they are now, to be read without the writer's lock; offsets in them may become newer."""
        copied = StateTables()
        copied.topics, copied.groups, copied.offsets = dict(self.topics), dict(self.groups), dict(self.offsets)
        copied.ends, copied.marks, copied.tokens = dict(self.ends), dict(self.marks), dict(self.tokens)
        copied.ledger, copied.epochs, copied.seal_key = dict(self.ledger), list(self.epochs), self.seal_key
        copied._written_at = dict(self._written_at)
        return copied

    def snapshot(self, next_offset: int, log_end: int) -> EncodedStateSnapshot:
        """Return all state. It is encoded piece by piece: while msgspec encodes, no other thread runs."""
        entries = list(self._written_at.items())
        pieces = []
        for first in range(0, len(entries), _PIECE_UPDATES):
            updates = [(at, self._update(subject)) for subject, at in entries[first : first + _PIECE_UPDATES]]
            pieces.append(msgspec.json.encode(updates)[1:-1])
        return EncodedStateSnapshot(next_offset, log_end, msgspec.Raw(b"[%b]" % b",".join(pieces)))

    def restore(self, snapshot: StateSnapshot) -> None:
        for at, update in snapshot.words:
            self.apply([update], at)

    def _update(self, subject: _Subject) -> StateUpdate:
        kind, name, group = subject
        if kind == "topic":
            return TopicUpdate(name, self.topics[name])
        if kind == "group":
            return GroupUpdate(name, self.groups[name])
        if kind == "queues":
            return QueueEndsUpdate(name, dict(self.ends[name]))
        if kind == "mark":
            return MarkUpdate(name, self.marks[name])
        if kind == "token":
            return TokenUpdate(self.tokens[name])
        if kind == "ledger":
            return self.ledger[name]
        if kind == "epochs":
            return EpochUpdate(list(self.epochs))
        if kind == "key":
            assert self.seal_key is not None, "its record was noted when it was set"
            return StateKeyUpdate(self.seal_key)
        return self._offsets_update((name, group))

    def _offsets_update(self, key: tuple[str, str]) -> StateUpdate:
        return OffsetsUpdate(key[0], key[1], dict(self.offsets[key]))


def _comparable(update: StateUpdate) -> bytes:
    """Return an update in a form that is the same on all replicas: maps are sorted."""
    match update:
        case OffsetsUpdate(_, _, by_queue) | QueueEndsUpdate(_, by_queue):
            return _ENCODER.encode(sorted((by_queue or {}).items()))  # it sorts no maps with numbers as keys
        case _:
            return _ENCODER.encode(update)


def _set(table: dict[_Key, _Value], key: _Key, value: _Value | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
