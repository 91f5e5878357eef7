"""A planned hand-over, followers that are about to stop, and replicas that were removed."""

import itertools

import msgspec

from sparrow.replication.core.epochs import EpochHistory, EpochStart
from sparrow.replication.core.fetch import Fetch
from sparrow.replication.core.log_position import LogPosition
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.options import ReplicaOptions
from sparrow.replication.core.output import Change, Elect, HandOver, Output
from sparrow.replication.core.replica import Replica
from sparrow.replication.core.snapshot import LeaderKey, Snapshot

STATE = ReplicaSetState(
    set_id="set", members=(1, 2, 3), min_in_sync=2, epoch=4, leader=2, in_sync={1: "a", 2: "b", 3: "c"}
)


def replica() -> Replica:
    numbers = itertools.count()
    log = LogPosition(0, 20, 20, 10, EpochHistory([EpochStart(2, 0), EpochStart(4, 10)]))
    return Replica(ReplicaOptions(set_id="set", replica_id=1), "a", log, lambda: f"id{next(numbers)}")


def snapshot(state: ReplicaSetState, revision: int, holder: LeaderKey | None = None) -> Snapshot:
    return Snapshot(revision=revision, state=state, state_revision=revision, leader=holder)


def leading() -> Replica:
    """Return the leader of epoch 5, whose log ends at 21."""
    made = replica()
    made.observed(snapshot(STATE, 10), 0)
    (call,) = [call for call in made.tick(1000).calls if isinstance(call, Elect)]
    state = msgspec.structs.replace(call.state, in_sync={1: "a", 2: "b", 3: "c"})
    won = LeaderKey(replica_id=1, incarnation="a", epoch=5, change_id=state.change_id, create_revision=11)
    made.observed(snapshot(state, 11, won), 1000)
    made.epoch_started(5, 20, 21)
    return made


def fetch(leader: Replica, replica_id: int, end: int, now_ms: int) -> Output:
    return leader.fetched(
        Fetch(
            set_id="set",
            replica_id=replica_id,
            incarnation="abc"[replica_id - 1],
            epoch=5,
            offset=end,
            last_epoch=5 if end > 20 else 4,
            safe_end=end,
            high_watermark=0,
            bytes_max=100,
            wait_ms=500,
        ),
        now_ms,
    )


def calls(output: Output, kind: type) -> list[object]:
    return [call for call in output.calls if isinstance(call, kind)]


def test_a_leader_hands_over_with_the_fetch_that_shows_that_the_successor_has_everything() -> None:
    leader = leading()
    for follower in (2, 3):
        fetch(leader, follower, 20, 1001)
    assert leader.begin_transfer(3, 3000) is None
    assert not leader.is_leading, "sends are refused meanwhile"
    assert not calls(leader.tick(1010), HandOver), "the successor lacks the epoch record"
    fetch(leader, 2, 21, 1011)
    output = fetch(leader, 3, 21, 1012)
    (call,) = calls(output, HandOver)
    assert isinstance(call, HandOver)
    assert (call.state.successor, call.state.leader, call.leader_revision) == (3, None, 11)
    assert output.step_down is not None, "it has stepped down before the call is made"
    assert leader.leader is None


def test_a_leader_goes_on_when_the_successor_does_not_catch_up() -> None:
    leader = leading()
    for follower in (2, 3):
        fetch(leader, follower, 20, 1001)
    assert leader.begin_transfer(None, 1500) is None
    assert "under way" in str(leader.begin_transfer(2, 1500))
    leader.tick(1500)
    assert leader.is_leading


def test_only_an_in_sync_follower_takes_over() -> None:
    assert "no follower is in sync" in str(leading().begin_transfer(None, 3000))
    leader = leading()
    fetch(leader, 2, 20, 1001)
    assert "replica 3 is not an in-sync follower" in str(leader.begin_transfer(3, 3000))
    assert "does not lead" in str(replica().begin_transfer(None, 3000))


