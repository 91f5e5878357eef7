"""State as a view of the log: topics, groups, tokens, committed offsets, marks and the ledger.

Every change is a *word*: a record in the log under a topic of its own. Saying the words again in order gives the state,
so replicating the log replicates it. The newest word on each thing is remembered by place, and said again at the
log's head before retention drops the segment that holds it; a snapshot on disk saves saying them all at every start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from sparrow.model.errors import CorruptRecord
from sparrow.model.queue import Queue
from sparrow.model.token import Token
from sparrow.model.topic import Group, Topic
from sparrow.store.spi import STATE_TOPIC

STATE_QUEUE = Queue(STATE_TOPIC, 0)
"""RocketMQ takes names that start `rmq_sys_` for system topics, and leaves them alone."""

_UPDATES_PER_RECORD = 1000


class TopicUpdate(msgspec.Struct, tag="topic", frozen=True):
    """A topic is like this now, or is gone."""

    name: str
    topic: Topic | None


class GroupUpdate(msgspec.Struct, tag="group", frozen=True):
    """A group is like this now, or is gone."""

    name: str
    group: Group | None


class OffsetsUpdate(msgspec.Struct, tag="offsets", frozen=True):
    """A group will read these queues of a topic from these offsets on, or has forgotten the topic."""

    topic: str
    group: str
    offsets: dict[int, int] | None


class QueueEndsUpdate(msgspec.Struct, tag="queues", frozen=True):
    """Queues of a topic go on at these offsets, though retention took all their messages."""

    topic: str
    ends: dict[int, int] | None


class MarkUpdate(msgspec.Struct, tag="mark", frozen=True):
    """How far some work of the broker's own has got."""

    name: str
    value: int


class TokenUpdate(msgspec.Struct, tag="token", frozen=True):
    """A token is like this now. None ever goes."""

    token: Token


class AtomicAppendBegin(msgspec.Struct, tag="begun", frozen=True):
    """What follows belongs together, up to the word of the ledger on it. Where that is missing, all of it is void."""

    scope: str
    number: int


class LedgerUpdate(msgspec.Struct, tag="ledger", frozen=True):
    """A scope has got as far as this."""

    scope: str
    number: int
    ms: int
    """When it did."""
    begun: int = -1
    """Where the group stands begun that this is the end of; -1 where it is the end of none: said again."""


StateUpdate = (
    TopicUpdate
    | GroupUpdate
    | OffsetsUpdate
    | QueueEndsUpdate
    | MarkUpdate
    | TokenUpdate
    | AtomicAppendBegin
    | LedgerUpdate
)
_Subject = tuple[str, str, str]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(list[StateUpdate])
_one_by_one = msgspec.json.Decoder(list[msgspec.Raw])
_word_decoder = msgspec.json.Decoder(StateUpdate)


def encode_updates(words: Sequence[StateUpdate]) -> Iterator[tuple[Sequence[StateUpdate], bytes]]:
    """The words in portions of moderate size, each with the body of the record that says it."""
    for at in range(0, len(words), _UPDATES_PER_RECORD):
        portion = words[at : at + _UPDATES_PER_RECORD]
        yield portion, _encode(portion)


def decode_updates(body: bytes, physical_offset: int) -> list[StateUpdate]:
    """The words in a record's body. One that a newer Sparrow said, and we do not know, does not take others with it."""
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as unknown:
        known = _known_updates(body)
        if not known:
            raise CorruptRecord(physical_offset, f"a state record cannot be read: {unknown}") from unknown
        return known
    except msgspec.DecodeError as cause:
        raise CorruptRecord(physical_offset, f"a state record cannot be read: {cause}") from cause


def _known_updates(body: bytes) -> list[StateUpdate]:
    words: list[StateUpdate] = []
    with contextlib.suppress(msgspec.ValidationError):
        for raw in _one_by_one.decode(body):
            with contextlib.suppress(msgspec.ValidationError):
                words.append(_word_decoder.decode(raw))
    return words


