"""State as a view of the log: topics, groups, tokens, committed offsets, marks and the ledger.

Every change is a *word*: a record in the log under a topic of its own. Saying the words again in order gives the state,
so replicating the log replicates it. The newest word on each thing is remembered by place, and said again at the
log's head before retention drops the segment that holds it; a snapshot on disk saves saying them all at every start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import msgspec

from sparrow.model.errors import CorruptRecord
from sparrow.model.queue import Queue
from sparrow.model.token import Token
from sparrow.model.topic import Group, Topic

STATE_QUEUE = Queue("rmq_sys_SPARROW_STATE", 0)
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
