"""Lanes: the queues of a topic with lanes, and the lane of a message."""

import pytest

from sparrow.broker.produce.lanes import (
    has_lanes,
    lane_queue,
    lane_queue_for_batch,
    topic_with_lanes,
)
from sparrow.model.errors import IllegalMessage, Refused
from sparrow.model.priority import LANES_SYS_FLAG, Priority
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.wire.batch import BatchMessage
from sparrow.wire.properties import encode

HIGH, MIDDLE, LOW = Priority
STRICT = (HIGH, MIDDLE, LOW)


def a_topic(parts: int, read: int | None = None, flags: int = LANES_SYS_FLAG) -> Topic:
    return Topic(name="T", write_queues=parts, read_queues=parts if read is None else read, sys_flag=flags)


# -- layout -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [4, 12])
def test_a_topic_with_lanes_has_three_read_queues_for_each_write_queue(read):
    made = topic_with_lanes(a_topic(4, read), None)
    assert (made.write_queues, made.read_queues, has_lanes(made)) == (4, 12, True)


@pytest.mark.parametrize("read", [1, 3, 8, 13])
def test_other_numbers_of_read_queues_are_refused(read):
    with pytest.raises(Refused, match="4 write queues need 12 read queues, not"):
        topic_with_lanes(a_topic(4, read), None)


def test_a_topic_without_lanes_is_unchanged():
    wanted = a_topic(4, 7, flags=3)
    assert topic_with_lanes(wanted, None) is wanted
    assert topic_with_lanes(wanted, a_topic(9, 9, flags=0)) is wanted


@pytest.mark.parametrize(("before", "after"), [(0, LANES_SYS_FLAG), (LANES_SYS_FLAG, 0), (LANES_SYS_FLAG | 1, 1)])
def test_lanes_cannot_be_added_or_removed_later(before, after):
    with pytest.raises(Refused, match="that cannot change"):
        topic_with_lanes(a_topic(4, 12, flags=after), a_topic(4, 12, flags=before))


def test_write_queues_can_be_added_but_not_removed():
    known = a_topic(4, 12)
    assert topic_with_lanes(a_topic(5), known).read_queues == 15
    assert topic_with_lanes(a_topic(4), known) == known
    with pytest.raises(Refused, match="messages in the others"):
        topic_with_lanes(a_topic(3), known)


# -- sending ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "queue_id"), [({}, 7), ({"PRIORITY": "high"}, 6), ({"PRIORITY": "middle"}, 7), ({"PRIORITY": "low"}, 8)]
)
def test_a_message_goes_to_the_lane_of_its_priority(said, queue_id):
    assert lane_queue(Queue("T", 2), encode({"TAGS": "a", **said}).decode()) == Queue("T", queue_id)


def test_a_property_whose_name_ends_in_priority_is_not_a_priority():
    assert lane_queue(Queue("T", 0), encode({"MY_PRIORITY": "high"}).decode()) == Queue("T", MIDDLE)


@pytest.mark.parametrize("word", ["HIGH", "urgent", "0", " high"])
def test_an_unknown_priority_is_an_illegal_message(word):
    with pytest.raises(IllegalMessage, match="use high, middle or low"):
        lane_queue(Queue("T", 0), encode({"PRIORITY": word}).decode())


def batch_of(*words: str | None) -> list[BatchMessage]:
    return [
        BatchMessage(0, b"PRIORITY\x01high\x02", encode({} if word is None else {"PRIORITY": word})) for word in words
    ]


@pytest.mark.parametrize(
    ("words", "queue_id"),
    [(["low", "low"], 5), (["high"], 3), ([None, None], 4), ([None, "middle"], 4)],
)
def test_the_priority_of_its_messages_and_not_their_bodies_selects_the_lane_of_a_batch(words, queue_id):
    assert lane_queue_for_batch(Queue("T", 3 + MIDDLE), batch_of(*words)) == Queue("T", queue_id)


def test_messages_without_a_priority_take_the_priority_of_the_batch():
    assert lane_queue_for_batch(Queue("T", LOW), batch_of(None, "low")) == Queue("T", LOW)


@pytest.mark.parametrize("words", [["low", "high"], [None, "high"]])
def test_a_batch_with_several_priorities_is_illegal(words):
    with pytest.raises(IllegalMessage, match="a batch goes to one lane"):
        lane_queue_for_batch(Queue("T", MIDDLE), batch_of(*words))