class StateSnapshot(msgspec.Struct):
    """All state as of one place in the state queue."""

    next_offset: int
    """In the state queue: words from here on are not in it."""
    log_end: int
    """A log that was cut below this place makes the snapshot useless."""
    words: list[tuple[int, StateUpdate]]
    """Each with the physical offset of the record that said it."""


class StateTables:
    """What the words said so far add up to. Changed under the store's lock."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.offsets: dict[tuple[str, str], dict[int, int]] = {}
        """(topic, group) -> queue id -> offset."""
        self.ends: dict[str, dict[int, int]] = {}
        """topic -> queue id -> where the queue goes on, of queues that once were empty but not new."""
        self.marks: dict[str, int] = {}
        self.tokens: dict[str, Token] = {}
        self.ledger: dict[str, LedgerUpdate] = {}
        self.unflushed_offsets: set[tuple[str, str]] = set()
        """Offsets that changed since they were last said: commits are frequent and are said together."""
        self._said_at: dict[_Subject, int] = {}

    def clear(self) -> None:
        """Back to knowing nothing: the log is about to be heard again."""
        self.topics.clear()
        self.groups.clear()
        self.offsets.clear()
        self.ends.clear()
        self.marks.clear()
        self.tokens.clear()
        self.ledger.clear()
        self.unflushed_offsets.clear()
        self._said_at.clear()

    def apply(self, words: Iterable[StateUpdate], physical_offset: int) -> None:
        """Take in words that stand in the log."""
        for word in words:
            match word:
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
                case AtomicAppendBegin():
                    continue  # of no meaning by itself: whoever reads the log sees to it that an end follows
            if self._is_there(word):
                self._said_at[subject] = physical_offset
            else:
                self._said_at.pop(subject, None)

    @staticmethod
    def _is_there(word: StateUpdate) -> bool:
        match word:
            case TopicUpdate(_, value) | GroupUpdate(_, value):
                return value is not None
            case OffsetsUpdate(_, _, offsets):
                return offsets is not None
            case QueueEndsUpdate(_, ends):
                return ends is not None
            case MarkUpdate() | TokenUpdate() | LedgerUpdate():
                return True
            case AtomicAppendBegin():
                return False

    def offsets_record_at(self, topic: str, group: str) -> int:
        """Where the newest word on a group's offsets stands; -1 if there is none."""
        return self._said_at.get(("offsets", topic, group), -1)

    def take_changed_offsets(self) -> list[StateUpdate]:
        """Words for the offsets that changed since the last call."""
        changed, self.unflushed_offsets = self.unflushed_offsets, set()
        return [self._offsets_word(subject) for subject in sorted(changed) if subject in self.offsets]

    def updates_before(self, physical_offset: int) -> list[StateUpdate]:
        """Words on everything whose newest word stands below the offset: to be said again before that part goes."""
        return [self._word(subject) for subject, at in self._said_at.items() if at < physical_offset]

    def expire_scopes(self, physical_offset: int, older_than_ms: int) -> None:
        """Let go of what the ledger was last told so long ago, and below the offset: it is not said again."""
        for scope, said in list(self.ledger.items()):
            subject = ("ledger", scope, "")
            if said.ms < older_than_ms and self._said_at[subject] < physical_offset:
                del self.ledger[scope], self._said_at[subject]

    def ledger_record_at(self, scope: str) -> int:
        """Where the newest word on a scope stands; -1 if there is none."""
        return self._said_at.get(("ledger", scope, ""), -1)

    def snapshot(self, next_offset: int, log_end: int) -> StateSnapshot:
        words = [(at, self._word(subject)) for subject, at in self._said_at.items()]
        return StateSnapshot(next_offset=next_offset, log_end=log_end, words=words)

    def restore(self, snapshot: StateSnapshot) -> None:
        for at, word in snapshot.words:
            self.apply([word], at)

    def _word(self, subject: _Subject) -> StateUpdate:
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
        return self._offsets_word((name, group))

    def _offsets_word(self, key: tuple[str, str]) -> StateUpdate:
        return OffsetsUpdate(key[0], key[1], dict(self.offsets[key]))


def _set(table: dict[_Key, _Value], key: _Key, value: _Value | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
