"""Records of delayed messages in the log: references to them, reading by reference, and loading them at startup.

A reference is one integer: the index of the queue in `DELAY_QUEUES` (the "source") and the physical offset.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from sparrow.broker.delay.delay_queues import DELAY_QUEUES, TIMER_QUEUE_INDEX
from sparrow.broker.delay.timer_wheel import Ints
from sparrow.model.delay_levels import DELAY_LEVELS_MS
from sparrow.model.errors import ProtocolError
from sparrow.model.message import Draft
from sparrow.model.protocol import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_CANCEL_KEY,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLLED_FROM,
)
from sparrow.model.queue import Queue, QueueBounds
from sparrow.store.log import LogStore
from sparrow.store.spi import Moved, Slice
from sparrow.wire import columns, record
from sparrow.wire.checksum import body_crc
from sparrow.wire.columns.properties import ParsedProperties
from sparrow.wire.properties import parse_whole_number, property_bytes, property_value

log = logging.getLogger(__name__)

_OFFSET_BITS = 56
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_LOADED_AT_ONCE = 8_192
_OFFSET_POSITION = slice(record.PHYSICAL_OFFSET_POSITION, record.PHYSICAL_OFFSET_POSITION + 8)
_FIRST_READ_BYTES = 1_024
"""The size of the first read; most messages are not larger."""


class LoadedTimers(NamedTuple):
    """The result of one read at startup."""

    due_ms: Ints
    """The store time plus the level's delay, or the given delivery time."""
    references: Ints
    cancelled: list[tuple[str, int, int]]
    """`topic+key` of cancelled messages, their delivery time, and the reference of the cancellation."""
    replaced: Ints
    """References that a later copy replaces."""


def timer_reference(source: int, physical_offset: int) -> int:
    """Return the reference of a record: its source and physical offset, so that it is read without its queue."""
    return source << _OFFSET_BITS | physical_offset


def physical_offset_of(reference: int) -> int:
    return reference & _OFFSET_MASK


def recorded_due_ms(reference: int, properties: bytes, store_ms: int) -> int:
    """Return the delivery time that the record of a message states; a clock that was set may have changed it since."""
    due_ms = parse_whole_number(property_bytes(properties, PROPERTY_TIMER_OUT_MS))
    source = reference >> _OFFSET_BITS
    if due_ms is None:
        return store_ms + (DELAY_LEVELS_MS[source] if source != TIMER_QUEUE_INDEX else 0)
    return due_ms


def physical_offsets_of(references: Ints) -> Ints:
    return references & _OFFSET_MASK


def oldest_physical_offsets(references: Ints) -> dict[int, int]:
    """Return the smallest physical offset of each source in the references."""
    ordered = np.sort(references)
    starts = np.searchsorted(ordered, np.arange(len(DELAY_QUEUES)) << _OFFSET_BITS)
    found = {}
    for source, at in enumerate(starts.tolist()):
        if at < len(ordered) and int(ordered[at]) >> _OFFSET_BITS == source:
            found[source] = physical_offset_of(int(ordered[at]))
    return found


def oldest_queue_offsets(store: LogStore, references: Ints, bounds: list[QueueBounds]) -> list[int]:
    """Return the queue offset of the oldest reference in each source; the end of the queue if there is none."""
    oldest_of = {
        source: timer_reference(source, physical_offset)
        for source, physical_offset in oldest_physical_offsets(references).items()
    }
    found = read_records(store, oldest_of.values())
    offsets = [int(end) for _, end in bounds]
    for source, reference in oldest_of.items():
        raw = found.get(reference)
        offsets[source] = (
            min(record.queue_offset_of(raw), offsets[source]) if raw is not None else int(bounds[source].first)
        )
    return offsets


def copy_records(found: Slice) -> Iterator[memoryview]:
    """Yield copies of the records: the log may be unmapped meanwhile."""
    data, at = memoryview(found.tobytes()), 0
    for size in found.sizes:
        yield data[at : at + size]
        at += size


def read_records(store: LogStore, references: Iterable[int]) -> dict[int, bytes]:
    """Return the records that still exist. Blocking I/O."""
    found: dict[int, bytes] = {}
    for reference in sorted(references):
        physical_offset = physical_offset_of(reference)
        try:
            data = store.raw(physical_offset, _FIRST_READ_BYTES)
            size = int.from_bytes(data[:4], "big")
            if size > len(data):
                data = store.raw(physical_offset, size)
        except OSError:  # retention has just closed the file
            continue
        if (
            record.RECORD_BYTES_MIN <= size <= len(data)
            and int.from_bytes(data[_OFFSET_POSITION], "big") == physical_offset
        ):
            found[reference] = data[:size]
    return found


