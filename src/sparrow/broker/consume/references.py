"""References: records in a retry topic that stand for a message to be delivered again, without a copy of it.

A reference has no body; it contains the position of the original. A read of a retry topic for a client replaces it by a
record made of:

    from the reference  topic, queue id, queue offset, physical offset, store time and host, reconsume times
    from the original   body, flag, sys flag, born time and host, properties
    added               RETRY_TOPIC, ORIGIN_MESSAGE_ID, RESENT

1. A message that is not a reference is returned unchanged.
2. An original that is deleted, or does not match the reference, is left out, and readers skip its reference.
3. The byte limit of an answer counts originals. At most one more of them is in memory.
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
"""Topics that no consumer reads. Delivering from them would expose uncommitted transactions or secrets."""

_REFERENCE_NAME = PROPERTY_REFERENCE.encode() + b"\x01"
_AT_QUEUE_ID, _AT_BORN = 12, 40
_RUN_MIN = 2
"""This many consecutive originals, or more, are read together from their queue."""


def make_reference(raw: bytes | memoryview, topic: str, properties: bytes) -> Draft:
    """Return a reference to a record of `topic`. The caller, a filter, has parsed the properties already."""
    queue_id = int.from_bytes(raw[_AT_QUEUE_ID : _AT_QUEUE_ID + 4], "big")
    values = {
        PROPERTY_REFERENCE: str(record.physical_offset_of(raw)),
        PROPERTY_REFERENCE_POSITION: f"{queue_id}:{record.queue_offset_of(raw)}",
        PROPERTY_RETRY_TOPIC: topic,
        # For tag filters, and to verify that the original is the right one.
        PROPERTY_TAGS: property_value(properties, PROPERTY_TAGS) or "",
        PROPERTY_UNIQUE_KEY: property_value(properties, PROPERTY_UNIQUE_KEY) or "",
    }
    born_ms = int.from_bytes(raw[_AT_BORN : _AT_BORN + 8], "big", signed=True)
    return Draft(body=b"", properties=encode(values), born_ms=born_ms)


def may_hold_references(topic: str) -> bool:
    """Return whether records of that topic may be references: only in retry topics."""
    return topic.startswith(RETRY_TOPIC_PREFIX)


def may_contain_references(found: ReadResult | None) -> bool:
    """Return whether the result may contain a reference: quickly, by a search for the bytes of the property's name."""
    return isinstance(found, Slice) and any(_REFERENCE_NAME in bytes(run) for run in found.buffers)


async def resolve_references(store: Store, found: ReadResult, *, bytes_max: int) -> ReadResult:
    """Return the result with originals in place of references: as many as fit, and at least one if any is left."""
    if not isinstance(found, Slice) or not may_contain_references(found):
        return found
    records = list(found.records())
    originals = _Originals(store, [_reference_in(raw) for raw in records])
    resolved: list[memoryview] = []
    size, deleted, next_offset = 0, 0, found.next_offset
    for which, raw in enumerate(records):
        whole = await originals.of(which, raw, bytes_max=bytes_max - size)
        if whole is None:
            deleted += 1
        elif resolved and size + len(whole) > bytes_max:
            next_offset = type(next_offset)(record.queue_offset_of(raw))
            break
        else:
            resolved.append(memoryview(whole))
            size += len(whole)
    if deleted:
        log.warning(
            "%(count)s messages to be resent before offset %(before)s are deleted from the store already",
            {"count": deleted, "before": int(next_offset)},
        )
    return Slice(resolved, [len(raw) for raw in resolved], next_offset, found.bounds)


async def resolve_record(store: Store, raw: bytes | memoryview) -> bytes | memoryview | None:
    """Return the record, or the original it refers to; None if that is deleted."""
    reference = _reference_in(raw)
    if reference is None:
        return raw
    original = await store.record_at(reference.physical_offset)
    return None if original is None else _restored(reference.message, original)


class _Reference(NamedTuple):
    message: StoredMessage
    physical_offset: int
    queue: Queue | None
    """The queue of the original; None if the reference does not contain it."""
    offset: int


