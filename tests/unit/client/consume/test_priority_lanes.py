"""Priority lanes: the order of delivery, and the share of a starving lane."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow.client.consume.priority_lanes import STARVED_SHARES_OF_TEN, PriorityLanes, StarvationGuard, allot
from sparrow.model.priority import Priority

HIGH, MIDDLE, LOW = Priority
AGED_MS = 60_000
"""Longer than the starvation time; messages stored at 0 have this age."""

counts = st.tuples(*(st.integers(0, 50) for _ in Priority))
batch_sizes = st.integers(0, 40)


def lanes_of(*waiting: int, starvation_ms: int = 30_000, stored_ms: int = 0) -> PriorityLanes[tuple[Priority, int]]:
    lanes: PriorityLanes[tuple[Priority, int]] = PriorityLanes(lambda _: stored_ms, starvation_ms=starvation_ms)
    for lane, count in zip(Priority, waiting, strict=True):
        lanes.add(lane, [(lane, number) for number in range(count)])
    return lanes


def drained(lanes: PriorityLanes[tuple[Priority, int]], batch: int, *, now_ms: int = 0) -> list[tuple[Priority, int]]:
    found = []
    while some := lanes.take(batch, now_ms):
        found += some
    return found


# -- order ------------------------------------------------------------------------------------------------------------


def test_a_batch_is_filled_from_high_to_low():
    lanes = lanes_of(3, 4, 9)
    batch = [lane for lane, _ in lanes.take(10, now_ms=0)]
    assert batch == [HIGH] * 3 + [MIDDLE] * 4 + [LOW] * 3
    assert [lane for lane, _ in lanes.take(10, now_ms=0)] == [LOW] * 6


def test_a_later_message_of_higher_priority_is_delivered_first():
    lanes = lanes_of(0, 0, 5)
    assert lanes.take(1, now_ms=0) == [(LOW, 0)]
    lanes.add(HIGH, [(HIGH, 0)])
    assert lanes.take(2, now_ms=0) == [(HIGH, 0), (LOW, 1)]


@given(
    waiting=counts, batch=batch_sizes, starvation_ms=st.sampled_from([0, 30_000]), now_ms=st.sampled_from([0, AGED_MS])
)
def test_a_batch_is_full_or_takes_all_messages_and_lanes_keep_their_order(waiting, batch, starvation_ms, now_ms):
    lanes = lanes_of(*waiting, starvation_ms=starvation_ms)
    taken = lanes.take(batch, now_ms)
    assert len(taken) == min(batch, sum(waiting))
    assert len(lanes) == sum(waiting) - len(taken)
    assert taken == sorted(taken), "messages must come by priority, then in order of arrival"


@given(waiting=counts, batch=st.integers(1, 40), now_ms=st.sampled_from([0, AGED_MS]))
def test_every_message_is_delivered_once(waiting, batch, now_ms):
    found = drained(lanes_of(*waiting), batch, now_ms=now_ms)
    assert sorted(found) == [(lane, number) for lane in Priority for number in range(waiting[lane])]


@given(waiting=counts, batch=st.integers(1, 40))
def test_without_a_starvation_guard_delivery_is_strictly_by_priority(waiting, batch):
    found = drained(lanes_of(*waiting, starvation_ms=0), batch, now_ms=AGED_MS)
    assert found == sorted(found)


@given(waiting=counts, reserved=counts, count_max=batch_sizes)
def test_reserved_slots_are_filled_as_far_as_a_lane_has_messages(waiting, reserved, count_max):
    taken = allot(waiting, reserved, count_max)
    assert sum(taken) == min(count_max, sum(waiting))
    assert all(some <= count for some, count in zip(taken, waiting, strict=True))
    if sum(reserved) <= count_max:
        assert all(some >= min(count, places) for some, count, places in zip(taken, waiting, reserved, strict=True))


# -- starving lanes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "middle", "low"), [(10, 2, 1), (20, 4, 2), (100, 20, 10)])
def test_starving_lanes_get_their_share_of_a_batch(batch, middle, low):
    taken = Counter(lane for lane, _ in lanes_of(500, 500, 500).take(batch, AGED_MS))
    assert (taken[MIDDLE], taken[LOW], taken[HIGH]) == (middle, low, batch - middle - low)


def test_a_lane_does_not_starve_exactly_at_the_starvation_time():
    assert LOW not in dict(lanes_of(500, 0, 500).take(10, now_ms=30_000))
    assert LOW in dict(lanes_of(500, 0, 500).take(10, now_ms=30_001))


@given(batch=st.integers(1, 60))
def test_starving_lanes_get_exactly_their_shares_with_batches_of_any_size(batch):
    lanes, count = lanes_of(3_000, 3_000, 3_000), Counter[Priority]()
    while count.total() < 1_000:
        count.update(lane for lane, _ in lanes.take(batch, AGED_MS))
    for lane in (MIDDLE, LOW):
        fair = count.total() * STARVED_SHARES_OF_TEN[lane] / 10
        assert fair - 1 <= count[lane] <= fair + 1


@given(batches=st.lists(st.integers(1, 15), min_size=1, max_size=80))
def test_starving_lanes_have_their_shares_after_every_batch_of_mixed_sizes(batches):
    lanes, count = lanes_of(1_500, 1_500, 1_500), Counter[Priority]()
    for batch in batches:
        count.update(lane for lane, _ in lanes.take(batch, AGED_MS))
        for lane in (MIDDLE, LOW):
            assert count[lane] > count.total() * STARVED_SHARES_OF_TEN[lane] / 10 - 1


def test_the_first_message_of_a_starving_lane_is_in_the_next_batch_even_in_batches_of_one():
    lanes = lanes_of(100, 0, 100)
    assert [lane for _ in range(11) for lane, _ in lanes.take(1, AGED_MS)] == [LOW] + [HIGH] * 9 + [LOW]


def test_messages_that_a_lane_got_without_competition_are_not_owed_again():
    lanes = lanes_of(0, 0, 100)
    lanes.take(50, AGED_MS)
    lanes.add(HIGH, [(HIGH, number) for number in range(100)])
    assert [lane for _ in range(10) for lane, _ in lanes.take(1, AGED_MS)] == [HIGH] * 9 + [LOW]


def test_a_guard_with_starvation_time_zero_reserves_nothing():
    assert StarvationGuard(0).reserved([10**9, 10**9, 10**9], 100) == [0, 0, 0]


def test_an_empty_lane_gets_no_reserved_slot():
    assert StarvationGuard(1).reserved([None, None, 2], 10) == [0, 0, 1]


def test_messages_removed_by_keep_are_not_delivered():
    lanes = lanes_of(2, 2, 2)
    lanes.keep(lambda item: item[1] == 1)
    assert lanes.take(10, 0) == [(HIGH, 1), (MIDDLE, 1), (LOW, 1)]
