"""Queue selection: the queue of each row depends on the row and the topic's queues only, so that a replay repeats it.

1. `queue_id` is an index into the topic's write queues in the order of its route, over all brokers.
2. Otherwise the Java hash of the sharding key or the keys selects the queue, as in `client/produce/queue_selection`,
   so that rows keep their order relative to messages of other producers with the same key.
3. Otherwise the hash of the id or the body selects it. Only if a replay may use another queue, any queue is allowed.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparrow.model.errors import Refused
from sparrow.spark.sink.message_columns import MessageRows
from sparrow.wire.columns.encoder import body_crcs
from sparrow.wire.columns.hashes import java_hashes

ANY_QUEUE = -1
"""The index of a row that may go to any queue."""

QueueIndexes = NDArray[np.int64]


def select_queues(rows: MessageRows, queues: int, *, allows_any_queue: bool = False) -> QueueIndexes:
    """Return the index of the write queue of each row, or `ANY_QUEUE` if `allows_any_queue`."""
    indexes = np.full(len(rows), ANY_QUEUE, np.int64)
    is_unassigned = np.ones(len(rows), np.bool_)
    if rows.queue_id is not None:
        is_given = rows.queue_id.is_valid().to_numpy(zero_copy_only=False)
        given = rows.queue_id.fill_null(ANY_QUEUE).to_numpy(zero_copy_only=False)
        if (is_wrong := is_given & ((given < 0) | (given >= queues))).any():
            at = int(is_wrong.argmax())
            raise Refused(
                f"row {rows.row_number(at)} of its partition has queue_id {given[at]}, but its topic has {queues} "
                f"write queues: use 0 to {queues - 1}"
            )
        indexes[is_given] = given[is_given]
        is_unassigned &= ~is_given
    for texts in (rows.sharding_key, rows.keys, None if allows_any_queue else rows.msg_id):
        if texts is not None and is_unassigned.any():
            has_key = is_unassigned & _has_text(texts)
            if has_key.any():
                indexes[has_key] = _indexes_of_hashes(java_hashes(texts), queues)[has_key]
                is_unassigned &= ~has_key
    if not allows_any_queue and is_unassigned.any():
        bodies = rows.body if is_unassigned.all() else rows.body.filter(pa.array(is_unassigned))
        indexes[is_unassigned] = body_crcs(bodies).astype(np.int64) % queues
    return indexes


def _indexes_of_hashes(hashes: NDArray[Any], queues: int) -> QueueIndexes:
    # The absolute value after widening, so that -2^31 has one too, as in `client/produce/queue_selection`.
    chosen: QueueIndexes = np.abs(hashes.astype(np.int64)) % queues
    return chosen


def _has_text(texts: pa.Array) -> NDArray[np.bool_]:
    lengths: NDArray[Any] = pc.binary_length(texts).fill_null(0).to_numpy(zero_copy_only=False)
    return lengths > 0


def sort_by_queue(indexes: QueueIndexes) -> tuple[NDArray[Any], list[tuple[int, slice]]]:
    """Return the stable sort order of rows by queue, and the slice of each queue."""
    # NumPy sorts 16-bit integers by counting, which is faster.
    is_narrow = not len(indexes) or int(indexes.max()) < 0x7FFF
    order = np.argsort(indexes.astype(np.int16) if is_narrow else indexes, kind="stable")
    found, firsts = np.unique(indexes[order], return_index=True)
    bounds = pairwise([*firsts.tolist(), len(indexes)])
    return order, [(index, slice(*two)) for index, two in zip(found.tolist(), bounds, strict=True)]


def split_by_topic(rows: MessageRows, topic: str | None) -> Iterator[tuple[str, MessageRows]]:
    """Yield the rows of each topic, in order. `topic`: the topic of all rows, if the option is set."""
    if topic is not None:
        yield topic, rows
        return
    assert rows.topic is not None, "ColumnLayout has a topic or a topic column"
    encoded = rows.topic.dictionary_encode()
    if len(encoded.dictionary) == 1:
        yield encoded.dictionary[0].as_py(), rows
        return
    numbers = encoded.indices.to_numpy(zero_copy_only=False)
    for number, name in enumerate(encoded.dictionary.to_pylist()):
        yield name, rows.take(np.flatnonzero(numbers == number))
