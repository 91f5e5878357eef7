"""Lists of messages as batches, compared with the codec that encodes messages one by one."""

from typing import Any

import pytest

from sparrow.client.aio.produce.bulk.bulk_sender import BATCH_MESSAGES_MAX
from sparrow.client.aio.produce.bulk.list_rows import MessageLists
from sparrow.client.produce.queue_selection import by_hash
from sparrow.model.errors import Refused, TooLarge
from sparrow.model.message import Message
from sparrow.model.queue import QueueRef
from sparrow.settings import BrokerSettings
from sparrow.wire import batch, properties

QUEUES = tuple(QueueRef("orders", "sparrow", number) for number in range(4))


def lists(bodies: Any, **given: Any) -> MessageLists:
    return MessageLists(bodies, **{"body_bytes_max": 1000, **given})


def decoded(given: MessageLists, queues: Any = None) -> list[tuple[int, bytes, dict[str, str]]]:
    """Return index, body and properties of each message, in the order of the requests."""
    found = []
    for request in given.encode(queues):
        members = batch.decode(request.data)
        found += [
            (index, member.body, properties.decode(member.properties))
            for index, member in zip(request.indexes, members, strict=True)
        ]
    return found


def test_each_list_becomes_its_part_of_the_messages() -> None:
    given = lists(
        [b"a", "ä", bytearray(b"c")],
        keys=["k1", None, "k3"],
        tags="paid",
        properties=[{"city": "Oslo"}, None, {"city": "Rom", "empty": ""}],
    )
    assert decoded(given) == [
        (0, b"a", {"KEYS": "k1", "TAGS": "paid", "city": "Oslo"}),
        (1, "ä".encode(), {"TAGS": "paid"}),
        (2, b"c", {"KEYS": "k3", "TAGS": "paid", "city": "Rom"}),
    ]


def test_one_mapping_of_properties_is_that_of_every_message() -> None:
    assert decoded(lists((b"%d" % n for n in range(2)), properties={"city": "Oslo"}, tags=["x", None])) == [
        (0, b"0", {"TAGS": "x", "city": "Oslo"}),
        (1, b"1", {"city": "Oslo"}),
    ]


def test_no_messages_are_no_requests() -> None:
    assert list(lists([], keys=[], properties=[], sharding_keys=[]).encode(QUEUES)) == []


def test_requests_are_limited_in_size_and_cover_all_messages_in_order() -> None:
    bodies = [bytes([number % 251]) * (number % 1000) for number in range(12_000)]
    requests = list(lists(bodies).encode((QUEUES[2],)))
    assert len(requests) > 5
    assert all(len(request.data) <= 1 << 20 and request.queue == QUEUES[2] for request in requests)
    assert [index for request in requests for index in request.indexes] == list(range(12_000))
    assert [member.body for request in requests for member in batch.decode(request.data)] == bodies


def test_messages_with_a_sharding_key_go_to_its_queue_in_order() -> None:
    keys = [f"order-{number % 7}" if number % 5 else None for number in range(100)]
    given = lists([b"%d" % number for number in range(100)], sharding_keys=keys)
    where: dict[int, QueueRef] = {}
    for request in given.encode(QUEUES):
        assert request.queue is not None
        assert list(request.indexes) == sorted(request.indexes)
        for index, member in zip(request.indexes, batch.decode(request.data), strict=True):
            where[index] = request.queue
            assert member.body == b"%d" % index
            assert properties.decode(member.properties).get("__SHARDINGKEY") == keys[index]
    assert len(where) == 100
    message = Message("orders", b"")
    assert all(where[index] == by_hash(key)(QUEUES, message) for index, key in enumerate(keys) if key)
    assert len({where[index] for index, key in enumerate(keys) if key is None}) == 4


@pytest.mark.parametrize(
    ("bodies", "given", "error", "text"),
    [
        ("ab", {}, TypeError, "bodies is str: pass a list"),
        ({b"a": 1}, {}, TypeError, "bodies is dict: pass a list"),
        ([b"a", 5], {}, TypeError, r"bodies\[1\]: the body of a message is bytes or text, not int 5"),
        ([b"a", None], {}, TypeError, r"bodies\[1\]: .*not None"),
        ([b"a", "\ud800"], {}, TypeError, r"bodies\[1\]: .*surrogates"),
        ([b"a", b"b" * 1001], {}, TooLarge, r"bodies\[1\] has 1001 bytes, the limit is 1000"),
        ([b"a", b"b"], {"keys": ["k"]}, Refused, "keys has 1 items, and there are 2 bodies"),
        ([b"a"], {"keys": "k"}, TypeError, "keys is str: pass a list"),
        ([b"a", b"b"], {"tags": ["x", 7]}, TypeError, r"tags\[1\] is int 7: pass a text, or None"),
        ([b"a"], {"properties": ["x"]}, TypeError, r"properties\[0\] is str 'x': pass a dict, or None"),
        ([b"a"], {"properties": [{"n": 7}]}, TypeError, r"properties\[0\]: property 'n' of a message is int 7"),
        ([b"a", b"b"], {"properties": [{}, {"DELAY": "3"}]}, Refused, r"properties\[1\] has DELAY.*send that message"),
        ([b"a"], {"properties": {"__SHARDINGKEY": "k"}}, Refused, "pass sharding_keys="),
    ],
)
def test_messages_that_cannot_be_sent_are_refused_by_their_position(
    bodies: Any, given: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        lists(bodies, **given)


@pytest.mark.parametrize("bad", ["a\x02b", "\ud800"])
def test_first_message_that_cannot_be_encoded_is_named(bad: str) -> None:
    keys = ["fine"] * 1000
    keys[700] = keys[900] = bad
    with pytest.raises(Refused, match="message 700 of 1000 cannot be sent: "):
        list(lists([b"x"] * 1000, keys=keys).encode(None))


def test_no_request_has_more_messages_than_brokers_accept() -> None:
    requests = list(lists([b""] * (2 * BATCH_MESSAGES_MAX + 1)).encode(None))
    assert [len(batch.decode(request.data)) for request in requests] == [BATCH_MESSAGES_MAX, BATCH_MESSAGES_MAX, 1]
    assert [request.indexes[0] for request in requests] == [0, BATCH_MESSAGES_MAX, 2 * BATCH_MESSAGES_MAX]
    assert BrokerSettings().batch_messages_max >= BATCH_MESSAGES_MAX
