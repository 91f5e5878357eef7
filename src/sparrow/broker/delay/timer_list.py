"""Lists of the delayed messages of a log store, read from the timer wheel and the log.

The loop only copies buckets of the timer wheel. Threads sort them and read records that are not in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np

from sparrow.broker.delay.cancellations import Cancellations
from sparrow.broker.delay.spi import SCANNED_MAX
from sparrow.broker.delay.timer_records import recorded_due_ms
from sparrow.broker.delay.timer_wheel import Ints, TimerArrays, TimerWheel
from sparrow.model.errors import ProtocolError
from sparrow.model.protocol import PROPERTY_KEYS, PROPERTY_REAL_TOPIC, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY
from sparrow.wire import record
from sparrow.wire.bodies import DelayedMessageEntry, DelayedMessages, ListDelayed, TimerPosition
from sparrow.wire.properties import property_text

_READ_PER_BATCH = 128

RecordReader = Callable[[Ints], Awaitable[dict[int, bytes]]]


async def list_timers(
    request: ListDelayed, timers: TimerWheel, cancelled: Cancellations, read: RecordReader
) -> DelayedMessages:
    """Return the messages that a request asks for; `read` returns records by their references."""
    after = request.after or (request.from_ms, -1)
    candidates = timers.timers_after(*after, count_min=SCANNED_MAX + 1)
    due_ms, references = await asyncio.to_thread(_first_timers, candidates, SCANNED_MAX + 1, request.until_ms)
    found: list[DelayedMessageEntry] = []
    scanned = 0
    while scanned < min(len(references), SCANNED_MAX):
        batch = slice(scanned, min(scanned + _READ_PER_BATCH, SCANNED_MAX))
        records = await read(references[batch])
        for position in zip(due_ms[batch].tolist(), references[batch].tolist(), strict=True):
            scanned += 1
            raw = records.get(position[1])
            entry = _entry(position, raw) if raw is not None else None
            if entry is not None and _matches(entry, request, cancelled):
                found.append(entry)
                if len(found) == request.limit:
                    break
        if len(found) == request.limit:
            break
    is_complete = scanned == len(references)
    end = None if is_complete else (int(due_ms[scanned - 1]), int(references[scanned - 1]))
    return DelayedMessages(found, scanned, end)


def _first_timers(timers: TimerArrays, count: int, until_ms: int | None) -> TimerArrays:
    """Return the first timers, sorted by time and reference."""
    due_ms, references = timers
    if until_ms is not None:
        is_before = due_ms < until_ms
        due_ms, references = due_ms[is_before], references[is_before]
    if len(due_ms) > count:
        last = np.partition(due_ms, count - 1)[count - 1]
        is_first = due_ms <= last
        due_ms, references = due_ms[is_first], references[is_first]
    order = np.lexsort((references, due_ms))[:count]
    return due_ms[order], references[order]


def _matches(entry: DelayedMessageEntry, request: ListDelayed, cancelled: Cancellations) -> bool:
    return (
        request.topic in (None, entry.topic)
        and request.unique_key in (None, entry.unique_key)
        and not cancelled.has(entry.topic, entry.unique_key, entry.due_ms)
    )


def _entry(position: TimerPosition, raw: bytes) -> DelayedMessageEntry | None:
    try:
        message = record.decode(raw, verify_crc=False, expand=False)
    except ProtocolError:
        return None  # the delivery logs and drops it
    properties = record.properties_of(raw)
    topic = property_text(properties, PROPERTY_REAL_TOPIC)
    if topic is None:
        return None
    return DelayedMessageEntry(
        position=position,
        topic=topic,
        due_ms=recorded_due_ms(position[1], properties, message.store_ms),
        store_ms=message.store_ms,
        body_bytes=len(message.body),
        unique_key=property_text(properties, PROPERTY_UNIQUE_KEY),
        keys=property_text(properties, PROPERTY_KEYS),
        tags=property_text(properties, PROPERTY_TAGS),
    )