def test_the_successor_goes_first() -> None:
    handed_over = msgspec.structs.replace(STATE, leader=None, successor=1)
    successor = replica()
    successor.observed(snapshot(handed_over, 10), 1000)
    (call,) = calls(successor.tick(1000), Elect)
    assert isinstance(call, Elect)
    assert set(call.state.in_sync) == {1, 2, 3}, "the former leader stays in sync"
    other = replica()
    other.observed(snapshot(msgspec.structs.replace(handed_over, successor=2), 10), 1000)
    assert not calls(other.tick(1999), Elect)
    assert calls(other.tick(2000), Elect), "the successor may have died"


def test_nobody_waits_for_a_follower_that_is_about_to_stop() -> None:
    leader = leading()
    for follower in (2, 3):
        fetch(leader, follower, 21, 1001)
    (call,) = calls(leader.leaves(3, 1010), Change)
    assert isinstance(call, Change)
    assert set(call.state.in_sync) == {1, 2}
    holder = LeaderKey(replica_id=1, incarnation="a", epoch=5, change_id="x", create_revision=11)
    leader.observed(snapshot(call.state, 12, holder), 1020)
    assert not calls(leader.tick(1030), Change), "it does not join again by itself"
    fetch(leader, 3, 21, 1040)
    fetch(leader, 3, 21, 1050)
    (call,) = calls(leader.tick(1060), Change)
    assert isinstance(call, Change)
    assert set(call.state.in_sync) == {1, 2, 3}, "it was started again"


def test_a_removed_replica_neither_follows_nor_elects() -> None:
    removed = replica()
    holder = LeaderKey(replica_id=2, incarnation="b", epoch=4, change_id="x", create_revision=9)
    removed.observed(snapshot(STATE, 10, holder), 0)
    assert removed.follower is not None
    without = msgspec.structs.replace(STATE, members=(2, 3), in_sync={2: "b", 3: "c"})
    removed.observed(snapshot(without, 11, holder), 10)
    assert removed.is_removed
    assert removed.follower is None
    removed.observed(snapshot(without, 12), 20)
    assert not calls(removed.tick(5000), Elect)
    removed.observed(snapshot(STATE, 13, holder), 6000)
    assert removed.follower is not None, "it was added again"


def test_the_high_watermark_waits_for_a_follower_that_could_join() -> None:
    """With one replica in sync everything is committed at once, and a follower is always a little behind."""
    leader = leading()
    assert leader.leader is not None
    alone = msgspec.structs.replace(leader.leader.state, in_sync={1: "a"}, min_in_sync=1)
    holder = LeaderKey(replica_id=1, incarnation="a", epoch=5, change_id="x", create_revision=11)
    leader.observed(snapshot(alone, 12, holder), 1001)
    fetch(leader, 2, 21, 1002)
    leader.appended(31, 31)
    fetch(leader, 2, 21, 1003)
    assert leader.log.high_watermark == 31
    leader.tick(1010)
    leader.appended(41, 41)
    assert leader.log.high_watermark == 31, "it waits"
    fetch(leader, 2, 31, 1011)
    (call,) = calls(leader.tick(1020), Change)
    assert isinstance(call, Change)
    assert set(call.state.in_sync) == {1, 2}


def test_the_high_watermark_does_not_wait_longer_than_the_lag() -> None:
    leader = leading()
    assert leader.leader is not None
    alone = msgspec.structs.replace(leader.leader.state, in_sync={1: "a"}, min_in_sync=1)
    holder = LeaderKey(replica_id=1, incarnation="a", epoch=5, change_id="x", create_revision=11)
    leader.observed(snapshot(alone, 12, holder), 1001)
    fetch(leader, 2, 21, 1002)
    leader.appended(31, 31)
    fetch(leader, 2, 21, 1003)
    leader.tick(1010)
    leader.appended(41, 41)
    leader.tick(2100)
    assert leader.log.high_watermark == 41
