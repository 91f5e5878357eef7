"""Lane deficits: which lanes starve, the slots reserved for them, and which lane is read first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow.broker.pop.lane_deficits import (
    GUARANTEED_TENTHS,
    LanePlan,
    accrue_deficits,
    plan_batch,
    repay_deficit,
    starvation_candidates,
)
from sparrow.model.priority import Priority

HIGH, MIDDLE, LOW = Priority
STRICT = (HIGH, MIDDLE, LOW)


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
def test_only_lanes_that_a_batch_does_not_reach_may_starve(waiting, starve):
    assert starvation_candidates(waiting, slots=10) == starve


def test_without_starving_lanes_the_order_is_strict_and_no_slot_is_reserved():
    assert plan_batch(accrue_deficits({LOW: 500}, [], slots=10), slots=10) == LanePlan(STRICT, {})


def test_a_starving_lane_has_its_tenths_reserved_in_every_batch():
    chosen = plan_batch(accrue_deficits({}, [MIDDLE, LOW], slots=10), slots=10)
    assert chosen == LanePlan(STRICT, {MIDDLE: 2, LOW: 1})
    assert [chosen.reserved_after(lane) for lane in (None, HIGH, MIDDLE, LOW)] == [3, 3, 1, 0]


def test_in_batches_of_one_a_starving_lane_is_read_first_in_one_of_ten():
    deficits, firsts = {}, []
    for _ in range(20):
        deficits = accrue_deficits(deficits, [LOW], slots=1)
        chosen = plan_batch(deficits, slots=1)
        firsts.append(chosen.order[0])
        deficits = repay_deficit(deficits, chosen.order[0], count=1)
    assert firsts == ([HIGH] * 9 + [LOW]) * 2


def test_a_long_starving_lane_is_read_first_only_until_its_capped_deficit_is_repaid():
    deficits = {}
    for _ in range(1_000):
        deficits = accrue_deficits(deficits, [LOW], slots=32)
    assert plan_batch(deficits, slots=32).order == (LOW, HIGH, MIDDLE)
    assert (
        sum(
            plan_batch(deficits, slots=32).order[0] is LOW
            for deficits in [deficits, repay_deficit(deficits, LOW, count=32)]
        )
        == 2
    )
    assert plan_batch(repay_deficit(deficits, LOW, count=64), slots=32).order == STRICT


def filled(chosen: LanePlan, waiting: dict[Priority, int], places: int) -> dict[Priority, int]:
    """Fill a batch like a pop."""
    taken = dict.fromkeys(Priority, 0)
    for lane in chosen.order:
        free = places - sum(taken.values()) - chosen.reserved_after(lane)
        taken[lane] = max(0, min(free, waiting[lane]))
    return taken


@given(st.lists(st.integers(1, 32), min_size=1, max_size=80), st.sets(st.sampled_from([MIDDLE, LOW]), min_size=1))
def test_starving_lanes_get_their_share_of_any_batches_and_high_gets_most(batches, starving):
    """Every lane has more messages than can be popped."""
    deficits, got, promised = {}, dict.fromkeys(Priority, 0), 0
    for places in batches:
        deficits = accrue_deficits(deficits, starving, slots=places)
        taken = filled(plan_batch(deficits, slots=places), dict.fromkeys(Priority, 1_000), places)
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
