"""Queue batches round-trip, and arbitrary bytes raise a protocol error or decode completely."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from sparrow.model.errors import ProtocolError
from sparrow.model.queue import Queue
from sparrow.wire import queue_batches
from sparrow.wire.queue_batches import QueueBatch
from sparrow.wire.record import RECORD_BYTES_MIN

topics = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@st.composite
def queue_batch_lists(draw: st.DrawFn) -> list[QueueBatch]:
    """Batches of arbitrary bytes: the codec does not check the contents of records."""
    found = []
    for _ in range(draw(st.integers(0, 4))):
        sizes = draw(st.lists(st.integers(RECORD_BYTES_MIN, RECORD_BYTES_MIN + 40), min_size=1, max_size=5))
        data = draw(st.binary(min_size=sum(sizes), max_size=sum(sizes)))
        queue = Queue(draw(topics), draw(st.integers(0, 2**31 - 1)))
        found.append(QueueBatch(queue, memoryview(data), np.array(sizes, np.int32)))
    return found


def plain(some: list[QueueBatch]) -> list[tuple[Queue, bytes, list[int]]]:
    return [(part.queue, bytes(part.data), part.sizes.tolist()) for part in some]


@given(queue_batch_lists())
def test_queue_batches_round_trip(some: list[QueueBatch]) -> None:
    body = queue_batches.encode(some)
    assert plain(queue_batches.decode(body)) == plain(some)
    assert queue_batches.topics_in(body) == {part.queue.topic for part in some}


@given(queue_batch_lists(), st.data())
def test_damaged_bytes_raise_a_protocol_error_or_decode_completely(some: list[QueueBatch], data: st.DataObject) -> None:
    body = bytearray(queue_batches.encode(some))
    for _ in range(data.draw(st.integers(1, 3))):
        # Damage mostly the fields outside the records, because only those are parsed.
        at = data.draw(st.integers(0, min(len(body), 60) - 1) | st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)) | st.just(len(body)))
    _accounts_for_all_or_raises(bytes(body[:cut]))


@given(st.binary(max_size=300))
@example(b"\0\0\0\0")
@example(b"\0\0\0\1\0\1T\0\0\0\0\x40\0\0\0\0\0\0\0" + bytes(200))
def test_any_bytes_raise_a_protocol_error_or_decode_completely(body: bytes) -> None:
    _accounts_for_all_or_raises(body)


def _accounts_for_all_or_raises(body: bytes) -> None:
    try:
        found = queue_batches.decode(body)
    except ProtocolError:
        return
    assert queue_batches.encode(found) == body
