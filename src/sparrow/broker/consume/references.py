"""References: a message that is to be delivered once more, without a second copy of it.

A reference is a record of a retry topic. It has no body, and says where the original lies. Whoever reads a retry topic
for a client puts in its place what these make together:

    of the reference    topic, queue id, queue offset, physical offset, store time and host, times consumed before
    of the original     body, flag, sys flag, born time and host, properties
    added               RETRY_TOPIC, ORIGIN_MESSAGE_ID, RESENT

1. A message that is no reference passes untouched.
2. An original that is gone, or is not the one that was meant, is left out; readers pass over its reference.
3. What an answer may hold is counted with originals. No more than one of them beyond that is in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from sparrow.model.errors import Refused
from sparrow.model.message import Draft, StoredMessage
from sparrow.model.protocol import (
    HALF_TOPIC,
    OP_TOPIC,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REFERENCE,
    PROPERTY_REFERENCE_POSITION,
    PROPERTY_RESENT,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from sparrow.model.queue import Queue
from sparrow.store.spi import STATE_TOPIC, ReadResult, Slice, Store
from sparrow.wire import record
from sparrow.wire.message_ids import format_offset_id
from sparrow.wire.properties import encode, property_value, set_properties

log = logging.getLogger(__name__)


HIDDEN_TOPICS = frozenset({HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, STATE_TOPIC})
"""What no consumer was ever given: delivering it would deliver an uncommitted transaction, or a secret."""

_MARK = PROPERTY_REFERENCE.encode() + b"\x01"
_AT_QUEUE_ID, _AT_BORN = 12, 40
_FEWEST = 2
"""Neighbours that are worth a read of their queue."""


def make_reference(raw: bytes | memoryview, topic: str, properties: bytes) -> Draft:
    """What stands for this record of `topic`. Its properties are the caller's to read: who filters has them already."""
    queue_id = int.from_bytes(raw[_AT_QUEUE_ID : _AT_QUEUE_ID + 4], "big")
    words = {
        PROPERTY_REFERENCE: str(_place_of(raw)),
        PROPERTY_REFERENCE_POSITION: f"{queue_id}:{record.queue_offset_of(raw)}",
        PROPERTY_RETRY_TOPIC: topic,
        # So that filters by tag need not look at the original, and it is not mistaken for another.
        PROPERTY_TAGS: property_value(properties, b"TAGS") or "",
        PROPERTY_UNIQUE_KEY: property_value(properties, b"UNIQ_KEY") or "",
    }
    born_ms = int.from_bytes(raw[_AT_BORN : _AT_BORN + 8], "big", signed=True)
    return Draft(body=b"", properties=encode(words), born_ms=born_ms)


def may_hold_references(topic: str) -> bool:
    """Whether reads of that topic need a look: only retry topics do."""
    return topic.startswith(RETRY_TOPIC_PREFIX)


def may_contain_references(found: ReadResult | None) -> bool:
    """Whether there may be a reference in what was read: a quick look, which a body may deceive."""
    return isinstance(found, Slice) and any(_MARK in bytes(run) for run in found.buffers)


async def resolve_references(store: Store, found: ReadResult, *, bytes_max: int) -> ReadResult:
    """What was read, with originals in place of references: as many as fit, and one at least if any is left."""
    if not isinstance(found, Slice) or not may_contain_references(found):
        return found
    records = list(found.records())
    originals = _Originals(store, [_reference_in(raw) for raw in records])
    kept: list[memoryview] = []
    size, gone, next_offset = 0, 0, found.next_offset
    for which, raw in enumerate(records):
        whole = await originals.of(which, raw, bytes_max=bytes_max - size)
        if whole is None:
            gone += 1
        elif kept and size + len(whole) > bytes_max:
            next_offset = type(next_offset)(record.queue_offset_of(raw))
            break
        else:
            kept.append(memoryview(whole))
            size += len(whole)
    if gone:
        log.warning("resent messages are gone from the store", extra={"count": gone, "before": int(next_offset)})
    return Slice(kept, [len(raw) for raw in kept], next_offset, found.bounds)


async def resolve_record(store: Store, raw: bytes | memoryview) -> bytes | memoryview | None:
    """One record: itself, or what it stands for; None if that is gone."""
    reference = _reference_in(raw)
    if reference is None:
        return raw
    original = await store.record_at(reference.place)
    return None if original is None else _in_its_place(reference.message, original)


