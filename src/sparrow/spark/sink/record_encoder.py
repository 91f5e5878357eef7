"""Encode rows as records, and collect the records of a broker into blobs, one for each request.

There is no loop over rows, except over bodies to be compressed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparrow.model.errors import Refused
from sparrow.model.protocol import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
)
from sparrow.model.queue import Queue
from sparrow.spark.sink.message_columns import MessageRows
from sparrow.spark.sink.options import SinkOptions
from sparrow.spark.sink.queue_selection import sort_by_queue
from sparrow.wire import queue_batches
from sparrow.wire.bodies import QueueRef
from sparrow.wire.columns import encode
from sparrow.wire.columns.encoder import PACKED_LOOPBACK
from sparrow.wire.columns.layout import byte_view, data_and_offsets
from sparrow.wire.compression import Compression, compress
from sparrow.wire.message_ids import UniqueIdGenerator
from sparrow.wire.queue_batches import QueueBatch

BLOB_BYTES_MAX = 2 * 1024 * 1024
"""Maximum bytes of records in one request. A longer record goes alone."""
_PIECE_BYTES = 8 * 1024 * 1024
"""Bytes encoded at a time. Larger pieces do not fit the processor's cache, and are in memory twice."""


def split_rows(rows: MessageRows) -> Iterator[MessageRows]:
    """Yield the rows in runs that are short enough to be encoded at a time."""
    step = max(1, int(_PIECE_BYTES * len(rows) / max(rows.nbytes, 1)))
    if step >= len(rows):
        yield rows
        return
    for at in range(0, len(rows), step):
        yield rows.slice(at, step)


class RowIds:
    """Unique message ids for many rows at once, in the format of `wire.ids`. Ids of one maker always increase."""

    def __init__(self, unique_ids: UniqueIdGenerator) -> None:
        self._make = unique_ids.make
        self._next = 0

    def make(self, count: int) -> pa.Array:
        """Return this many new ids."""
        base = self._make()
        # Time and counter form one number: when the counter overflows, ids of the next millisecond are used.
        first = max(int(base[-_TAIL_CHARS:], 16), self._next)
        self._next = first + count
        tails = (first + np.arange(count, dtype=np.uint64)).astype(">u8").view(np.uint8).reshape(-1, 8)[:, 2:]
        chars = np.empty((count, len(base)), np.uint8)
        chars[:, :-_TAIL_CHARS] = np.frombuffer(base[:-_TAIL_CHARS].encode(), np.uint8)
        chars[:, -_TAIL_CHARS:] = np.take(_HEX, tails, axis=0).view(np.uint8).reshape(count, _TAIL_CHARS)
        offsets = np.arange(0, (count + 1) * len(base), len(base), dtype=np.int32)
        return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(chars)])

    def fill(self, given: pa.Array | None, count: int) -> pa.Array:
        """Return the given ids, with new ones for rows without an id."""
        if given is None:
            return self.make(count)
        is_there = pc.greater(pc.binary_length(given), 0).fill_null(False)
        missing = len(given) - is_there.true_count
        return given if not missing else pc.replace_with_mask(given, pc.invert(is_there), self.make(missing))


_TAIL_CHARS = 12
_HEX = np.frombuffer(bytes(range(256)).hex().upper().encode(), np.uint16)
"""The two hexadecimal characters of each byte."""


class RecordEncoder:
    """Encodes the rows of one task as records."""

    def __init__(
        self, options: SinkOptions, ids: RowIds, now_ms: Callable[[], int], *, born_host: bytes = PACKED_LOOPBACK
    ) -> None:
        self._options, self._ids, self._now_ms = options, ids, now_ms
        self._born_host = (
            born_host if len(born_host) == len(PACKED_LOOPBACK) else PACKED_LOOPBACK
        )  # the columnar encoder supports IPv4 only

    def encode_batches(
        self, rows: MessageRows, queues: tuple[QueueRef, ...], indexes: NDArray[Any]
    ) -> Iterator[tuple[str, QueueBatch]]:
        """Yield the records of one topic's rows, queue by queue, with the name of the broker."""
        refuse_delayed(rows, self._options, self._now_ms())
        order, shares = sort_by_queue(indexes)
        if len(shares) > 1:
            rows = rows.take(order)
            indexes = indexes[order]
        body, sys_flag = rows.body, 0
        if self._options.compression is not None:
            body, sys_flag = compress_bodies(body, self._options.compression, self._options.compress_min_bytes)
        numbers = np.array([queue.queue_id for queue in queues], np.int32)
        encoded = encode(
            body,
            topic=queues[0].topic,
            queue_id=numbers[indexes],
            keys=rows.keys,
            tags=rows.tags,
            msg_ids=self._ids.fill(rows.msg_id, len(rows)) if rows.properties_raw is None else None,
            properties=rows.all_properties(),
            properties_raw=rows.properties_raw,
            flag=_numbers(rows.flag),
            sys_flag=sys_flag if rows.sys_flag is None else _numbers(rows.sys_flag),
            born_ms=self._born_ms(rows),
            born_host=self._born_host,
            reconsume_times=_numbers(rows.reconsume_times),
            checksum=not self._options.fills_checksum,
        )
        data, ends = byte_view(encoded.data), np.cumsum(encoded.sizes, dtype=np.int64)
        for index, share in shares:
            queue = queues[index]
            for start, stop in _cut(ends, share):
                start_byte = int(ends[start - 1]) if start else 0
                view = data[start_byte : int(ends[stop - 1])]
                yield queue.broker_name, QueueBatch(Queue(queue.topic, queue.queue_id), view, encoded.sizes[start:stop])

    def _born_ms(self, rows: MessageRows) -> Any:
        now_ms = self._now_ms()
        if rows.born_ms is None:
            return now_ms
        return rows.born_ms.fill_null(now_ms).to_numpy(zero_copy_only=False)


