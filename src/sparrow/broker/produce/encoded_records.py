"""Records that a client has encoded (staged writes): validate them, complete them, and split them by lane.

The broker encodes ordinary messages itself, and appends encoded records as they are. So they are checked first, as
columns:

1. Their layout is valid, they have the given topic and sizes, and none is larger than the limit.
2. Checksums match, or are computed here. The born host is set to the peer's address.
3. None has a property that needs more than an append (a delivery time, a transaction), or that is the broker's own.
4. In a topic with lanes, each record goes to the lane of its priority. The order within a lane is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from sparrow.broker.catalog.topics import BROKER_ONLY_TOPICS
from sparrow.broker.produce.lanes import has_lanes, stated_priority
from sparrow.broker.produce.queue_choice import broker_only_topic
from sparrow.model.errors import IllegalMessage, NotPermitted, ProtocolError, Refused, TooLarge, UnknownTopic
from sparrow.model.priority import Priority, read_queue_id
from sparrow.model.protocol import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_PRIORITY,
    PROPERTY_REAL_TOPIC,
    PROPERTY_REFERENCE,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
)
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.wire import columns
from sparrow.wire.columns.encoder import body_crcs
from sparrow.wire.properties import property_value
from sparrow.wire.queue_batches import QueueBatch
from sparrow.wire.record import BORN_HOST_IPV6_FLAG

_AT_CRC: int = columns.HEADER_DTYPE.fields["crc"][1]  # type: ignore[index]
_AT_BORN_HOST: int = columns.HEADER_DTYPE.fields["born_host"][1]  # type: ignore[index]
_AT_SYS_FLAG: int = columns.HEADER_DTYPE.fields["sys_flag"][1]  # type: ignore[index]
_IPV4_BYTES = 8
_DELAYS = (PROPERTY_DELAY_LEVEL, PROPERTY_TIMER_DELAY_S, PROPERTY_TIMER_DELAY_MS)
_SUSPECT_PROPERTIES = (b"DELAY\x01", b"TIMER_DEL", PROPERTY_REFERENCE.encode() + b"\x01")


class IncomingRecords(NamedTuple):
    """A body of encoded records, before validation."""

    batches: Sequence[QueueBatch]
    in_lanes: Sequence[bool]
    """For each queue's records: whether the topic has lanes."""
    fills_checksum: bool
    body_bytes_max: int
    store_host_bytes: int
    born_host: bytes
    """In the layout of records."""
    now_ms: int


def check_destinations(batches: Sequence[QueueBatch], find: Callable[[str], Topic | None]) -> list[bool]:
    """Return whether the topic of each queue has lanes. Refuse a queue that cannot be written."""
    return [has_lanes(_topic_of(part.queue, find)) for part in batches]


def _topic_of(queue: Queue, find: Callable[[str], Topic | None]) -> Topic:
    name = queue.topic
    if name in BROKER_ONLY_TOPICS:
        raise broker_only_topic(name)
    topic = find(name)
    if topic is None:
        raise UnknownTopic(name)
    if not topic.is_writable:
        raise NotPermitted(f"sending to topic {name!r}", "the topic has no write permission")
    count = topic.write_queues if has_lanes(topic) else max(topic.write_queues, topic.read_queues)
    if not 0 <= queue.id < count:
        raise Refused(f"topic {name!r} has no queue {queue.id}: its queues are 0 to {count - 1}")
    return topic


def validate_records(incoming: IncomingRecords) -> list[QueueBatch]:
    """Return the records to be appended, in buffers of their own, or refuse them. Slow: call it in a thread."""
    found: list[QueueBatch] = []
    for part, in_lanes in zip(incoming.batches, incoming.in_lanes, strict=True):
        try:
            whole = _checked(part, incoming)
            found += _split_by_lane(whole) if in_lanes else (whole,)
        except ProtocolError as cause:
            raise Refused(f"the records for {part.queue} are refused: {cause}") from cause
    return found


def _checked(part: QueueBatch, incoming: IncomingRecords) -> QueueBatch:
    data, sizes = bytearray(part.data), part.sizes
    starts = columns.starts_from_sizes(sizes)
    # Decoding with sizes compares them with the lengths in the records.
    bodies = columns.decode(data, sizes=sizes, columns=["body"], expand=False).column(0)
    largest = int(pc.max(pc.binary_length(bodies)).as_py())
    if largest > incoming.body_bytes_max:
        raise TooLarge("a body", largest, incoming.body_bytes_max)
    run = columns.LogRecords.locate(data, starts)
    run.verify(
        topic=part.queue.topic.encode(),
        store_host_bytes=incoming.store_host_bytes,
        verify_crc=not incoming.fills_checksum,
    )
    if incoming.fills_checksum:
        columns.unaligned_view(data, ">u4", _AT_CRC)[starts] = body_crcs(bodies)
    flags = columns.unaligned_view(data, ">i4", _AT_SYS_FLAG)[starts]
    if len(incoming.born_host) == _IPV4_BYTES and not (flags & BORN_HOST_IPV6_FLAG).any():
        columns.unaligned_view(data, f"V{_IPV4_BYTES}", _AT_BORN_HOST)[starts] = np.void(incoming.born_host)
    if any(mark in data for mark in _SUSPECT_PROPERTIES):
        for properties in _properties(data, sizes):
            _check_properties(properties, incoming.now_ms)
    return QueueBatch(part.queue, memoryview(data), sizes)


def _properties(data: bytearray, sizes: object) -> list[bytes]:
    strings = columns.decode(data, sizes=sizes, columns=["properties_raw"], expand=False).column(0)
    return [each.encode() for each in strings.to_pylist()]


def _check_properties(properties: bytes, now_ms: int) -> None:
    if property_value(properties, PROPERTY_REFERENCE) is not None:
        raise IllegalMessage(f"its property {PROPERTY_REFERENCE} is reserved for the broker: remove it")
    if property_value(properties, PROPERTY_REAL_TOPIC) is not None:
        return  # a copy of a message that was delayed before
    property_name = next((name for name in _DELAYS if property_value(properties, name) not in (None, "0")), None)
    due = property_value(properties, PROPERTY_TIMER_DELIVER_MS)
    if due is not None and not (due.isascii() and due.isdecimal() and int(due) <= now_ms):
        property_name = PROPERTY_TIMER_DELIVER_MS  # a delivery time in the past is ignored, as in a send
    if property_name is not None:
        raise IllegalMessage(
            f"its property {property_name} asks for a delivery time, which encoded records cannot have: "
            "send it as a single message"
        )


def _split_by_lane(part: QueueBatch) -> Iterator[QueueBatch]:
    """Split the records of a write queue by lanes."""
    topic, number = part.queue
    if PROPERTY_PRIORITY.encode() not in bytes(part.data):
        yield part._replace(queue=Queue(topic, read_queue_id(number, Priority.MIDDLE)))
        return
    stated = [stated_priority(properties) for properties in _properties(bytearray(part.data), part.sizes)]
    lanes = np.array([Priority.MIDDLE if priority is None else priority for priority in stated])
    starts = columns.starts_from_sizes(part.sizes)
    for lane in Priority:
        rows = np.flatnonzero(lanes == lane)
        if len(rows):
            data = b"".join(
                [part.data[at : at + size] for at, size in zip(starts[rows], part.sizes[rows], strict=True)]
            )
            yield QueueBatch(Queue(topic, read_queue_id(number, lane)), memoryview(data), part.sizes[rows])
