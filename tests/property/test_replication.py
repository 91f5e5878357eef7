"""Replica sets by simulation: 2,000 seeds keep every promise, and a protocol with one rule broken is found out."""

import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.property import test_replica_scenarios as scenarios
from tests.support.replica_simulation import Disk, Simulation

from sparrow.replication.core import follower, membership
from sparrow.replication.core.candidacy import Candidacy
from sparrow.replication.core.fetch import Diverged, Fetch
from sparrow.replication.core.follower import Follower
from sparrow.replication.core.leader import Leader
from sparrow.replication.core.log_position import LogPosition
from sparrow.replication.core.membership import ReplicaSetState, high_watermark
from sparrow.replication.core.output import Output
from sparrow.replication.core.replica import Replica
from sparrow.replication.core.snapshot import LeaderKey

IS_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
SEEDS, PARTS = 8000 if IS_THOROUGH else 2000, 8
"""About 2,000 steps each."""
BROKEN_SEEDS = 600
"""The rarest of the broken rules below needs about 150."""
FIRST_SEED = secrets.randbelow(1 << 40) if IS_THOROUGH else 0
"""`make fault` tries other seeds each time. A failure prints its seed, and the command that replays it."""
SafeEnds = Mapping[tuple[int, str], int]
States = tuple[ReplicaSetState, ...]


@pytest.mark.parametrize("part", range(PARTS))
def test_no_fault_breaks_a_promise(part: int) -> None:
    acknowledged = epochs = 0
    for seed in range(part, SEEDS, PARTS):
        simulation = Simulation.of_seed(FIRST_SEED + seed)
        simulation.run()
        acknowledged += len(simulation.acknowledged)
        epochs += simulation.coordinator.state.epoch
    assert acknowledged > 5000, "the simulation must do something"
    assert epochs > 500, "leaders must change"


# -- rules broken on purpose ------------------------------------------------------------------------------------------


def a_restarted_leader_continues_its_epoch(self: Candidacy, holder: LeaderKey) -> bool:
    return holder.replica_id == self.options.replica_id


def changes_with_unknown_outcome_do_not_count(current: int, safe_ends: SafeEnds, states: States) -> int:
    return high_watermark(current, safe_ends, states[:1])


def too_few_replicas_commit(current: int, safe_ends: SafeEnds, states: States) -> int:
    return max(current, min(safe_ends.get(member, -1) for state in states for member in state.in_sync.items()))


def any_majority_commits(current: int, safe_ends: SafeEnds, states: States) -> int:
    ends, needed = sorted(safe_ends.values(), reverse=True), len(states[0].members) // 2
    return max(current, ends[needed]) if len(ends) > needed else current


def everybody_is_electable(*_: Any) -> bool:
    return True


def every_incarnation_is_electable(state: ReplicaSetState, replica_id: int, _: str) -> bool:
    return replica_id in state.in_sync or replica_id in state.eligible


def the_eligible_set_is_never_emptied(state: ReplicaSetState, in_sync: Mapping[int, str], left: Any) -> dict[int, str]:
    return {member: value for member, value in {**state.eligible, **left}.items() if member not in in_sync}


def a_follower_cuts_to_its_high_watermark(log: LogPosition, _: Diverged) -> int:
    return log.high_watermark


def a_follower_does_not_cut(log: LogPosition, _: Diverged) -> int:
    return log.end


def everybody_joins(*_: Any) -> bool:
    return True


def every_chunk_is_accepted(*_: Any) -> bool:
    return True


def logs_are_not_compared(*_: Any) -> None:
    return None


def everything_written_is_shown(self: LogPosition, _: int) -> bool:
    moved = self.end > self.high_watermark
    self.high_watermark = self.end
    return moved


def an_epoch_is_used_twice(*known: int) -> int:
    return max(known)


def waiting_sends_survive_their_leader(self: Replica, *_: Any) -> None:
    self.leader = None


def a_follower_commits_half_a_group(self: Follower, end: int, *marks: Any) -> None:
    safe_end, _, now_ms, output = marks
    STORED(self, end, safe_end, end, now_ms, output)


def half_a_group_is_safe(self: Simulation, disk: Disk) -> int:
    return disk.synced if self.flushes else len(disk.cells)


def a_follower_deletes_what_its_leader_deleted_at_once(self: Follower, output: Output) -> None:
    self._leader_mark = 0
    APPLY_MARKS(self, output)


def a_damaged_log_is_continued(self: Follower, now_ms: int) -> Fetch:
    self._must_copy = False
    return MAKE_FETCH(self, now_ms)


STORED, APPLY_MARKS, MAKE_FETCH = Follower.stored, Follower._apply_marks, Follower._make_fetch


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Candidacy, "has_won", a_restarted_leader_continues_its_epoch),
        (membership, "next_epoch", an_epoch_is_used_twice),
        (Leader, "_verify", logs_are_not_compared),
        (Follower, "accepts", every_chunk_is_accepted),
        (membership, "high_watermark", too_few_replicas_commit),
        (membership, "high_watermark", any_majority_commits),
        (membership, "is_electable", everybody_is_electable),
        (membership, "is_electable", every_incarnation_is_electable),
        (membership, "_eligible", the_eligible_set_is_never_emptied),
        (follower, "truncation_point", a_follower_cuts_to_its_high_watermark),
        (follower, "truncation_point", a_follower_does_not_cut),
        (Leader, "may_join", everybody_joins),
        (Replica, "_step_down", waiting_sends_survive_their_leader),
        (LogPosition, "commit_to", everything_written_is_shown),
        (Follower, "stored", a_follower_commits_half_a_group),
        (Simulation, "_safe_end", half_a_group_is_safe),
        (Follower, "_make_fetch", a_damaged_log_is_continued),
    ],
    ids=lambda value: value.__name__ if callable(value) and not isinstance(value, type) else "",
)
def test_a_broken_rule_is_found(
    owner: Any, name: str, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    for seed in range(BROKEN_SEEDS):
        try:
            Simulation.of_seed(seed).run()
        except AssertionError:
            return
    pytest.fail(f"{BROKEN_SEEDS} seeds did not notice it")


@pytest.mark.parametrize(
    ("owner", "name", "broken", "scenario"),
    [
        (
            membership,
            "high_watermark",
            changes_with_unknown_outcome_do_not_count,
            scenarios.test_a_member_that_joined_unnoticed_costs_nothing_when_the_leader_dies,
        ),
        (
            Follower,
            "_apply_marks",
            a_follower_deletes_what_its_leader_deleted_at_once,
            scenarios.test_a_follower_keeps_old_state_until_it_has_the_state_that_was_written_again,
        ),
    ],
    ids=["unknown outcomes", "deletion at once"],
)
def test_a_broken_rule_that_chance_seldom_meets_is_found_by_its_scenario(
    owner: Any, name: str, broken: Callable[..., Any], scenario: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        scenario()


def test_a_seed_decides_everything() -> None:
    first, second = Simulation.of_seed(7), Simulation.of_seed(7)
    first.run()
    second.run()
    assert first.transcript == second.transcript
    assert first.committed == second.committed
