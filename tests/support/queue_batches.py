"""Encoded records, as a client stages them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sparrow.model.queue import Queue
from sparrow.wire import columns, queue_batches
from sparrow.wire.columns.properties import PROPERTY_MAP_TYPE
from sparrow.wire.queue_batches import QueueBatch


def make_queue_batch(
    topic: str,
    queue_id: int,
    bodies: Sequence[bytes],
    *,
    properties: Sequence[Mapping[str, str]] | None = None,
    checksum: bool = True,
    **others: Any,
) -> QueueBatch:
    """Return a queue batch; `others` are arguments of `columns.encode`."""
    if properties is not None:
        others["properties"] = pa.array([list(each.items()) for each in properties], PROPERTY_MAP_TYPE)
    encoded = columns.encode(pa.array(bodies, pa.binary()), topic=topic, checksum=checksum, **others)
    return QueueBatch(Queue(topic, queue_id), memoryview(encoded.data), encoded.sizes)


def encode_queue_batches(
    topic: str, bodies_by_queue: Mapping[int, Sequence[bytes]], *, checksum: bool = True, **others: Any
) -> bytes:
    """Return one request body for several queues of a topic."""
    return queue_batches.encode(
        make_queue_batch(topic, queue_id, bodies, checksum=checksum, **others)
        for queue_id, bodies in bodies_by_queue.items()
    )
