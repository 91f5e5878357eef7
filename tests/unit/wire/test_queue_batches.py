"""Queue batches: records for several queues in one body."""

import numpy as np
import pytest
from tests.support.cases import each_case
from tests.support.queue_batches import encode_queue_batches, make_queue_batch

from sparrow.model.errors import ProtocolError
from sparrow.model.queue import Queue
from sparrow.wire import queue_batches, record


def test_queue_batches_round_trip():
    some = [make_queue_batch("T", 0, [b"a", b"bb"]), make_queue_batch("Ü", 7, [b""]), make_queue_batch("T", 0, [b"c"])]
    found = queue_batches.decode(queue_batches.encode(some))
    assert [part.queue for part in found] == [Queue("T", 0), Queue("Ü", 7), Queue("T", 0)]
    assert [bytes(part.data) for part in found] == [bytes(part.data) for part in some]
    assert [part.sizes.tolist() for part in found] == [part.sizes.tolist() for part in some]
    assert [message.body for message in record.decode_all(bytes(found[0].data))] == [b"a", b"bb"]
    assert found[0].sizes.dtype == np.int32


def test_the_layout_is_the_documented_one():
    part = make_queue_batch("T", 258, [b"x"])
    size = len(part.data).to_bytes(4, "big")
    head = b"\0\0\0\1" + b"\0\1T" + b"\0\0\1\2" + b"\0\0\0\1" + size + size
    assert queue_batches.encode([part]) == head + bytes(part.data)


def test_records_are_not_copied():
    body = bytearray(encode_queue_batches("T", {0: [b"a"]}))
    (part,) = queue_batches.decode(memoryview(body))
    body[-1] ^= 0xFF
    assert part.data[-1] == body[-1]


def test_an_empty_list_round_trips():
    assert queue_batches.decode(queue_batches.encode([])) == []


def test_topics_are_found_without_decoding_records():
    body = queue_batches.encode(
        [make_queue_batch("T", 0, [b"a"]), make_queue_batch("U", 1, [b"b"]), make_queue_batch("T", 2, [b"c"])]
    )
    assert queue_batches.topics_in(body) == {"T", "U"}


ONE = encode_queue_batches("T", {0: [b"a", b"b"]})


@each_case(
    ("body", "why"),
    [
        (b"", "too few for a batch count"),
        (b"\0\0\0", "too few for a batch count"),
        (b"\0\0\0\1", "cannot hold 1 batches"),
        (b"\xff\xff\xff\xff" + ONE[4:], "cannot hold 4294967295"),
        (b"\0\0\0\0" + ONE[4:], "follow the last batch"),
        (ONE + b"\0", "follow the last batch"),
        (ONE[:-1], "is invalid"),
        (ONE[:4] + b"\0\0" + ONE[6:], "has 0 bytes"),
        (ONE[:4] + b"\xff\xff" + ONE[6:], "has 65535 bytes"),
        (ONE[:6] + b"\xff" + ONE[7:], "not UTF-8"),
        (ONE[:7] + b"\xff\xff\xff\xff" + ONE[11:], "for queue -1"),
        (ONE[:11] + b"\0\0\0\0" + ONE[15:], "0 records"),
        (ONE[:11] + b"\xff\xff\xff\xff" + ONE[15:], "is invalid"),
        (ONE[:19] + b"\xff\xff\xff\xff" + ONE[23:], "do not add up"),
        (ONE[:19] + b"\0\0\0\1" + ONE[23:], "do not add up"),
    ],
)
def test_invalid_bytes_are_refused_with_a_reason(body, why):
    with pytest.raises(ProtocolError, match=why):
        queue_batches.decode(body)


def test_a_request_has_at_most_so_many_batches(monkeypatch: pytest.MonkeyPatch):
    body = queue_batches.encode([make_queue_batch("T", number, [b"x"]) for number in range(4)])
    assert len(queue_batches.decode(body, batches_max=4)) == 4
    with pytest.raises(ProtocolError, match="4 batches are too many for one request: 3 is the maximum"):
        queue_batches.decode(body, batches_max=3)
    monkeypatch.setattr(queue_batches, "BATCHES_MAX", 3)
    with pytest.raises(ProtocolError, match="too many"):
        queue_batches.topics_in(body)