def _numbers(column: pa.Array | None) -> Any:
    return 0 if column is None else column.fill_null(0).to_numpy(zero_copy_only=False)


def _cut(ends: NDArray[np.int64], share: slice) -> Iterator[tuple[int, int]]:
    """Yield runs of records of at most `BLOB_BYTES_MAX`, or of one record."""
    start = share.start
    while start < share.stop:
        room_end = BLOB_BYTES_MAX + (int(ends[start - 1]) if start else 0)
        stop = min(max(int(np.searchsorted(ends, room_end, "right")), start + 1), share.stop)
        yield start, stop
        start = stop


class BlobBuilder:
    """Collects records for one broker into blobs."""

    def __init__(self, topic: str) -> None:
        """Start with no records. The route of `topic` contains the broker."""
        self.topic = topic
        self._batches: list[QueueBatch] = []
        self._bytes = 0
        self.rows = self.blobs = 0
        """Rows added and blobs taken so far."""

    def add(self, batch: QueueBatch) -> bytes | None:
        """Add records; return the blob of those before, if these would make it too large."""
        is_full = self._bytes + len(batch.data) > BLOB_BYTES_MAX or len(self._batches) == queue_batches.BATCHES_MAX
        full = self.take() if is_full else None
        self._batches.append(batch)
        self._bytes += len(batch.data)
        self.rows += len(batch.sizes)
        return full

    def take(self) -> bytes | None:
        """Return the blob of the collected records, or None if there are none."""
        if not self._batches:
            return None
        blob = queue_batches.encode(self._batches)
        self._batches, self._bytes = [], 0
        self.blobs += 1
        return blob


def refuse_delayed(rows: MessageRows, options: SinkOptions, now_ms: int) -> None:
    """Refuse rows with a delay that is not over: only a send request can delay a message."""
    for row, name, value in rows.entries(PROPERTY_TIMER_DELIVER_MS, *DELAY_PROPERTIES):
        is_past = name == PROPERTY_TIMER_DELIVER_MS and value.isdecimal() and int(value) <= now_ms
        if value not in UNSET_VALUES and not is_past:
            raise Refused(
                f"row {rows.row_number(row)} of its partition has the property {name}, which delays delivery; "
                f"delivery={options.delivery.value} does not support it. Remove it, or set delivery=atLeastOnce"
            )


DELAY_PROPERTIES = (PROPERTY_DELAY_LEVEL, PROPERTY_TIMER_DELAY_S, PROPERTY_TIMER_DELAY_MS)
UNSET_VALUES = ("", "0", "false")
"""Values that are equal to an absent property."""


def compress_bodies(body: pa.Array, kind: Compression, min_bytes: int) -> tuple[pa.Array, Any]:
    """Compress bodies that become shorter by it. Return the bodies and the system flags."""
    lengths = np.diff(data_and_offsets(body)[1])
    long = np.flatnonzero(lengths >= min_bytes)
    flags = np.zeros(len(body), np.int32)
    shorter: list[bytes] = []
    for row in long.tolist():
        value = body[row].as_py()
        packed, bits = compress(value, kind)
        if len(packed) < len(value):
            shorter.append(packed)
            flags[row] = bits
    if not shorter:
        return body, 0
    return pc.replace_with_mask(body, pa.array(flags != 0), pa.array(shorter, pa.binary())), flags
