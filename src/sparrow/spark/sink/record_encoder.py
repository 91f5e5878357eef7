"""Rows to what brokers are handed: records in portions and blobs, or batches to send.

No loop runs over rows, except over bodies to be compressed.
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
"""Of records in one request. A single record that is longer goes alone."""
_PIECE_BYTES = 8 * 1024 * 1024
"""How much is encoded at a time: what is longer leaves the processor's cache, and is held in memory twice."""


def split_rows(rows: MessageRows) -> Iterator[MessageRows]:
    """The rows in runs that are not too long to be encoded at a time."""
    step = max(1, int(_PIECE_BYTES * len(rows) / max(rows.nbytes, 1)))
    if step >= len(rows):
        yield rows
        return
    for at in range(0, len(rows), step):
        yield rows.slice(at, step)


class RowIds:
    """Unique ids for many rows at once: those of `wire.ids`, counted on. A maker's ids always grow."""

    def __init__(self, unique_ids: UniqueIdGenerator) -> None:
        self._make = unique_ids.make
        self._next = 0

    def make(self, count: int) -> pa.Array:
        base = self._make()
        # Time and counter are one number: where the counter is exhausted, the next millisecond is taken in advance.
        first = max(int(base[-_TAIL_CHARS:], 16), self._next)
        self._next = first + count
        tails = (first + np.arange(count, dtype=np.uint64)).astype(">u8").view(np.uint8).reshape(-1, 8)[:, 2:]
        chars = np.empty((count, len(base)), np.uint8)
        chars[:, :-_TAIL_CHARS] = np.frombuffer(base[:-_TAIL_CHARS].encode(), np.uint8)
        chars[:, -_TAIL_CHARS:] = np.take(_HEX, tails, axis=0).view(np.uint8).reshape(count, _TAIL_CHARS)
        offsets = np.arange(0, (count + 1) * len(base), len(base), dtype=np.int32)
        return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(chars)])

    def fill(self, given: pa.Array | None, count: int) -> pa.Array:
        """The ids that were given, and new ones where there is none."""
        if given is None:
            return self.make(count)
        is_there = pc.greater(pc.binary_length(given), 0).fill_null(False)
        missing = len(given) - is_there.true_count
        return given if not missing else pc.replace_with_mask(given, pc.invert(is_there), self.make(missing))


_TAIL_CHARS = 12
_HEX = np.frombuffer(bytes(range(256)).hex().upper().encode(), np.uint16)
"""The two characters of each byte."""


class RecordEncoder:
    """How one task makes its records."""

    def __init__(
        self, options: SinkOptions, ids: RowIds, now_ms: Callable[[], int], *, born_host: bytes = PACKED_LOOPBACK
    ) -> None:
        self._options, self._ids, self._now_ms = options, ids, now_ms
        self._born_host = (
            born_host if len(born_host) == len(PACKED_LOOPBACK) else PACKED_LOOPBACK
        )  # columns are for IPv4

    def portions(
        self, rows: MessageRows, queues: tuple[QueueRef, ...], places: NDArray[Any]
    ) -> Iterator[tuple[str, QueueBatch]]:
        """The records of one topic's rows, queue by queue, each with the name of the broker it is for."""
        refuse_delayed(rows, self._options, self._now_ms())
        order, shares = sort_by_queue(places)
        if len(shares) > 1:
            rows = rows.take(order)
            places = places[order]
        body, sys_flag = rows.body, 0
        if self._options.compression is not None:
            body, sys_flag = compress_bodies(body, self._options.compression, self._options.compress_min_bytes)
        numbers = np.array([queue.queue_id for queue in queues], np.int32)
        encoded = encode(
            body,
            topic=queues[0].topic,
            queue_id=numbers[places],
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
        for place, share in shares:
            queue = queues[place]
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
    """The records of a share in runs of at most `BLOB_BYTES_MAX`, or of one."""
    start = share.start
    while start < share.stop:
        room_end = BLOB_BYTES_MAX + (int(ends[start - 1]) if start else 0)
        stop = min(max(int(np.searchsorted(ends, room_end, "right")), start + 1), share.stop)
        yield start, stop
        start = stop


class BlobBuilder:
    """Portions for one broker, until they make a blob."""

    def __init__(self, topic: str) -> None:
        """`topic`: one by whose route the broker is found."""
        self.topic = topic
        self._portions: list[QueueBatch] = []
        self._bytes = 0
        self.rows = self.blobs = 0
        """Added and taken so far."""

    def add(self, portion: QueueBatch) -> bytes | None:
        """The blob of what came before, if this would make it too large."""
        full = self.take() if self._bytes + len(portion.data) > BLOB_BYTES_MAX else None
        self._portions.append(portion)
        self._bytes += len(portion.data)
        self.rows += len(portion.sizes)
        return full

    def take(self) -> bytes | None:
        """The blob of what is there, if anything is."""
        if not self._portions:
            return None
        blob = queue_batches.encode(self._portions)
        self._portions, self._bytes = [], 0
        self.blobs += 1
        return blob


def refuse_delayed(rows: MessageRows, options: SinkOptions, now_ms: int) -> None:
    """Only a send can ask a broker to keep a message. What was kept before, and says so still, is a row like others."""
    for row, name, value in rows.entries(PROPERTY_TIMER_DELIVER_MS, *DELAY_PROPERTIES):
        is_past = name == PROPERTY_TIMER_DELIVER_MS and value.isdecimal() and int(value) <= now_ms
        if value not in UNSET_VALUES and not is_past:
            raise Refused(
                f"row {rows.number_of(row)} of its partition has the property {name}, which keeps a message for later: "
                f"delivery={options.delivery.value} cannot; leave it out, or set delivery=atLeastOnce"
            )


DELAY_PROPERTIES = (PROPERTY_DELAY_LEVEL, PROPERTY_TIMER_DELAY_S, PROPERTY_TIMER_DELAY_MS)
UNSET_VALUES = ("", "0", "false")
"""Values by which a property asks for nothing."""


def compress_bodies(body: pa.Array, kind: Compression, min_bytes: int) -> tuple[pa.Array, Any]:
    """The bodies, those compressed that become shorter by it, and the sys flags that say which."""
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
