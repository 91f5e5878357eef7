"""Lanes: how a topic with them is laid out, where messages go, and whose turn it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow.broker.produce.lanes import (
    GUARANTEED_TENTHS,
    LanePlan,
    accrue_deficits,
    has_lanes,
    lane_queue,
    lane_queue_for_batch,
    plan_batch,
    repay_deficit,
    starvation_candidates,
    topic_with_lanes,
)
from sparrow.model.errors import IllegalMessage, ProtocolError, Refused
from sparrow.model.priority import LANES_SYS_FLAG, Priority
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.wire import batch
from sparrow.wire.properties import encode

HIGH, MIDDLE, LOW = Priority
STRICT = (HIGH, MIDDLE, LOW)


def a_topic(parts: int, read: int | None = None, flags: int = LANES_SYS_FLAG) -> Topic:
    return Topic(name="T", write_queues=parts, read_queues=parts if read is None else read, sys_flag=flags)


# -- layout -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [4, 12])
def test_a_topic_with_lanes_has_three_queues_to_read_for_each_to_write(read):
    made = topic_with_lanes(a_topic(4, read), None)
    assert (made.write_queues, made.read_queues, has_lanes(made)) == (4, 12, True)


@pytest.mark.parametrize("read", [1, 3, 8, 13])
def test_other_numbers_of_queues_to_read_are_refused(read):
    with pytest.raises(Refused, match="4 queues to write make 12 to read, not"):
        topic_with_lanes(a_topic(4, read), None)


def test_a_topic_without_lanes_stays_as_it_is_wanted():
    wanted = a_topic(4, 7, flags=3)
    assert topic_with_lanes(wanted, None) is wanted
    assert topic_with_lanes(wanted, a_topic(9, 9, flags=0)) is wanted


@pytest.mark.parametrize(("before", "after"), [(0, LANES_SYS_FLAG), (LANES_SYS_FLAG, 0), (LANES_SYS_FLAG | 1, 1)])
def test_lanes_come_with_a_topic_or_never(before, after):
    with pytest.raises(Refused, match="which queue is what"):
        topic_with_lanes(a_topic(4, 12, flags=after), a_topic(4, 12, flags=before))


def test_parts_become_more_and_never_fewer():
    known = a_topic(4, 12)
    assert topic_with_lanes(a_topic(5), known).read_queues == 15
    assert topic_with_lanes(a_topic(4), known) == known
    with pytest.raises(Refused, match="lies in the others"):
        topic_with_lanes(a_topic(3), known)


# -- sending ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "queue_id"), [({}, 7), ({"PRIORITY": "high"}, 6), ({"PRIORITY": "middle"}, 7), ({"PRIORITY": "low"}, 8)]
)
def test_a_message_goes_to_the_lane_its_priority_says(said, queue_id):
    assert lane_queue(Queue("T", 2), encode({"TAGS": "a", **said}).decode()) == Queue("T", queue_id)


def test_a_property_whose_name_only_ends_alike_is_no_priority():
    assert lane_queue(Queue("T", 0), encode({"MY_PRIORITY": "high"}).decode()) == Queue("T", MIDDLE)


@pytest.mark.parametrize("word", ["HIGH", "urgent", "0", " high"])
def test_another_word_is_an_illegal_message(word):
    with pytest.raises(IllegalMessage, match="say high, middle or low"):
        lane_queue(Queue("T", 0), encode({"PRIORITY": word}).decode())


def batch_of(*words: str | None) -> bytes:
    return batch.encode(
        (0, b"PRIORITY\x01high\x02", encode({} if word is None else {"PRIORITY": word})) for word in words
    )


@pytest.mark.parametrize(
    ("words", "queue_id"),
    [(["low", "low"], 5), (["high"], 3), ([None, None], 4), ([None, "middle"], 4)],
)
def test_a_batch_goes_to_the_lane_of_its_messages_whatever_their_bodies_say(words, queue_id):
    assert lane_queue_for_batch(Queue("T", 3 + MIDDLE), batch_of(*words)) == Queue("T", queue_id)


def test_messages_that_say_nothing_are_of_the_batchs_own_priority():
    assert lane_queue_for_batch(Queue("T", LOW), batch_of(None, "low")) == Queue("T", LOW)


@pytest.mark.parametrize("words", [["low", "high"], [None, "high"]])
def test_a_batch_of_several_priorities_is_illegal(words):
    with pytest.raises(IllegalMessage, match="a batch goes to one lane"):
        lane_queue_for_batch(Queue("T", MIDDLE), batch_of(*words))


def test_a_batch_that_cannot_be_read_says_so():
    with pytest.raises(ProtocolError):
        lane_queue_for_batch(Queue("T", MIDDLE), batch_of("low")[:-1])


# -- taking -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "starve"),
    [
        ((10, 5, 5), [MIDDLE, LOW]),
        ((9, 5, 5), [LOW]),
        ((4, 5, 5), []),
        ((0, 10, 1), [LOW]),
        ((10, 0, 1), [LOW]),
        ((0, 0, 99), []),
        ((99, 0, 0), []),
    ],
)
def test_only_lanes_that_a_batch_does_not_get_to_may_starve(waiting, starve):
    assert starvation_candidates(waiting, places=10) == starve


def test_without_starving_the_order_is_strict_and_nothing_is_kept():
    assert plan_batch(accrue_deficits({LOW: 500}, [], places=10), places=10) == LanePlan(STRICT, {})


def test_a_lane_that_starves_has_its_tenths_kept_in_every_batch():
    chosen = plan_batch(accrue_deficits({}, [MIDDLE, LOW], places=10), places=10)
    assert chosen == LanePlan(STRICT, {MIDDLE: 2, LOW: 1})
    assert [chosen.reserved_after(lane) for lane in (None, HIGH, MIDDLE, LOW)] == [3, 3, 1, 0]


def test_in_batches_of_one_a_lane_that_starves_is_the_first_in_one_of_ten():
    deficits, firsts = {}, []
    for _ in range(20):
        deficits = accrue_deficits(deficits, [LOW], places=1)
        chosen = plan_batch(deficits, places=1)
        firsts.append(chosen.order[0])
        deficits = repay_deficit(deficits, chosen.order[0], count=1)
    assert firsts == ([HIGH] * 9 + [LOW]) * 2


def test_a_lane_that_got_nothing_for_long_is_the_first_and_then_no_more_than_that():
    deficits = {}
    for _ in range(1_000):
        deficits = accrue_deficits(deficits, [LOW], places=32)
    assert plan_batch(deficits, places=32).order == (LOW, HIGH, MIDDLE)
    assert (
        sum(
            plan_batch(deficits, places=32).order[0] is LOW
            for deficits in [deficits, repay_deficit(deficits, LOW, count=32)]
        )
        == 2
    )
    assert plan_batch(repay_deficit(deficits, LOW, count=64), places=32).order == STRICT


def filled(chosen: LanePlan, waiting: dict[Priority, int], places: int) -> dict[Priority, int]:
    """As a basket is."""
    taken = dict.fromkeys(Priority, 0)
    for lane in chosen.order:
        free = places - sum(taken.values()) - chosen.reserved_after(lane)
        taken[lane] = max(0, min(free, waiting[lane]))
    return taken


@given(st.lists(st.integers(1, 32), min_size=1, max_size=80), st.sets(st.sampled_from([MIDDLE, LOW]), min_size=1))
def test_whatever_the_batches_are_who_starves_gets_a_share_and_high_gets_most(batches, starving):
    """With more in every lane than can be taken."""
    deficits, got, promised = {}, dict.fromkeys(Priority, 0), 0
    for places in batches:
        deficits = accrue_deficits(deficits, starving, places=places)
        taken = filled(plan_batch(deficits, places=places), dict.fromkeys(Priority, 1_000), places)
        assert sum(taken.values()) == places
        promised += places
        for lane, count in taken.items():
            got[lane] += count
            if count:
                deficits = repay_deficit(deficits, lane, count=count)
    for lane in starving:
        assert got[lane] >= promised * GUARANTEED_TENTHS[lane] // 10 - 2 * max(batches)
    assert got[HIGH] >= promised * 7 // 10 - 4 * max(batches)
    if len(set(batches)) == 1:
        for lane in starving:
            assert abs(got[lane] - promised * GUARANTEED_TENTHS[lane] / 10) <= 2 * batches[0]
    if LOW not in starving:
        assert got[LOW] == 0
