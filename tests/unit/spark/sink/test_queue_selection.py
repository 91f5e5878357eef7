import numpy as np
import pyarrow as pa
import pytest

from sparrow.client.produce.queue_selection import by_hash
from sparrow.model.errors import Refused
from sparrow.model.message import Message
from sparrow.spark.sink.message_columns import MessageRows
from sparrow.spark.sink.queue_selection import ANY_QUEUE, select_queues, sort_by_queue, split_by_topic
from sparrow.wire.bodies import QueueRef

QUEUES = tuple(QueueRef("t", broker, number) for broker in ("a", "b") for number in range(3))


def rows(count: int, **columns: list[object]) -> MessageRows:
    kinds = {"queue_id": pa.int64()}
    made = {name: pa.array(values, kinds.get(name, pa.string())) for name, values in columns.items()}
    return MessageRows(pa.array([b"body %d" % i for i in range(count)], pa.binary()), **made)


def test_a_given_queue_is_used():
    assert select_queues(rows(3, queue_id=[5, 0, 3], keys=["k", "k", "k"]), 6).tolist() == [5, 0, 3]


@pytest.mark.parametrize("wrong", [6, -1])
def test_a_queue_that_does_not_exist_is_refused_with_its_row(wrong: int):
    with pytest.raises(Refused, match=f"row 1 of its partition has queue_id {wrong}.*0 to 5"):
        select_queues(rows(2, queue_id=[0, wrong]), 6)


def test_a_key_selects_the_same_queue_as_a_producer():
    keys = ["order-17", "", "ключ", "𝄞", "polygenelubricants", "order-18"]  # the fifth hashes to -2^31
    places = select_queues(rows(6, sharding_key=keys), len(QUEUES))
    for key, place in zip(keys, places.tolist(), strict=True):
        if key:
            assert QUEUES[place] == by_hash(key)(QUEUES, Message(topic="t"))


def test_the_sharding_key_precedes_keys_and_keys_precede_ids():
    def place(key: str) -> int:
        return QUEUES.index(by_hash(key)(QUEUES, Message(topic="t")))

    some = rows(
        3, sharding_key=["s1", None, ""], keys=["k", "k2", None], msg_id=["id0", "id1", "id2"], queue_id=[None] * 3
    )
    assert select_queues(some, 6).tolist() == [place("s1"), place("k2"), place("id2")]


def test_rows_without_a_key_are_spread_by_body_and_always_select_the_same_queue():
    some = rows(1000)
    places = select_queues(some, 6)
    assert places.tolist() == select_queues(some, 6).tolist()
    assert np.bincount(places, minlength=6).min() > 100
    order = np.random.default_rng(1).permutation(1000)
    assert select_queues(some.take(order), 6).tolist() == places[order].tolist()


def test_only_rows_without_a_queue_and_a_key_may_go_to_any_queue():
    some = rows(3, keys=["k", None, None], queue_id=[None, 2, None], msg_id=["a", "b", "c"])
    places = select_queues(some, 6, allows_any_queue=True).tolist()
    assert places[1:] == [2, ANY_QUEUE]
    assert places[0] >= 0


def test_sorted_rows_of_one_queue_keep_their_order():
    order, shares = sort_by_queue(np.array([2, ANY_QUEUE, 2, 0, ANY_QUEUE, 2]))
    assert order.tolist() == [1, 4, 3, 0, 2, 5]
    assert shares == [(ANY_QUEUE, slice(0, 2)), (0, slice(2, 3)), (2, slice(3, 6))]
    assert sort_by_queue(np.array([], np.int64))[1] == []
    far = np.array([40_000, 1, 40_000])
    assert sort_by_queue(far)[0].tolist() == [1, 0, 2]


def test_rows_are_split_by_topic():
    some = rows(4, topic=["a", "b", "a", "b"])
    found = {name: its.body.to_pylist() for name, its in split_by_topic(some, None)}
    assert found == {"a": [b"body 0", b"body 2"], "b": [b"body 1", b"body 3"]}
    assert [(name, len(its)) for name, its in split_by_topic(some, "t")] == [("t", 4)]
    assert [(name, len(its)) for name, its in split_by_topic(rows(2, topic=["a", "a"]), None)] == [("a", 2)]
