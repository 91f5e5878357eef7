"""Queue selectors of producers."""

from collections import Counter

import pytest

from sparrow.client.produce import queue_selection
from sparrow.model.message import Message
from sparrow.wire.bodies import QueueRef

QUEUES = [QueueRef("T", "broker-a", number) for number in range(4)] + [
    QueueRef("T", "broker-b", number) for number in range(3)
]
MESSAGE = Message(topic="T")


def test_round_robin_selects_every_queue_in_turn():
    pick = queue_selection.round_robin(start=5)
    assert [pick(QUEUES, MESSAGE) for _ in range(9)] == [*QUEUES[5:], *QUEUES]


def test_round_robin_counts_each_topic_separately():
    pick = queue_selection.round_robin(start=0)
    seen = [pick(QUEUES[:2], Message(topic=topic)) for topic in "ABABAB"]
    assert seen[0::2] == seen[1::2] == [QUEUES[0], QUEUES[1], QUEUES[0]]


def test_round_robin_continues_when_the_queues_change():
    pick = queue_selection.round_robin(start=0)
    for count in (7, 3, 1, 7):
        assert pick(QUEUES[:count], MESSAGE) in QUEUES[:count]


def test_round_robin_starts_at_a_random_queue():
    starts = {queue_selection.round_robin()(QUEUES, MESSAGE) for _ in range(1000)}
    assert starts == set(QUEUES)  # the chance to miss one of seven is 1 in 10^66


def test_round_robin_remembers_a_bounded_number_of_topics(monkeypatch):
    monkeypatch.setattr(queue_selection, "REMEMBERED_TOPICS_MAX", 2)
    pick = queue_selection.round_robin(start=0)
    assert [pick(QUEUES, Message(topic=topic)).queue_id for topic in "AABBCA"] == [0, 1, 0, 1, 0, 0]


def test_random_choice_selects_every_queue():
    pick = queue_selection.random_choice()
    assert set(Counter(pick(QUEUES, MESSAGE) for _ in range(1000))) == set(QUEUES)


@pytest.mark.parametrize(
    ("key", "broker", "number"),
    [
        ("order-1", "broker-b", 2),
        ("order-42", "broker-a", 0),
        ("polygenelubricants", "broker-a", 2),  # hash -2^31
        ("标签-7", "broker-a", 2),
        ("TopicTest#ORDER_1", "broker-a", 1),  # a negative hash
    ],
)
def test_a_key_selects_the_queue_that_java_selects(key, broker, number):
    # Results of SelectMessageQueueByHash, RocketMQ 4.9.7.
    assert queue_selection.by_hash(key)(QUEUES, MESSAGE) == QueueRef("T", broker, number)


def test_a_sharding_key_selects_the_queue_of_its_hash():
    pick = queue_selection.by_sharding_key()
    for key in ("order-1", "order-42", ""):
        message = Message(topic="T", properties={"__SHARDINGKEY": key})
        assert pick(QUEUES, message) == pick(QUEUES, message) == queue_selection.by_hash(key)(QUEUES, MESSAGE)


def test_messages_without_a_sharding_key_use_round_robin():
    pick = queue_selection.by_sharding_key()
    assert {pick(QUEUES, MESSAGE) for _ in QUEUES} == set(QUEUES)


def test_in_machine_room_selects_queues_of_the_rooms_and_any_queue_if_there_are_none():
    near = [QueueRef("T", "east@a", number) for number in range(3)]
    far = [QueueRef("T", "west@a", number) for number in range(3)]
    pick = queue_selection.in_machine_room(["east"])
    assert {pick([*near, *far, *QUEUES], MESSAGE) for _ in range(3)} == set(near)
    assert {pick(far, MESSAGE) for _ in range(3)} == set(far)  # another route
    assert queue_selection.in_machine_room("east", queue_selection.by_hash("order-1"))([*near, *far], MESSAGE) in near
