"""What an operator changes in a replica set, and what is refused."""

import msgspec
import pytest

from sparrow.model.errors import Refused
from sparrow.replication.core import member_changes
from sparrow.replication.core.membership import ReplicaSetState, elect

STATE = ReplicaSetState(
    set_id="set", members=(1, 2, 3), min_in_sync=2, epoch=5, leader=1, in_sync={1: "a", 2: "b", 3: "c"}
)
ONLY_SECOND = msgspec.structs.replace(STATE, in_sync={2: "b"})
ALONE = msgspec.structs.replace(STATE, in_sync={1: "a"}, eligible={2: "b"})


def test_a_new_member_is_not_in_sync_and_the_minimum_follows() -> None:
    after = member_changes.add_member(STATE, 4, "x")
    assert (after.members, after.min_in_sync, after.in_sync) == ((1, 2, 3, 4), 3, STATE.in_sync)
    assert member_changes.add_member(after, 5, "y").min_in_sync == 3


def test_a_minimum_that_was_set_stays_as_far_as_it_can() -> None:
    fixed = member_changes.set_min(STATE, 3, "x")
    assert member_changes.add_member(fixed, 4, "y").min_in_sync == 3
    assert member_changes.remove_member(fixed, 3, "y").min_in_sync == 2
    assert member_changes.set_min(fixed, None, "z").min_in_sync == 2


def test_a_removed_member_leaves_both_sets() -> None:
    after = member_changes.remove_member(STATE, 3, "x")
    assert (after.members, after.min_in_sync, after.in_sync) == ((1, 2), 2, {1: "a", 2: "b"})
    assert member_changes.remove_member(ALONE, 2, "x").eligible == {}


def test_the_eligible_set_is_emptied_by_the_change_that_lets_fewer_replicas_commit() -> None:
    assert member_changes.set_min(ALONE, 1, "x").eligible == {}
    assert member_changes.set_min(ALONE, 3, "x").eligible == {2: "b"}, "nothing could be committed, and still cannot"


def test_who_hands_over_stays_in_sync_and_the_successor_is_named() -> None:
    after = member_changes.hand_over(STATE, 2, "x")
    assert (after.leader, after.successor, after.in_sync) == (None, 2, STATE.in_sync)
    elected = elect(after, 2, "b", 6, "y")
    assert (elected.leader, elected.successor, elected.in_sync) == (2, None, STATE.in_sync)


def test_an_accepted_loss_makes_one_replica_electable_above_all_epochs() -> None:
    after = member_changes.accept_loss(STATE, 3, "other", 9, "x")
    assert (after.in_sync, after.eligible, after.epoch, after.loss_accepted_epoch) == ({3: "other"}, {}, 9, 10)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda: member_changes.add_member(STATE, 2, "x"), "member already"),
        (lambda: member_changes.add_member(STATE, 65, "x"), "use 1 to 64"),
        (lambda: member_changes.remove_member(STATE, 4, "x"), "no member"),
        (lambda: member_changes.remove_member(STATE, 1, "x"), "transfer the leadership"),
        (
            lambda: member_changes.remove_member(msgspec.structs.replace(STATE, in_sync={2: "b"}), 2, "x"),
            "only replica 2",
        ),
        (lambda: member_changes.set_min(STATE, 0, "x"), "cannot be in sync"),
        (lambda: member_changes.set_min(STATE, 4, "x"), "cannot be in sync"),
        (lambda: member_changes.accept_loss(STATE, 4, "d", 5, "x"), "no member"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(change: object, sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        change()  # type: ignore[operator]
