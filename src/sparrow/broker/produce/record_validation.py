"""Records that come ready-made, in portions: what may be appended as it is, and where to.

A producer's ordinary messages are laid out by the broker. These are not, so each is looked at, as columns:

1. They lie soundly, are of the topic and size said, and no larger than a message may be.
2. Checksums match, or are filled in here. Who sent them is written in: as with other messages, the peer we see.
3. None asks for what needs more than an append (a delivery time, a transaction), or says what only a broker says.
4. In a topic with lanes each goes to the lane of its priority; the order within a lane stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from sparrow.broker.catalog.topics import BROKER_ONLY_TOPICS
from sparrow.broker.produce.lanes import has_lanes
from sparrow.broker.produce.send import broker_only_topic
from sparrow.model.errors import IllegalMessage, NotPermitted, ProtocolError, Refused, TooLarge, UnknownTopic
from sparrow.model.priority import Priority, parse_priority, read_queue_id
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
_WORTH_A_LOOK = (b"DELAY\x01", b"TIMER_DEL", PROPERTY_REFERENCE.encode() + b"\x01")


class IncomingRecords(NamedTuple):
    """A body of portions, on its way to be checked."""

    portions: Sequence[QueueBatch]
    in_lanes: Sequence[bool]
    """Of each portion: whether its topic has lanes."""
    fills_checksum: bool
    body_bytes_max: int
    store_host_bytes: int
    born_host: bytes
    """As records keep it."""
    now_ms: int


def check_destinations(portions: Sequence[QueueBatch], find: Callable[[str], Topic | None]) -> list[bool]:
    """Whether each portion's topic has lanes; or why its queue takes no messages."""
    return [has_lanes(_topic_of(part.queue, find)) for part in portions]


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
        raise Refused(f"topic {name!r} has no queue {queue.id}: it has {topic.write_queues}")
    return topic


def validate_records(arriving: IncomingRecords) -> list[QueueBatch]:
    """The portions as they are to be appended, in memory of their own; or why not. Takes its time."""
    found: list[QueueBatch] = []
    for part, in_lanes in zip(arriving.portions, arriving.in_lanes, strict=True):
        try:
            whole = _checked(part, arriving)
            found += _laned(whole) if in_lanes else (whole,)
        except ProtocolError as cause:
            raise Refused(f"the records for {part.queue} are refused: {cause}") from cause
    return found


def _checked(part: QueueBatch, arriving: IncomingRecords) -> QueueBatch:
    data, sizes = bytearray(part.data), part.sizes
    starts = columns.starts_from_sizes(sizes)
    # Decoding with sizes compares them with what the records say themselves.
    bodies = columns.decode(data, sizes=sizes, columns=["body"], expand=False).column(0)
    largest = int(pc.max(pc.binary_length(bodies)).as_py())
    if largest > arriving.body_bytes_max:
        raise TooLarge("a body", largest, arriving.body_bytes_max)
    run = columns.LogRecords(data, starts)
    run.verify(
        topic=part.queue.topic.encode(),
        store_host_bytes=arriving.store_host_bytes,
        verify_crc=not arriving.fills_checksum,
    )
    if arriving.fills_checksum:
        columns.unaligned_view(data, ">u4", _AT_CRC)[starts] = body_crcs(bodies)
    flags = columns.unaligned_view(data, ">i4", _AT_SYS_FLAG)[starts]
    if len(arriving.born_host) == _IPV4_BYTES and not (flags & BORN_HOST_IPV6_FLAG).any():
        columns.unaligned_view(data, f"V{_IPV4_BYTES}", _AT_BORN_HOST)[starts] = np.void(arriving.born_host)
    if any(mark in data for mark in _WORTH_A_LOOK):
        for properties in _properties(data, sizes):
            _check_properties(properties, arriving.now_ms)
    return QueueBatch(part.queue, memoryview(data), sizes)


def _properties(data: bytearray, sizes: object) -> list[bytes]:
    strings = columns.decode(data, sizes=sizes, columns=["properties_raw"], expand=False).column(0)
    return [each.encode() for each in strings.to_pylist()]


def _check_properties(properties: bytes, now_ms: int) -> None:
    if property_value(properties, PROPERTY_REFERENCE) is not None:
        raise IllegalMessage(f"its property {PROPERTY_REFERENCE} is the broker's own: leave it out")
    if property_value(properties, PROPERTY_REAL_TOPIC) is not None:
        return  # a copy of a message that has waited before
    late = next((name for name in _DELAYS if property_value(properties, name) not in (None, "0")), None)
    due = property_value(properties, PROPERTY_TIMER_DELIVER_MS)
    if due is not None and not (due.isascii() and due.isdecimal() and int(due) <= now_ms):
        late = PROPERTY_TIMER_DELIVER_MS  # one whose time has passed is simply delivered, as when it is sent
    if late is not None:
        raise IllegalMessage(
            f"its property {late} asks for a delivery time, which ready-made records cannot: send it by itself"
        )


def _laned(part: QueueBatch) -> Iterator[QueueBatch]:
    """A portion for a part of a topic, by lanes."""
    topic, number = part.queue
    if PROPERTY_PRIORITY.encode() + b"\x01" not in bytes(part.data):
        yield part._replace(queue=Queue(topic, read_queue_id(number, Priority.MIDDLE)))
        return
    words = [
        property_value(properties, PROPERTY_PRIORITY) for properties in _properties(bytearray(part.data), part.sizes)
    ]
    lanes = np.array([parse_priority(word) for word in words])
    starts = columns.starts_from_sizes(part.sizes)
    for lane in Priority:
        rows = np.flatnonzero(lanes == lane)
        if len(rows):
            data = b"".join(
                [part.data[at : at + size] for at, size in zip(starts[rows], part.sizes[rows], strict=True)]
            )
            yield QueueBatch(Queue(topic, read_queue_id(number, lane)), memoryview(data), part.sizes[rows])