def _reference_in(raw: bytes | memoryview) -> _Reference | None:
    """Return the reference in a record; None for an ordinary message."""
    if _REFERENCE_NAME not in record.properties_of(raw):
        return None
    message = record.decode(raw, verify_crc=False)
    properties = message.properties
    physical_offset = properties.get(PROPERTY_REFERENCE)
    if physical_offset is None or not may_hold_references(message.topic):
        return None
    queue_id, _, offset = properties.get(PROPERTY_REFERENCE_POSITION, "").partition(":")
    has_position = queue_id.isdecimal() and offset.isdecimal()
    topic = properties.get(PROPERTY_RETRY_TOPIC, "")
    queue = Queue(topic, int(queue_id)) if has_position and topic not in HIDDEN_TOPICS else None
    return _Reference(
        message, int(physical_offset) if physical_offset.isdecimal() else -1, queue, int(offset) if has_position else 0
    )


class _Originals:
    """Finds originals: consecutive ones (a range was resent) with one read, others one by one."""

    def __init__(self, store: Store, references: Sequence[_Reference | None]) -> None:
        self._store, self._references = store, references
        self._found: dict[int, memoryview] = {}
        self._tried_to = 0
        """Originals of references below this index are read one by one: a common read has not found them."""

    async def of(self, which: int, raw: memoryview, *, bytes_max: int) -> bytes | memoryview | None:
        reference = self._references[which]
        if reference is None:
            return raw
        if reference.physical_offset not in self._found and which >= self._tried_to:
            await self._read_run(which, bytes_max)
        original: bytes | memoryview | None = self._found.get(reference.physical_offset)
        if original is None:
            original = await self._store.record_at(reference.physical_offset)
        return None if original is None else _restored(reference.message, original)

    async def _read_run(self, first: int, bytes_max: int) -> None:
        count, reference = self._run_from(first), self._references[first]
        if count < _RUN_MIN or reference is None or reference.queue is None:
            return
        found = await self._store.read(reference.queue, reference.offset, count_max=count, bytes_max=max(bytes_max, 1))
        self._found = (
            {record.physical_offset_of(raw): raw for raw in found.records()} if isinstance(found, Slice) else {}
        )
        if reference.physical_offset not in self._found:
            self._tried_to = first + count

    def _run_from(self, first: int) -> int:
        """Return how many references, from this one on, have consecutive originals."""
        last = first
        for which in range(first + 1, len(self._references)):
            before, after = self._references[which - 1], self._references[which]
            if before is None or after is None:
                break
            if (after.queue, after.offset) != (before.queue, before.offset + 1):
                break
            last = which
        return last + 1 - first


def _restored(reference: StoredMessage, original: bytes | memoryview) -> bytes | None:
    message = record.decode(original, verify_crc=False, expand=False)
    is_meant = (
        message.topic == reference.properties.get(PROPERTY_RETRY_TOPIC) and message.unique_key == reference.unique_key
    )
    if not is_meant or message.sys_flag & record.HIDDEN_FLAG or message.topic in HIDDEN_TOPICS:
        return None  # a store that lost its tail has assigned the position again
    plain = message.properties
    values = {PROPERTY_RETRY_TOPIC: message.topic, PROPERTY_RESENT: "true"}
    if PROPERTY_ORIGIN_MESSAGE_ID not in plain:
        values[PROPERTY_ORIGIN_MESSAGE_ID] = format_offset_id(message.store_host, message.physical_offset)
    message.topic, message.queue_id = reference.topic, reference.queue_id
    message.queue_offset, message.physical_offset = reference.queue_offset, reference.physical_offset
    message.store_ms, message.store_host = reference.store_ms, reference.store_host
    message.reconsume_times = reference.reconsume_times
    try:
        message.properties = plain | values
        return record.encode_message(message)
    except Refused:  # with the added properties they are too long: deliver the message without these
        message.properties = plain
        return record.encode_message(message)


def strip_references(properties: bytes) -> bytes:
    """Remove references from a sender's properties: only the broker makes them."""
    return (
        set_properties(properties, {PROPERTY_REFERENCE: "", PROPERTY_REFERENCE_POSITION: ""})
        if b"__REF" in properties
        else properties
    )
