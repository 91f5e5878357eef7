"""State updates: the changes of topics, groups, tokens, offsets, marks and the ledger, as records of the log.

A record of the state queue contains a list of updates as JSON. Applying all updates in order gives the state, so a copy
of the log has the state too. Tags and field names are part of the file format.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import msgspec

from sparrow.model.access.token import Token
from sparrow.model.errors import CorruptRecord
from sparrow.model.queue import Queue
from sparrow.model.topic import Group, Topic
from sparrow.store.spi import STATE_TOPIC

STATE_QUEUE = Queue(STATE_TOPIC, 0)
"""RocketMQ treats names that start with `rmq_sys_` as system topics, and leaves them alone."""

_UPDATES_PER_RECORD = 1000


class TopicUpdate(msgspec.Struct, tag="topic", frozen=True):
    """A topic was created, changed or (None) deleted."""

    name: str
    topic: Topic | None


class GroupUpdate(msgspec.Struct, tag="group", frozen=True):
    """A group was created, changed or (None) deleted."""

    name: str
    group: Group | None


class OffsetsUpdate(msgspec.Struct, tag="offsets", frozen=True):
    """All committed offsets of a group on a topic, by queue id; None: they were deleted."""

    topic: str
    group: str
    offsets: dict[int, int] | None


class QueueEndsUpdate(msgspec.Struct, tag="queues", frozen=True):
    """The ends of queues whose messages retention has deleted, by queue id: they continue at these offsets."""

    topic: str
    ends: dict[int, int] | None


class MarkUpdate(msgspec.Struct, tag="mark", frozen=True):
    """A mark was set."""

    name: str
    value: int


class TokenUpdate(msgspec.Struct, tag="token", frozen=True):
    """A token was issued, changed or revoked. Tokens are never deleted."""

    token: Token


class AtomicAppendBegin(msgspec.Struct, tag="begun", frozen=True):
    """The begin of an atomic append, which ends with a `LedgerUpdate`. Without that end, all of it is void."""

    scope: str
    number: int


class EpochUpdate(msgspec.Struct, tag="epochs", frozen=True):
    """The leader epochs of the log so far, as pairs of epoch and start.

    The record of a new epoch may stand behind its start: the unused end of a segment belongs to the epoch, too.
    """

    starts: list[tuple[int, int]]


class StateKeyUpdate(msgspec.Struct, tag="key", frozen=True):
    """The key by which state records are sealed, from this record on (`state_seal`)."""

    key: str


class LedgerUpdate(msgspec.Struct, tag="ledger", frozen=True):
    """The ledger of a scope was set to a number."""

    scope: str
    number: int
    ms: int
    """The time of the append."""
    begun: int = -1
    """The physical offset of the begin of the atomic append that this update ends; -1 if it ends none."""


StateUpdate = (
    TopicUpdate
    | GroupUpdate
    | OffsetsUpdate
    | QueueEndsUpdate
    | MarkUpdate
    | TokenUpdate
    | AtomicAppendBegin
    | LedgerUpdate
    | EpochUpdate
    | StateKeyUpdate
)

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(list[StateUpdate])
_raw_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_update_decoder = msgspec.json.Decoder(StateUpdate)


def encode_updates(updates: Sequence[StateUpdate]) -> Iterator[tuple[Sequence[StateUpdate], bytes]]:
    """Yield updates in batches of moderate size, each with the body of its record."""
    for at in range(0, len(updates), _UPDATES_PER_RECORD):
        batch = updates[at : at + _UPDATES_PER_RECORD]
        yield batch, _encode(batch)


def decode_updates(body: bytes, physical_offset: int) -> list[StateUpdate]:
    """Decode the updates in a record's body. Kinds that only a newer version knows are skipped."""
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
    updates: list[StateUpdate] = []
    with contextlib.suppress(msgspec.ValidationError):
        for raw in _raw_decoder.decode(body):
            with contextlib.suppress(msgspec.ValidationError):
                updates.append(_update_decoder.decode(raw))
    return updates
