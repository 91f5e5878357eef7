"""Lists of the half messages of a log store, from memory; the log has the properties of those that are returned."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from sparrow.broker.transactions.half_messages import HalfMessage
from sparrow.broker.transactions.spi import SCANNED_MAX, TransactionNotEnded
from sparrow.model.errors import ProtocolError
from sparrow.model.protocol import PROPERTY_KEYS, PROPERTY_PRODUCER_GROUP, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY
from sparrow.wire import record
from sparrow.wire.bodies import HalfMessageEntry, HalfMessages, ListHalfMessages
from sparrow.wire.properties import property_text

HalfReader = Callable[[int, HalfMessage], Awaitable[memoryview | bytes]]


async def list_half_messages(
    request: ListHalfMessages,
    halves: Mapping[int, HalfMessage],
    *,
    read: HalfReader,
    next_check_ms: Callable[[HalfMessage], int],
    checks_max: int,
) -> HalfMessages:
    """Return the half messages that a request asks for, by offset in the half queue."""
    offsets = _offsets(request, halves)
    chosen: list[int] = []
    scanned = 0
    for offset in offsets[:SCANNED_MAX]:
        scanned += 1
        if request.topic in (None, halves[offset].topic):
            chosen.append(offset)
            if len(chosen) == request.limit:
                break
    following = offsets[scanned - 1] if scanned < len(offsets) else None
    found = []
    for offset in chosen:
        half = halves.get(offset)
        if half is not None:  # otherwise it has been ended meanwhile
            found.append(await _entry(offset, half, read, next_check_ms(half)))
    return HalfMessages(found, scanned, following, checks_max=checks_max)


def _offsets(request: ListHalfMessages, halves: Mapping[int, HalfMessage]) -> list[int]:
    """Return the offsets to look at. Half messages are added in the order of their offsets, so no sort is needed."""
    if request.half_offset is not None:
        return [request.half_offset] if request.half_offset in halves else []
    offsets = list(halves)
    return offsets if request.after is None else offsets[bisect_right(offsets, request.after) :]


async def _entry(offset: int, half: HalfMessage, read: HalfReader, next_check_ms: int) -> HalfMessageEntry:
    known = HalfMessageEntry(
        half_offset=offset,
        physical_offset=half.physical_offset,
        topic=half.topic,
        store_ms=half.stored_ms,
        checks=half.checks,
        next_check_ms=next_check_ms,
    )
    try:
        raw = await read(offset, half)
        message = record.decode(raw, verify_crc=False, expand=False)
    except (TransactionNotEnded, ProtocolError):  # not visible yet, deleted by retention, or damaged
        return known
    properties = record.properties_of(raw)
    return msgspec.structs.replace(
        known,
        body_bytes=len(message.body),
        producer_group=property_text(properties, PROPERTY_PRODUCER_GROUP) or "",
        unique_key=property_text(properties, PROPERTY_UNIQUE_KEY),
        keys=property_text(properties, PROPERTY_KEYS),
        tags=property_text(properties, PROPERTY_TAGS),
    )
