"""Changes of a replica set: who is in sync, who is eligible, and what is committed."""

from sparrow.replication.core.membership import (
    ReplicaSetState,
    elect,
    high_watermark,
    is_electable,
    join,
    leave,
    next_epoch,
)

STATE = ReplicaSetState(
    set_id="set", members=(1, 2, 3), min_in_sync=2, epoch=4, leader=1, in_sync={1: "a", 2: "b", 3: "c"}
)


def test_an_epoch_is_above_all_that_are_known() -> None:
    assert next_epoch(4, 7, 5) == 8


def test_the_former_leader_leaves_the_in_sync_set() -> None:
    after = elect(STATE, 2, "b", 5, "x")
    assert (after.in_sync, after.eligible, after.leader, after.epoch) == ({2: "b", 3: "c"}, {}, 2, 5)


def test_the_last_replica_standing_leaves_the_others_eligible() -> None:
    """They left while nothing could be committed, so one of them may lead when the last one is lost."""
    two = leave(STATE, 3, "x")
    assert (two.in_sync, two.eligible) == ({1: "a", 2: "b"}, {})
    one = leave(two, 2, "y")
    assert (one.in_sync, one.eligible) == ({1: "a"}, {2: "b"})
    assert is_electable(one, 2, "b")
    assert not is_electable(one, 2, "another incarnation")
    assert not is_electable(one, 3, "c"), "it left while the others could still commit"
    after = elect(one, 2, "b", 5, "z")
    assert (after.in_sync, after.eligible) == ({2: "b"}, {1: "a"})


def test_the_eligible_set_is_emptied_when_enough_replicas_are_in_sync() -> None:
    alone = leave(leave(STATE, 3, "x"), 2, "y")
    assert join(alone, 3, "new", "z").eligible == {}


def test_nothing_is_committed_while_too_few_replicas_are_in_sync() -> None:
    alone = leave(leave(STATE, 3, "x"), 2, "y")
    assert high_watermark(5, {(1, "a"): 9}, (alone,)) == 5


def test_the_slowest_replica_of_both_states_decides() -> None:
    two = leave(STATE, 3, "x")
    acknowledged = {(1, "a"): 9, (2, "b"): 8, (3, "c"): 7}
    assert high_watermark(5, acknowledged, (two,)) == 8
    assert high_watermark(5, acknowledged, (STATE, two)) == 7
    assert high_watermark(8, acknowledged, (STATE, two)) == 8, "it never moves back"
