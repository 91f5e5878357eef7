"""Pulled batches, compared with the same records decoded one by one."""

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparrow.client.consume.pulled_batch import PulledBatch, as_batch, group_by_topic, make_batches
from sparrow.client.consume.subscription import Subscription
from sparrow.model.errors import ProtocolError
from sparrow.model.message import StoredMessage
from sparrow.model.queue import QueueRef
from sparrow.wire import columns, record
from sparrow.wire.compression import COMPRESSED_FLAG

QUEUE = QueueRef("orders", "sparrow", 3)
ALL = Subscription.of("orders", version_ms=1)


def encode(count: int, **given: Any) -> tuple[bytes, memoryview]:
    bodies = pa.array([b"%d" % number * (number % 20) for number in range(count)], pa.binary())
    encoded = columns.encode(bodies, topic="orders", queue_id=3, **given)
    data = bytearray(encoded.data)
    starts = columns.starts_from_sizes(encoded.sizes)
    columns.stamp_offsets(data, starts, queue_offset=np.arange(100, 100 + count), physical_offset=starts, store_ms=7)
    return bytes(data), memoryview(struct.pack(f">{count}i", *encoded.sizes.tolist()))


def assert_like(batch: PulledBatch, messages: list[StoredMessage]) -> None:
    assert len(batch) == len(messages)
    assert batch.bodies == [each.body for each in messages]
    assert batch.keys == [each.properties.get("KEYS") for each in messages]
    assert batch.tags == [each.tags for each in messages]
    assert batch.message_ids == [each.unique_key for each in messages]
    assert batch.properties == [each.properties for each in messages]
    assert batch.queue_offsets == [each.queue_offset for each in messages]
    assert batch.store_times_ms == [each.store_ms for each in messages]
    assert batch.body_bytes == sum(len(each.body) for each in messages)
    assert list(batch) == batch.messages == messages
    assert batch[0] == messages[0]
    assert batch[1:3] == messages[1:3]


@pytest.mark.parametrize("has_sizes", [True, False])
@pytest.mark.parametrize(
    "keys", [["a", "b", "c"] * 10, ["a", None, "b c"] * 10, ["ä", "ö", "€"] * 10, [None] * 30], ids=["a", "b", "c", "d"]
)
def test_lists_are_those_of_the_messages(has_sizes: bool, keys: list[str | None]) -> None:
    records, sizes = encode(30, keys=pa.array(keys, pa.string()), tags=pa.array(["x", None, "y"] * 10))
    (batch,) = make_batches(QUEUE, memoryview(records), sizes if has_sizes else None, ALL)
    assert (batch.queue, batch.topic, batch.queue_offset, batch.store_ms) == (QUEUE, "orders", 100, 7)
    assert_like(batch, record.decode_all(records))


def test_messages_with_other_tags_are_left_out() -> None:
    records, sizes = encode(30, tags=pa.array(["x", None, "y"] * 10))
    (batch,) = make_batches(QUEUE, records, sizes, Subscription.of("orders", "y", version_ms=1))
    assert_like(batch, [each for each in record.decode_all(records) if each.tags == "y"])
    assert make_batches(QUEUE, records, sizes, Subscription.of("orders", "z", version_ms=1)) == []


def test_what_columns_cannot_hold_is_refused() -> None:
    records, sizes = encode(3, sys_flag=COMPRESSED_FLAG)
    with pytest.raises(ProtocolError, match="one by one"):
        make_batches(QUEUE, records, sizes, ALL)
    with pytest.raises(ProtocolError):
        make_batches(QUEUE, records[:-1], sizes, ALL)


def test_retried_messages_are_grouped_by_the_topic_that_they_were_sent_to() -> None:
    messages = [
        StoredMessage(topic=topic, body=topic.encode(), queue_offset=offset, reconsume_times=offset)
        for offset, topic in enumerate(["a", "b", "a"])
    ]
    first, second = group_by_topic(QUEUE, messages)
    assert (first.topic, first.queue_offset, first.reconsume_times) == ("a", 0, 2)
    assert_like(first, [messages[0], messages[2]])
    assert (second.topic, second.bodies) == ("b", [b"b"])


def test_batch_keeps_only_what_is_left_of_it() -> None:
    records, sizes = encode(30, keys=pa.array(["k"] * 30))
    (batch,) = make_batches(QUEUE, records, sizes, ALL)
    left = batch.messages[10:12]
    assert len(batch.bodies) == 30
    batch.keep(left)
    assert_like(batch, left)
    assert batch.queue_offset == 100


def test_single_message_becomes_a_batch() -> None:
    message = StoredMessage(topic="orders", body=b"x", queue_id=3)
    batch = as_batch(message)
    assert (batch.bodies, batch.queue.queue_id, as_batch(batch)) == ([b"x"], 3, batch)
