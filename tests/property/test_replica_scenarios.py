"""Fault scenarios of replica sets, one at a time, in the simulation. docs/high-availability.md lists them by number."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from tests.support.replica_simulation import SET_ID, TTL_MS, Faults, SimulatedReplica, Simulation

from sparrow.replication.core.fetch import Chunk, Fetch, Rejected, SafeEnd
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.output import Change, Output
from sparrow.replication.core.replica import Replica
from sparrow.replication.core.snapshot import Snapshot

LAG_MS = 1000
"""The `lag_ms` of the simulated replicas."""


class Scenario(Simulation):
    """A replica set without any fault but those of the test."""

    def __init__(self, *, flushes: bool = True, replicas: int = 3) -> None:
        super().__init__(0, replicas=replicas, flushes=flushes)
        self.faults = Faults(0, 0, 5, 0, 0, 0, 0, 5)
        self.is_mixed = False
        self.lead()
        self.run_for(200)

    def run_for(self, duration_ms: int) -> None:
        self.run_until(self.now + duration_ms)

    def lead(self, *, but: SimulatedReplica | None = None, within_ms: int = 20_000) -> SimulatedReplica:
        """Run until a replica, another one than `but`, accepts writes; return it."""

        def leading() -> list[SimulatedReplica]:
            running = [one for one in self.replicas.values() if one is not but and not one.is_paused]
            return [one for one in running if one.core is not None and one.core.is_leading]

        assert self.run_until(self.now + within_ms, lambda: bool(leading())), "nobody leads"
        return leading()[0]

    def leads_nobody(self, for_ms: int) -> bool:
        """Run for a time, and return whether no replica led."""
        return not self.run_until(
            self.now + for_ms,
            lambda: any(one.core is not None and one.core.is_leading for one in self.replicas.values()),
        )

    def commit(self, count: int = 5, within_ms: int = 10_000) -> int:
        """Send writes until so many more are acknowledged; return after how many ms the first one was."""
        begun, target, first = self.now, len(self.acknowledged) + count, 0
        while len(self.acknowledged) < target:
            assert self.now < begun + within_ms, f"{target - len(self.acknowledged)} writes are not acknowledged"
            before = len(self.acknowledged)
            self.write()
            self.run_for(20)
            if len(self.acknowledged) > before and not first:
                first = self.now - begun
        return first

    def others(self, *known: SimulatedReplica) -> list[SimulatedReplica]:
        return [one for one in self.replicas.values() if one not in known]

    def in_sync(self) -> set[int]:
        return set(self.coordinator.state.in_sync)

    def isolate(self, replica: SimulatedReplica, *targets: int) -> None:
        """Cut a replica off from others, in both directions; 0 is the coordinator."""
        for target in targets:
            self.cuts |= {(replica.replica_id, target), (target, replica.replica_id)}

    def said(self, words: str) -> bool:
        return any(words in line for line in self.transcript)


def core_of(replica: SimulatedReplica) -> Replica:
    assert replica.core is not None
    return replica.core


# -- leaders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flushes", [True, False])
def test_a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost(flushes: bool) -> None:
    scenario = Scenario(flushes=flushes)
    scenario.commit()
    first = scenario.lead()
    scenario.write()
    scenario.kill(first)
    begun = scenario.now
    second = scenario.lead(but=first)
    assert scenario.now - begun < 1000, "a refused connection ends the lease at once"
    scenario.commit()
    scenario.start(first)
    scenario.settle()
    assert second.core is not None


def test_a_leader_that_sleeps_through_its_lease_acknowledges_nothing_new() -> None:
    scenario = Scenario()
    scenario.commit()
    first = scenario.lead()
    first.is_paused = True
    second = scenario.lead(but=first)
    scenario.commit()
    known = dict(scenario.acknowledged)
    scenario.run_for(10_000)
    first.is_paused = False
    assert core_of(first).is_leading, "it has not heard of its successor yet"
    scenario.write()  # to both
    lost = first.waiting[-1][1]
    scenario.settle()
    assert lost not in scenario.acknowledged
    assert scenario.said(f"replica {first.replica_id} steps down")
    assert known.items() <= scenario.acknowledged.items()
    assert core_of(second).leader is not None


def test_a_success_that_is_told_late_is_true() -> None:
    scenario = Scenario()
    scenario.commit()
    first = scenario.lead()
    scenario.write()
    value = first.waiting[-1][1]
    end = len(first.disk.cells)
    assert scenario.run_until(
        scenario.now + 1000,
        lambda: all(core_of(one).log.safe_end >= end for one in scenario.others(first)) or not first.waiting,
    )
    epoch, late = core_of(first).heard_epoch, []
    for one in scenario.others(first):
        log = core_of(one).log
        late.append(fetch_of(one, epoch=epoch, offset=log.end, last_epoch=log.last_epoch, safe_end=log.safe_end))
    first.is_paused = True
    scenario.lead(but=first)
    scenario.commit(2)
    first.is_paused = False
    for fetch in late:  # they were on their way before the other replicas heard of the new epoch
        scenario._carry_out(first, core_of(first).fetched(fetch, scenario.now))
    assert value in scenario.acknowledged
    scenario.settle()  # compares every acknowledged write with the history


def fetch_of(replica: SimulatedReplica, **fields: object) -> Fetch:
    core = core_of(replica)
    known = {
        "set_id": SET_ID,
        "replica_id": replica.replica_id,
        "incarnation": core.incarnation,
        "epoch": core.heard_epoch,
        "offset": core.log.end,
        "last_epoch": core.log.last_epoch,
        "safe_end": core.log.safe_end,
        "high_watermark": core.log.high_watermark,
        "bytes_max": 1000,
        "wait_ms": 500,
    }
    return Fetch(**{**known, **fields})  # type: ignore[arg-type]


def test_a_leader_without_the_coordinator_never_makes_a_second_history() -> None:
    scenario = Scenario()
    scenario.commit()
    first = scenario.lead()
    scenario.isolate(first, 0)
    for _ in range(200):
        scenario.write()
        scenario.run_for(50)
    scenario.cuts.clear()
    scenario.settle()
    assert scenario.coordinator.state.epoch > 1


def test_a_leader_without_followers_refuses_and_hands_over() -> None:
    scenario = Scenario()
    scenario.commit()
    first = scenario.lead()
    scenario.isolate(first, *(one.replica_id for one in scenario.others(first)))
    assert scenario.run_until(scenario.now + 5000, lambda: not core_of(first).is_leading)
    assert first.replica_id in scenario.in_sync()
    scenario.lead(but=first)
    scenario.commit()
    scenario.cuts.clear()
    scenario.settle()


def test_a_lone_survivor_waits_for_the_others_and_stays_the_leader() -> None:
    scenario = Scenario()
    scenario.commit()
    leader = scenario.lead()
    for one in scenario.others(leader):
        scenario.kill(one)
    scenario.run_for(3000)
    epoch = scenario.coordinator.state.epoch
    assert scenario.coordinator.state.eligible, "others could lead, but do not run"
    scenario.run_for(30_000)
    assert scenario.coordinator.state.epoch == epoch
    for one in scenario.others(leader):
        scenario.start(one)
    scenario.commit()
    scenario.settle()


@pytest.mark.parametrize("pair", list(itertools.permutations(range(4), 2)))
def test_a_one_way_cut_costs_a_member_at_most(pair: tuple[int, int]) -> None:
    scenario = Scenario()
    scenario.commit()
    scenario.cuts.add(pair)
    for _ in range(100):
        scenario.write()
        scenario.run_for(50)
    before = len(scenario.acknowledged)
    scenario.commit(within_ms=20_000)
    assert len(scenario.acknowledged) > before
    scenario.cuts.clear()
    scenario.settle()


def test_a_blocked_event_loop_costs_the_lease_and_nothing_else() -> None:
    scenario = Scenario()
    scenario.commit()
    first = scenario.lead()
    first.is_paused = True  # the loop that serves also renews
    scenario.lead(but=first, within_ms=5000)
    scenario.commit()
    first.is_paused = False
    scenario.settle()


def test_two_elections_without_data_leave_equal_logs() -> None:
    scenario = Scenario()
    scenario.commit()
    first = scenario.lead()
    scenario.isolate(first, 0, *(one.replica_id for one in scenario.others(first)))
    scenario.write()
    second = scenario.lead(but=first)
    scenario.kill(second)
    scenario.cuts.clear()
    scenario.run_for(3000)
    scenario.start(second)
    scenario.settle()
    logs = [one.disk.cells for one in scenario.replicas.values()]
    assert logs[0] == logs[1] == logs[2]


# -- followers --------------------------------------------------------------------------------------------------------


def test_a_stopped_follower_stalls_sends_for_the_lag_and_returns() -> None:
    scenario = Scenario()
    scenario.commit()
    follower = scenario.others(scenario.lead())[0]
    follower.is_paused = True
    assert scenario.commit(1) < LAG_MS + 700
    assert follower.replica_id not in scenario.in_sync()
    assert scenario.commit(1) < 200, "the next one does not wait"
    follower.is_paused = False
    assert scenario.run_until(scenario.now + 5000, lambda: follower.replica_id in scenario.in_sync())
    scenario.settle()


def test_a_killed_follower_returns_without_a_copy() -> None:
    scenario = Scenario(flushes=False)
    scenario.commit()
    follower = scenario.others(scenario.lead())[0]
    incarnation = follower.disk.incarnation
    scenario.kill(follower)
    scenario.commit()
    scenario.start(follower)
    scenario.settle()
    assert follower.disk.incarnation == incarnation
    assert not scenario.said("starts again")


def test_a_follower_that_lost_power_is_not_elected_before_it_has_caught_up() -> None:
    scenario = Scenario(flushes=False)
    scenario.commit()
    leader = scenario.lead()
    follower = scenario.others(leader)[0]
    old = follower.disk.incarnation
    scenario.kill(follower, loses_power=True)
    scenario.start(follower)
    assert follower.disk.incarnation != old
    assert not core_of(follower)._is_electable()
    assert scenario.run_until(scenario.now + 5000, lambda: old not in scenario.coordinator.state.in_sync.values())
    scenario.commit()
    scenario.settle()
    assert scenario.coordinator.state.in_sync[follower.replica_id] == follower.disk.incarnation


def test_another_member_leads_when_the_leader_dies_with_a_follower_that_lost_power() -> None:
    scenario = Scenario(flushes=False)
    scenario.commit()
    leader = scenario.lead()
    powerless, third = scenario.others(leader)
    scenario.kill(powerless, loses_power=True)
    scenario.kill(leader)
    scenario.start(powerless)
    assert scenario.lead(but=leader) is third
    scenario.start(leader)
    scenario.settle()


def test_nobody_leads_when_only_a_follower_that_lost_power_is_left() -> None:
    scenario = Scenario(flushes=False)
    scenario.commit()
    leader = scenario.lead()
    powerless, third = scenario.others(leader)
    for one in (powerless, third, leader):
        scenario.kill(one, loses_power=one is powerless)
    scenario.start(powerless)
    assert scenario.leads_nobody(20_000)
    scenario.start(third)
    scenario.start(leader)
    scenario.settle()


def test_all_replicas_may_lose_power_with_sync_flush() -> None:
    scenario = Scenario(flushes=True)
    scenario.commit(20)
    for one in scenario.replicas.values():
        scenario.kill(one, loses_power=True)
    for one in scenario.replicas.values():
        scenario.start(one)
    scenario.lead()
    scenario.commit()
    scenario.settle()


def test_nobody_leads_when_all_replicas_lost_power_with_async_flush() -> None:
    scenario = Scenario(flushes=False)
    scenario.commit(20)
    for one in scenario.replicas.values():
        scenario.kill(one, loses_power=True)
    for one in scenario.replicas.values():
        scenario.start(one)
    assert scenario.leads_nobody(30_000), "an operator must decide"


def test_an_eligible_replica_leads_when_the_last_one_standing_crashes() -> None:
    scenario = Scenario(flushes=False)
    scenario.commit()
    last = scenario.lead()
    for one in scenario.others(last):
        scenario.kill(one)
    assert scenario.run_until(scenario.now + 5000, lambda: scenario.in_sync() == {last.replica_id})
    assert scenario.coordinator.state.eligible
    scenario.kill(last, loses_power=True)
    for one in scenario.others(last):
        scenario.start(one)
    scenario.lead(but=last)
    scenario.start(last)
    scenario.settle()


def test_an_empty_disk_is_filled_before_its_replica_can_lead() -> None:
    scenario = Scenario()
    scenario.commit(20)
    leader = scenario.lead()
    follower = scenario.others(leader)[0]
    scenario.kill(follower)
    scenario.replace_disk(follower)
    scenario.start(follower)
    assert not core_of(follower)._is_electable()
    incarnation = follower.disk.incarnation
    assert scenario.run_until(
        scenario.now + 5000, lambda: scenario.coordinator.state.in_sync.get(follower.replica_id) == incarnation
    )
    assert len(follower.disk.cells) >= 20
    scenario.settle()


# -- the coordinator --------------------------------------------------------------------------------------------------


def test_a_member_that_joined_unnoticed_costs_nothing_when_the_leader_dies() -> None:
    scenario = Scenario()
    scenario.commit()
    leader = scenario.lead()
    follower = scenario.others(leader)[0]
    scenario.kill(follower)
    assert scenario.run_until(scenario.now + 5000, lambda: follower.replica_id not in scenario.in_sync())
    scenario.start(follower)
    assert scenario.run_until(scenario.now + 5000, lambda: core_of(follower).follower is not None)
    scenario.faults.answer_lost = scenario.faults.watch_lost = 1.0  # it is applied, and nobody hears of it
    assert scenario.run_until(scenario.now + 5000, lambda: follower.replica_id in scenario.in_sync())
    scenario.isolate(follower, leader.replica_id)  # it gets nothing more, and could lead next
    before = len(scenario.acknowledged)
    for _ in range(10):
        scenario.write()
        scenario.run_for(20)
    assert len(scenario.acknowledged) == before, "the leader must count with the follower that may have joined"
    for one in scenario.others(leader, follower):
        scenario.isolate(one, 0)
    scenario.kill(leader)
    scenario.faults.answer_lost = scenario.faults.watch_lost = 0.0
    assert scenario.lead(but=leader) is follower
    scenario.cuts.clear()
    scenario.commit()
    scenario.start(leader)
    scenario.settle()


def test_nothing_is_committed_while_the_outcome_of_a_change_is_unknown() -> None:
    scenario = Scenario()
    scenario.commit()
    leader = scenario.lead()
    stopped = scenario.others(leader)[0]
    stopped.is_paused = True
    scenario.isolate(leader, 0)
    scenario.write()
    value = leader.waiting[-1][1]
    assert scenario.run_until(scenario.now + LAG_MS + 500, lambda: core_of(leader).leader.pending is not None)  # type: ignore[union-attr]
    scenario.run_for(300)
    assert value not in scenario.acknowledged
    scenario.cuts.clear()
    stopped.is_paused = False
    scenario.settle()


def test_a_leader_without_its_key_cannot_change_the_in_sync_set() -> None:
    scenario = Scenario()
    leader = scenario.lead()
    held = core_of(leader).leader
    assert held is not None
    scenario.coordinator.leader = None
    state = msgspec.structs.replace(held.state, in_sync={leader.replica_id: leader.disk.incarnation})
    change = Change(state=state, state_revision=held.state_revision, leader_revision=held.leader_revision)
    assert not scenario.coordinator.apply(change, leader.replica_id, scenario.now)


def test_a_lease_that_ends_early_costs_an_election_and_nothing_else() -> None:
    scenario = Scenario()
    for _ in range(5):
        scenario.commit()
        scenario.lead()
        scenario.coordinator.leader = None  # etcd lost it, and its keepalive still says that it lives
        scenario.coordinator.revision += 1
        scenario.run_for(2 * TTL_MS)
    scenario.commit()
    scenario.settle()
    assert scenario.coordinator.state.epoch >= 6


def test_no_replica_follows_or_elects_with_a_coordinator_that_went_back() -> None:
    scenario = Scenario()
    old = scenario.coordinator.state
    scenario.commit()
    killed = scenario.lead()
    scenario.kill(killed)
    scenario.lead()
    scenario.commit()
    scenario.start(killed)
    scenario.settle()
    for one in scenario.replicas.values():
        scenario.kill(one)
    coordinator = scenario.coordinator
    coordinator.state, coordinator.leader = old, None
    coordinator.revision = coordinator.state_revision = 1
    cells = {number: list(one.disk.cells) for number, one in scenario.replicas.items()}
    for one in scenario.replicas.values():
        scenario.start(one)
    assert scenario.leads_nobody(20_000), "the old in-sync set may be wrong: an operator must decide"
    assert {number: one.disk.cells for number, one in scenario.replicas.items()} == cells, "nothing is cut or written"


def test_a_coordinator_of_another_set_changes_nothing() -> None:
    scenario = Scenario()
    scenario.commit()
    follower = scenario.others(scenario.lead())[0]
    core, end = core_of(follower), len(follower.disk.cells)
    state = ReplicaSetState(set_id="other", members=(1, 2, 3), min_in_sync=1, epoch=99, in_sync={1: "x"})
    output = core.observed(Snapshot(revision=999, state=state, state_revision=999, leader=None), scenario.now)
    assert output.notice is not None
    assert "another replica set (other)" in output.notice
    output.notice = None
    assert output == Output(), "nothing is written or cut"
    assert (core.heard_epoch, len(follower.disk.cells)) == (1, end)


def test_clocks_that_jump_change_nothing_but_elections() -> None:
    scenario = Scenario()
    for ahead in (3_600_000, 1, 7_200_000):
        scenario.commit(within_ms=20_000)
        for one in scenario.replicas.values():
            one.clock_ms += ahead * one.replica_id
    scenario.settle()


# -- logs -------------------------------------------------------------------------------------------------------------


def test_the_longer_log_of_a_deposed_leader_is_cut() -> None:
    scenario = Scenario()
    scenario.commit()
    first = scenario.lead()
    scenario.isolate(first, *(one.replica_id for one in scenario.others(first)))
    scenario.isolate(first, 0)
    for _ in range(30):
        scenario.write()
    long = len(first.disk.cells)
    second = scenario.lead(but=first)
    scenario.commit(2)
    assert len(second.disk.cells) < long
    scenario.settle()
    assert scenario.said(f"replica {first.replica_id} cuts ")


def test_a_divergence_below_the_high_watermark_is_an_alarm() -> None:
    scenario = Scenario()
    scenario.commit()
    leader = scenario.lead()
    follower = scenario.others(leader)[0]
    scenario.kill(follower)
    scenario.kill(leader)
    scenario.start(leader)
    scenario.commit()
    log = follower.disk
    log.cells[-1] = (2, log.cells[-1][1])  # planted: the leader's epoch 2 starts later
    log.high_watermark = len(log.cells)
    scenario.start(follower)
    with pytest.raises(AssertionError, match=r"no alarm: replica .* has committed bytes up to"):
        scenario.run_for(5000)
    assert core_of(follower).is_stopped


def test_a_group_whose_leader_dies_inside_is_nowhere() -> None:
    scenario = Scenario()
    scenario.commit()
    leader = scenario.lead()
    core = core_of(leader)
    assert core.leader is not None
    start = len(leader.disk.cells)
    for _ in range(3):
        scenario._append_value(leader, core.leader.epoch)
        scenario.groups[leader.disk.cells[-1]] = (start, start + 4)
    scenario._report_log(leader)
    scenario.run_for(300)
    scenario.kill(leader)
    scenario.lead(but=leader)
    scenario.commit()
    scenario.start(leader)
    scenario.settle()
    assert not any(cell in scenario.groups for one in scenario.replicas.values() for cell in one.disk.cells)


def test_followers_end_at_a_whole_record_when_the_leader_dies_between_two_answers() -> None:
    scenario = Scenario()
    scenario.commit()
    leader = scenario.lead()
    follower = scenario.others(leader)[0]
    core = core_of(follower)
    assert core.follower is not None
    end = core.log.end
    follower.incomplete = [(core.follower.epoch, 10_000)]
    core.follower.received = end + 1  # the first part of a record arrived
    scenario.kill(leader)
    scenario.lead(but=leader)
    scenario.commit()
    scenario.start(leader)
    scenario.settle()
    assert all((1, 10_000) not in one.disk.cells for one in scenario.replicas.values())


def test_state_that_retention_writes_again_is_committed_before_anything_is_deleted() -> None:
    scenario = Scenario()
    leader = scenario.lead()
    write_state(scenario, leader)
    scenario.commit(10)
    scenario.rng.seed(1)
    scenario.isolate(leader, *(one.replica_id for one in scenario.others(leader)))
    scenario.trim()  # writes the state again
    scenario.trim()
    assert leader.disk.first == 0, "the state is not committed, so nothing is deleted"
    scenario.kill(leader)
    scenario.cuts.clear()
    scenario.lead(but=leader)
    scenario.start(leader)
    scenario.settle()
    assert all(scenario._state_of(one.disk.cells[one.disk.first :]) == 1 for one in scenario.replicas.values())


def test_a_follower_keeps_old_state_until_it_has_the_state_that_was_written_again() -> None:
    scenario = Scenario()
    leader = scenario.lead()
    follower = scenario.others(leader)[0]
    write_state(scenario, leader)
    after_state = len(leader.disk.cells)
    scenario.commit()
    scenario.kill(follower)
    scenario.commit()
    write_state(scenario, leader)
    leader.rewritten = (after_state, len(leader.disk.cells))
    scenario.run_for(500)
    scenario.trim()
    assert leader.disk.first == after_state
    scenario.chunk_cells_max = 1  # it hears what the leader has deleted long before it has the state
    scenario.start(follower)
    scenario.settle()
    assert follower.disk.first == after_state


def write_state(scenario: Scenario, leader: SimulatedReplica) -> None:
    scenario._append_value(leader, core_of(leader).heard_epoch)
    scenario.states[leader.disk.cells[-1]] = 1
    scenario._flush_later(leader)
    scenario._report_log(leader)


# -- disks ------------------------------------------------------------------------------------------------------------


def test_a_follower_with_a_full_disk_leaves_the_in_sync_set() -> None:
    scenario = Scenario()
    scenario.commit()
    follower = scenario.others(scenario.lead())[0]
    follower.disk.is_full = True
    scenario.commit()
    assert scenario.run_until(scenario.now + 5000, lambda: follower.replica_id not in scenario.in_sync())
    follower.disk.is_full = False
    scenario.settle()


def test_a_leader_with_a_full_disk_hands_over() -> None:
    scenario = Scenario()
    scenario.commit()
    leader = scenario.lead()
    leader.disk.is_full = True
    scenario.run_for(6000)
    scenario.lead(but=leader)
    scenario.commit()
    leader.disk.is_full = False
    scenario.settle()
    assert scenario.said("steps down: the disk is full")


def test_a_replica_that_is_elected_with_a_full_disk_lets_another_lead() -> None:
    scenario = Scenario()
    scenario.commit()
    leader = scenario.lead()
    full, other = scenario.others(leader)
    full.disk.is_full = other.is_paused = True
    scenario.kill(leader)
    scenario.run_for(12_000)
    assert scenario.said(f"replica {full.replica_id} cannot lead")
    other.is_paused = False
    scenario.start(leader)
    scenario.lead(but=full)
    scenario.commit()
    full.disk.is_full = False
    scenario.settle()


def test_one_of_three_full_replicas_leads_for_long_enough_to_delete_old_messages() -> None:
    scenario = Scenario()
    scenario.commit()
    former = scenario.lead()
    for replica in (former, *scenario.others(former)):
        core_of(replica).set_full(True)
        replica.disk.is_nearly_full = True
    scenario.run_for(15_000)
    leader = scenario.lead()
    epoch = core_of(leader).heard_epoch
    scenario.run_for(40_000)
    assert core_of(scenario.lead()).heard_epoch == epoch
    for replica in (former, *scenario.others(former)):
        replica.disk.is_nearly_full = False
    scenario.settle()
    scenario.commit()


def test_a_leader_whose_sync_fails_resigns_and_gets_a_new_incarnation() -> None:
    scenario = Scenario()
    scenario.commit()
    leader = scenario.lead()
    old = leader.disk.incarnation
    scenario.fail_disk(leader)
    assert leader.disk.incarnation != old
    begun = scenario.now
    scenario.lead(but=leader)
    assert scenario.now - begun < 1000
    scenario.commit()
    scenario.start(leader)
    scenario.settle()


def test_a_damaged_replica_is_copied_again() -> None:
    scenario = Scenario()
    scenario.commit(10)
    victim = scenario.others(scenario.lead())[0]
    scenario.kill(victim)
    victim.disk.is_damaged = True
    scenario.start(victim)
    assert not core_of(victim)._is_electable()
    scenario.settle()
    assert scenario.said(f"replica {victim.replica_id} starts again at 0")


# -- forged acknowledgements ------------------------------------------------------------------------------------------


def test_forged_and_stale_acknowledgements_move_nothing() -> None:
    scenario = Scenario()
    scenario.commit()
    leader = scenario.lead()
    stopped, other = scenario.others(leader)
    core = core_of(leader)
    stopped.is_paused = other.is_paused = True
    scenario.write()
    end, mark = len(leader.disk.cells), core.log.high_watermark
    assert end > mark
    scenario._report_log(leader)
    epoch, incarnation = core.heard_epoch, stopped.disk.incarnation
    forged = [
        fetch_of(stopped, set_id="other", offset=end, safe_end=end, last_epoch=epoch),
        fetch_of(stopped, replica_id=9, offset=end, safe_end=end, last_epoch=epoch),
        fetch_of(stopped, replica_id=leader.replica_id, offset=end, safe_end=end, last_epoch=epoch),
        fetch_of(stopped, epoch=epoch - 1, offset=end, safe_end=end, last_epoch=epoch),
        fetch_of(stopped, incarnation="forged", offset=end, safe_end=end, last_epoch=epoch),
        fetch_of(stopped, offset=end + 1, safe_end=end + 1, last_epoch=epoch),
        fetch_of(stopped, offset=end - 1, safe_end=1 << 60, last_epoch=epoch),
    ]
    for fetch in forged:
        output = core.fetched(fetch, scenario.now)
        assert output.committed is None, fetch
        for _, answer in output.replies:
            assert isinstance(answer, Rejected | Chunk)
    words = [
        SafeEnd(set_id="other", replica_id=stopped.replica_id, incarnation=incarnation, epoch=epoch, safe_end=end),
        SafeEnd(set_id=SET_ID, replica_id=stopped.replica_id, incarnation="forged", epoch=epoch, safe_end=end),
        SafeEnd(set_id=SET_ID, replica_id=stopped.replica_id, incarnation=incarnation, epoch=epoch - 1, safe_end=end),
        SafeEnd(set_id=SET_ID, replica_id=stopped.replica_id, incarnation=incarnation, epoch=epoch, safe_end=1 << 60),
        SafeEnd(set_id=SET_ID, replica_id=9, incarnation=incarnation, epoch=epoch, safe_end=end),
    ]
    for word in words:
        assert core.acknowledged(word).committed is None, word
    assert core.log.high_watermark == mark