def parse_delayed(raw: bytes) -> tuple[Draft | None, Queue | None]:
    """Return a delayed message and its destination; (None, None) if it has none."""
    try:
        draft = record.draft_from_record(raw)
        topic, number = (
            property_value(draft.properties, PROPERTY_REAL_TOPIC),
            property_value(draft.properties, PROPERTY_REAL_QUEUE_ID),
        )
    except ProtocolError:
        topic = number = None
    else:
        if draft.body and body_crc(draft.body) != int.from_bytes(raw[8:12], "big") & 0x7FFFFFFF:
            topic = None
    queue_id = parse_whole_number(number)
    if topic is None or queue_id is None:
        log.error(
            "the delayed message at queue offset %(queue_offset)s is damaged, or has no destination; it is dropped",
            {"queue_offset": record.queue_offset_of(raw)},
        )
        return None, None
    return draft, Queue(topic, queue_id)


async def load_timers(store: LogStore, source: int, offset: int) -> AsyncIterator[LoadedTimers]:
    """Yield the timers of a source from an offset on."""
    queue = DELAY_QUEUES[source]
    while True:
        found = await store.read(queue, offset, count_max=_LOADED_AT_ONCE, bytes_max=4 << 20)
        if isinstance(found, Slice):
            if found.sizes:
                yield _loaded(source, found)
            offset = found.next_offset
        elif isinstance(found, Moved) and found.to > offset:
            offset = found.to
        else:
            return


def _loaded(source: int, found: Slice) -> LoadedTimers:
    wanted = ["physical_offset", "store_timestamp"]
    data = found.tobytes()
    batch = columns.decode(data, sizes=found.sizes, columns=wanted)
    references = batch.column(0).to_numpy() | source << _OFFSET_BITS
    stored_ms = batch.column(1).cast("int64").to_numpy() // 1000
    nothing = np.empty(0, np.int64)
    if source != TIMER_QUEUE_INDEX:
        return LoadedTimers(stored_ms + DELAY_LEVELS_MS[source], references, [], nothing)
    properties = list(_timer_properties(data, found))
    # Without a delivery time it was due when it was stored. RocketMQ always sets one.
    numbers = (parse_whole_number(due) for due, _, _ in properties)
    due_ms = np.array([-1 if due is None else due for due in numbers], np.int64)
    due_ms = np.where(due_ms < 0, stored_ms, due_ms)
    cancelled = [
        (name.decode("utf-8", "replace"), due, reference)
        for (_, name, _), due, reference in zip(properties, due_ms.tolist(), references.tolist(), strict=True)
        if name is not None
    ]
    is_message = np.array([name is None for _, name, _ in properties], np.bool_)
    replaced = [int(number) for _, _, number in properties if number is not None and number.isdigit()]
    return LoadedTimers(due_ms[is_message], references[is_message], cancelled, np.array(replaced, np.int64))


def _timer_properties(data: bytes, found: Slice) -> Iterable[tuple[bytes | None, bytes | None, bytes | None]]:
    """Yield for each timer: its delivery time, what it cancels, what it replaces."""
    try:
        raw: Any = columns.decode(data, sizes=found.sizes, columns=["properties_raw"]).column(0)
    except ProtocolError:  # one of them is not UTF-8: decode the others one by one
        return [
            tuple(
                _encoded(properties, name)
                for name in (PROPERTY_TIMER_OUT_MS, PROPERTY_TIMER_CANCEL_KEY, PROPERTY_TIMER_ROLLED_FROM)
            )  # type: ignore[misc]
            for properties in map(record.properties_of, copy_records(found))
        ]
    properties = ParsedProperties(raw)
    return zip(
        *(
            properties.get(name).to_pylist()
            for name in (PROPERTY_TIMER_OUT_MS, PROPERTY_TIMER_CANCEL_KEY, PROPERTY_TIMER_ROLLED_FROM)
        ),
        strict=True,
    )


def _encoded(properties: bytes, name: str) -> bytes | None:
    try:
        value = property_value(properties, name)
    except ProtocolError:
        return None
    return None if value is None else value.encode()
