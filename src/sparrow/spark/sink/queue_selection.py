"""Which queue each row goes to: a function of the row and of the topic's queues, so that a replay finds the same ones.

1. A row's `queue_id` counts the topic's write queues in the order of its route, over all brokers.
2. Else its sharding key, or its keys, choose: by Java's hash, as `client/queue_selection` does, so that rows keep
their order
   with whatever other producers send under the same key.
3. Else its id does, or its body. Only where a replay need not find the same queue may any queue do.

All of it pure.
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
"""The place of a row that asks for no queue."""

QueueIndexes = NDArray[np.int64]


def select_queues(rows: MessageRows, queues: int, *, allows_any_queue: bool = False) -> QueueIndexes:
    """Where each row goes, as a place among so many write queues; `allows_any_queue`: or `ANY_QUEUE`."""
    places = np.full(len(rows), ANY_QUEUE, np.int64)
    is_open = np.ones(len(rows), np.bool_)
    if rows.queue_id is not None:
        is_given = rows.queue_id.is_valid().to_numpy(zero_copy_only=False)
        given = rows.queue_id.fill_null(ANY_QUEUE).to_numpy(zero_copy_only=False)
        if (is_wrong := is_given & ((given < 0) | (given >= queues))).any():
            at = int(is_wrong.argmax())
            raise Refused(
                f"row {rows.row_number(at)} of its partition wants queue {given[at]}; "
                f"its topic has {queues} to write to, 0 to {queues - 1}"
            )
        places[is_given] = given[is_given]
        is_open &= ~is_given
    for texts in (rows.sharding_key, rows.keys, None if allows_any_queue else rows.msg_id):
        if texts is not None and is_open.any():
            is_said = is_open & _has_text(texts)
            if is_said.any():
                places[is_said] = _chosen(java_hashes(texts), queues)[is_said]
                is_open &= ~is_said
    if not allows_any_queue and is_open.any():
        bodies = rows.body if is_open.all() else rows.body.filter(pa.array(is_open))
        places[is_open] = body_crcs(bodies).astype(np.int64) % queues
    return places


def _chosen(hashes: NDArray[Any], queues: int) -> QueueIndexes:
    # The absolute value after widening: that of -2^31 is a number like any other, as in `select`.
    chosen: QueueIndexes = np.abs(hashes.astype(np.int64)) % queues
    return chosen


def _has_text(texts: pa.Array) -> NDArray[np.bool_]:
    lengths: NDArray[Any] = pc.binary_length(texts).fill_null(0).to_numpy(zero_copy_only=False)
    return lengths > 0


def sort_by_queue(places: QueueIndexes) -> tuple[NDArray[Any], list[tuple[int, slice]]]:
    """The rows in the order of their places, those of one place in their own order; and which are each place's."""
    # So narrow that NumPy sorts by counting.
    is_narrow = not len(places) or int(places.max()) < 0x7FFF
    order = np.argsort(places.astype(np.int16) if is_narrow else places, kind="stable")
    found, firsts = np.unique(places[order], return_index=True)
    bounds = pairwise([*firsts.tolist(), len(places)])
    return order, [(place, slice(*two)) for place, two in zip(found.tolist(), bounds, strict=True)]


def split_by_topic(rows: MessageRows, topic: str | None) -> Iterator[tuple[str, MessageRows]]:
    """The rows of each topic, in order. `topic`: of all rows."""
    if topic is not None:
        yield topic, rows
        return
    assert rows.topic is not None, "a layout has a topic or a column of them"
    encoded = rows.topic.dictionary_encode()
    if len(encoded.dictionary) == 1:
        yield encoded.dictionary[0].as_py(), rows
        return
    numbers = encoded.indices.to_numpy(zero_copy_only=False)
    for number, name in enumerate(encoded.dictionary.to_pylist()):
        yield name, rows.take(np.flatnonzero(numbers == number))
