"""Batches of records for several queues in one body: the body of staged and idempotent appends.

    bytes       field
    4           number of batches
                each batch:
    2 + n       topic
    4           queue id
    4           number of records
    4           size of all records
    4 * r       size of each record
    b           the records, end to end, as `columns.encode` lays them out

1. All numbers are big-endian. A batch has at least one record.
2. Any bytes give batches that cover every byte, or a `ProtocolError`. The contents of records are not checked.
3. Records are not copied.
4. The number of batches in a request has a limit: decoding takes some microseconds for each, however small it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparrow.model.errors import ProtocolError
from sparrow.model.queue import Queue
from sparrow.wire.record import RECORD_BYTES_MIN

_COUNT = Struct(">I")
_TOPIC_BYTES = Struct(">H")
_NUMBERS = Struct(">iII")
BATCHES_MAX = 10_000
"""Batches in one request."""
_SMALLEST = _TOPIC_BYTES.size + 1 + _NUMBERS.size + 4 + RECORD_BYTES_MIN


class QueueBatch(NamedTuple):
    """Encoded records of one queue, end to end, as `columns.encode` lays them out; not yet stamped by a store."""

    queue: Queue
    data: memoryview
    sizes: NDArray[np.int32]
    """The size of each record."""


class _Positions(NamedTuple):
    """The positions of the parts of a batch."""

    queue: Queue
    sizes_at: int
    records_at: int
    end: int


def encode(batches: Iterable[tuple[Queue, bytes | memoryview, NDArray[np.int32]]]) -> bytes:
    """Encode batches as one body. They are appended in this order."""
    parts: list[bytes | memoryview] = [b""]
    for queue, data, sizes in batches:
        topic, view = queue.topic.encode(), memoryview(data).cast("B")
        assert len(sizes), "a batch has at least one record"
        assert int(np.sum(sizes, dtype=np.int64)) == len(view), "the sizes add up to the length of the data"
        parts += (
            _TOPIC_BYTES.pack(len(topic)),
            topic,
            _NUMBERS.pack(queue.id, len(sizes), len(view)),
            np.asarray(sizes, ">i4").tobytes(),
            view,
        )
    parts[0] = _COUNT.pack(len(parts) // 5)
    return b"".join(parts)


def decode(body: bytes | memoryview, *, batches_max: int = sys.maxsize) -> list[QueueBatch]:
    """Decode the batches of a body, without copying its bytes."""
    view = memoryview(body).cast("B")
    found = []
    for queue, sizes_at, records_at, end in _walk(view, batches_max):
        sizes = np.frombuffer(view[sizes_at:records_at], ">u4")
        if int(sizes.min()) < RECORD_BYTES_MIN or int(sizes.sum(dtype=np.uint64)) != end - records_at:
            raise ProtocolError(f"the sizes of the records for {queue} do not add up to their bytes")
        found.append(QueueBatch(queue, view[records_at:end], sizes.astype(np.int32)))
    return found


def topics_in(body: bytes | memoryview) -> set[str]:
    """Return the topics of all batches of a request, without decoding the records."""
    return {positions.queue.topic for positions in _walk(memoryview(body).cast("B"), BATCHES_MAX)}


def _walk(view: memoryview, batches_max: int) -> Iterator[_Positions]:
    if len(view) < _COUNT.size:
        raise ProtocolError(f"{len(view)} bytes are too few for a batch count")
    (count,) = _COUNT.unpack_from(view)
    at, total = _COUNT.size, len(view)
    if count > batches_max:
        raise ProtocolError(f"{count} batches are too many for one request: {batches_max} is the maximum")
    if count > (total - at) // _SMALLEST:
        raise ProtocolError(f"{total} bytes cannot hold {count} batches")
    for number in range(count):
        if total - at < _SMALLEST:
            raise ProtocolError(f"the body ends within batch {number}")
        (topic_bytes,) = _TOPIC_BYTES.unpack_from(view, at)
        at += _TOPIC_BYTES.size
        numbers_at = at + topic_bytes
        if not topic_bytes or numbers_at + _NUMBERS.size > total:
            raise ProtocolError(f"the topic of batch {number} has {topic_bytes} bytes")
        try:
            topic = str(view[at:numbers_at], "utf-8")
        except UnicodeDecodeError as cause:
            raise ProtocolError(f"the topic of batch {number} is not UTF-8") from cause
        queue_id, records, size = _NUMBERS.unpack_from(view, numbers_at)
        sizes_at = numbers_at + _NUMBERS.size
        records_at = sizes_at + 4 * records
        if queue_id < 0 or not records or records_at + size > total:
            raise ProtocolError(f"batch {number} is invalid: {records} records of {size} bytes for queue {queue_id}")
        at = records_at + size
        yield _Positions(Queue(topic, queue_id), sizes_at, records_at, at)
    if at != total:
        raise ProtocolError(f"{total - at} bytes follow the last batch")
