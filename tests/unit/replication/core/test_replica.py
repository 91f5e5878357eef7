"""Roles of a replica: elections, and what ends a leadership."""

import itertools

import msgspec

from sparrow.replication.core.epochs import EpochHistory, EpochStart
from sparrow.replication.core.fetch import Fetch, Rejected
from sparrow.replication.core.log_position import LogPosition
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.options import ReplicaOptions
from sparrow.replication.core.output import Elect, Output, Read, Resign
from sparrow.replication.core.replica import Replica
from sparrow.replication.core.snapshot import LeaderKey, Snapshot

STATE = ReplicaSetState(
    set_id="set", members=(1, 2, 3), min_in_sync=2, epoch=4, leader=2, in_sync={1: "a", 2: "b", 3: "c"}
)


def replica(incarnation: str = "a") -> Replica:
    numbers = itertools.count()
    log = LogPosition(0, 20, 20, 10, EpochHistory([EpochStart(2, 0), EpochStart(4, 10)]))
    return Replica(ReplicaOptions(set_id="set", replica_id=1), incarnation, log, lambda: f"id{next(numbers)}")


def key(replica_id: int, epoch: int, change_id: str = "x", revision: int = 9) -> LeaderKey:
    return LeaderKey(replica_id=replica_id, incarnation="a", epoch=epoch, change_id=change_id, create_revision=revision)


def snapshot(leader: LeaderKey | None, revision: int = 10, state: ReplicaSetState = STATE) -> Snapshot:
    return Snapshot(revision=revision, state=state, state_revision=revision, leader=leader)


def election(of: Replica, now_ms: int = 1000) -> Elect | None:
    calls = [call for call in of.tick(now_ms).calls if isinstance(call, Elect)]
    return calls[0] if calls else None


def lead(chosen: Replica) -> Output:
    """Let the replica win an election and begin its epoch."""
    chosen.observed(snapshot(None), 0)
    call = election(chosen)
    assert call is not None
    won = key(1, call.state.epoch, call.state.change_id, 11)
    output = chosen.observed(snapshot(won, 11, call.state), 1000)
    assert output.start_epoch == call.state.epoch
    return chosen.epoch_started(call.state.epoch, 20, 21)


def test_a_candidate_waits_a_moment_and_takes_a_higher_epoch() -> None:
    candidate = replica()
    candidate.observed(snapshot(None), 1000)
    assert election(candidate, 1009) is None
    call = election(candidate, 1010)
    assert call is not None
    assert (call.state.epoch, call.state.leader, call.state.in_sync) == (5, 1, {1: "a", 3: "c"})
    assert (call.state_revision, call.leader_revision) == (10, 0)


def test_a_replica_that_may_lack_committed_bytes_is_no_candidate() -> None:
    candidate = replica("another incarnation")
    candidate.observed(snapshot(None), 0)
    assert election(candidate) is None


def test_a_leader_serves_once_its_epoch_record_is_durable() -> None:
    chosen = replica()
    lead(chosen)
    assert chosen.is_leading
    assert chosen.log.epochs.last == 5


def test_a_restarted_leader_needs_a_new_epoch_although_its_lease_still_lives() -> None:
    restarted = replica()
    output = restarted.observed(snapshot(key(1, 4)), 0)
    assert output.start_epoch is None
    call = election(restarted)
    assert call is not None
    assert (call.state.epoch, call.leader_revision) == (5, 9)


def test_a_leader_steps_down_when_its_key_is_gone() -> None:
    chosen = replica()
    lead(chosen)
    output = chosen.observed(snapshot(None, 12), 2000)
    assert output.step_down is not None
    assert chosen.leader is None


def test_a_leader_steps_down_when_a_fetch_names_a_higher_epoch() -> None:
    chosen = replica()
    lead(chosen)
    fetch = Fetch(
        set_id="set",
        replica_id=3,
        incarnation="c",
        epoch=6,
        offset=21,
        last_epoch=5,
        safe_end=21,
        high_watermark=0,
        bytes_max=1,
        wait_ms=1,
    )
    output = chosen.fetched(fetch, 2000)
    assert output.step_down is not None
    ((_, answer),) = output.replies
    assert isinstance(answer, Rejected)
    assert answer.epoch == 6
    # A replica of another set changes nothing.
    chosen = replica()
    lead(chosen)
    assert chosen.fetched(msgspec.structs.replace(fetch, set_id="other"), 2000).step_down is None


def test_a_late_snapshot_is_ignored() -> None:
    chosen = replica()
    lead(chosen)
    assert chosen.observed(snapshot(None, 9), 2000).step_down is None
    assert chosen.is_leading


def test_a_coordinator_restored_from_an_old_copy_elects_nobody() -> None:
    candidate = replica()
    candidate.observed(snapshot(None, state=msgspec.structs.replace(STATE, epoch=3)), 0)
    assert election(candidate) is None


def test_the_state_of_another_set_is_ignored() -> None:
    candidate = replica()
    candidate.observed(snapshot(None, state=msgspec.structs.replace(STATE, set_id="other")), 0)
    assert election(candidate) is None


def test_a_follower_follows_the_holder_of_the_leader_key() -> None:
    following = replica()
    output = following.observed(snapshot(key(2, 4)), 0)
    assert output.fetch is not None
    target, fetch = output.fetch
    assert (target, fetch.epoch, fetch.offset, fetch.last_epoch) == (2, 4, 20, 4)


def test_the_lease_of_a_leader_that_refuses_connections_is_revoked() -> None:
    following = replica()
    following.observed(snapshot(key(2, 4)), 0)
    assert following.fetch_failed(4, 10, is_refused=True).calls == [Resign(9)]
    assert not following.fetch_failed(3, 10, is_refused=True).calls, "another leader was asked"
    assert following.fetch_failed(4, 20).calls == []


def test_a_leader_without_enough_followers_resigns_if_another_replica_could_lead() -> None:
    chosen = replica()
    lead(chosen)
    assert chosen.leader is not None
    alone = msgspec.structs.replace(chosen.leader.state, in_sync={1: "a"}, eligible={3: "c"})
    seen = snapshot(key(1, 5, revision=11), 12, alone)
    chosen.observed(seen, 2000)
    assert chosen.tick(2001).step_down is None
    assert chosen.tick(7001).step_down is None, "replica 3 does not run"
    chosen.observed(msgspec.structs.replace(seen, revision=13, addresses={1: "a:1", 3: "c:1"}), 8000)
    assert chosen.tick(8001).step_down is None
    output = chosen.tick(13_001)
    assert output.step_down is not None
    assert Resign(11) in output.calls
    assert output.calls[0] == Read()