class _Reference(NamedTuple):
    message: StoredMessage
    place: int
    queue: Queue | None
    """Where the original is among its neighbours; None if the reference does not say."""
    offset: int


def _reference_in(raw: bytes | memoryview) -> _Reference | None:
    """None: it is a message by itself."""
    if _MARK not in record.properties_of(raw):
        return None
    message = record.decode(raw, verify_crc=False)
    said = message.properties
    place = said.get(PROPERTY_REFERENCE)
    if place is None or not may_hold_references(message.topic):
        return None
    queue_id, _, offset = said.get(PROPERTY_REFERENCE_POSITION, "").partition(":")
    is_said = queue_id.isdecimal() and offset.isdecimal()
    topic = said.get(PROPERTY_RETRY_TOPIC, "")
    queue = Queue(topic, int(queue_id)) if is_said and topic not in HIDDEN_TOPICS else None
    return _Reference(message, int(place) if place.isdecimal() else -1, queue, int(offset) if is_said else 0)


class _Originals:
    """Finds originals: a run of neighbours in one read, which is what resending a range leaves, others one by one."""

    def __init__(self, store: Store, references: Sequence[_Reference | None]) -> None:
        self._store, self._references = store, references
        self._at_hand: dict[int, memoryview] = {}
        self._tried = 0
        """Up to which reference a run was read, and brought nothing."""

    async def of(self, which: int, raw: memoryview, *, bytes_max: int) -> bytes | memoryview | None:
        reference = self._references[which]
        if reference is None:
            return raw
        if reference.place not in self._at_hand and which >= self._tried:
            await self._read_run(which, bytes_max)
        original: bytes | memoryview | None = self._at_hand.get(reference.place)
        if original is None:
            original = await self._store.record_at(reference.place)
        return None if original is None else _in_its_place(reference.message, original)

    async def _read_run(self, first: int, bytes_max: int) -> None:
        count, reference = self._run_from(first), self._references[first]
        if count < _FEWEST or reference is None or reference.queue is None:
            return
        found = await self._store.read(reference.queue, reference.offset, count_max=count, bytes_max=max(bytes_max, 1))
        self._at_hand = {_place_of(raw): raw for raw in found.records()} if isinstance(found, Slice) else {}
        if reference.place not in self._at_hand:
            self._tried = first + count

    def _run_from(self, first: int) -> int:
        """How many references, from this one on, follow one another as their originals do."""
        last = first
        for which in range(first + 1, len(self._references)):
            before, after = self._references[which - 1], self._references[which]
            if before is None or after is None:
                break
            if (after.queue, after.offset) != (before.queue, before.offset + 1):
                break
            last = which
        return last + 1 - first


def _place_of(raw: bytes | memoryview) -> int:
    return int.from_bytes(raw[record.PHYSICAL_OFFSET_POSITION : record.PHYSICAL_OFFSET_POSITION + 8], "big")


def _in_its_place(reference: StoredMessage, original: bytes | memoryview) -> bytes | None:
    message = record.decode(original, verify_crc=False, expand=False)
    is_meant = (
        message.topic == reference.properties.get(PROPERTY_RETRY_TOPIC) and message.unique_key == reference.unique_key
    )
    if not is_meant or message.sys_flag & record.HIDDEN_FLAG or message.topic in HIDDEN_TOPICS:
        return None  # a store that lost its tail has given the place to another
    plain = message.properties
    words = {PROPERTY_RETRY_TOPIC: message.topic, PROPERTY_RESENT: "true"}
    if PROPERTY_ORIGIN_MESSAGE_ID not in plain:
        words[PROPERTY_ORIGIN_MESSAGE_ID] = format_offset_id(message.store_host, message.physical_offset)
    message.topic, message.queue_id = reference.topic, reference.queue_id
    message.queue_offset, message.physical_offset = reference.queue_offset, reference.physical_offset
    message.store_ms, message.store_host = reference.store_ms, reference.store_host
    message.reconsume_times = reference.reconsume_times
    try:
        message.properties = plain | words
        return record.encode_message(message)
    except Refused:  # no room for what we have to say about it: the message itself is more important
        message.properties = plain
        return record.encode_message(message)


def strip_references(properties: bytes) -> bytes:
    """A sender's properties: references are the broker's to make."""
    return (
        set_properties(properties, {PROPERTY_REFERENCE: "", PROPERTY_REFERENCE_POSITION: ""})
        if b"__REF" in properties
        else properties
    )
