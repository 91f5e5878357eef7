"""An operator changes a simulated replica set under faults: every promise is kept, and a broken rule is found out."""

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.support.replica_operations import OperatedSimulation

from sparrow.replication.core import member_changes
from sparrow.replication.core.leader import Leader
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.replica import Replica

SEEDS = 200 if os.environ.get("SPARROW_SCALE", "smoke") == "smoke" else 10_000
PARTS, BROKEN_SEEDS = 4, 1000
with_members = member_changes._with_members
changed_state = member_changes._changed
Members = tuple[int, ...]


@pytest.mark.parametrize("part", range(PARTS))
def test_no_operation_breaks_a_promise(part: int) -> None:
    acknowledged, operations = 0, Counter[str]()
    for seed in range(part, SEEDS, PARTS):
        simulation = OperatedSimulation.of_seed(seed)
        simulation.run()
        acknowledged += len(simulation.acknowledged)
        operations.update(simulation.operations)
    assert acknowledged > 500, "the simulation must do something"
    assert min(operations.values()) > 3, operations


# -- rules broken on purpose ------------------------------------------------------------------------------------------


def a_new_member_is_in_sync_at_once(state: ReplicaSetState, members: Members, change_id: str) -> ReplicaSetState:
    changed = with_members(state, members, change_id)
    added = {member: "i1" for member in members if member not in state.members}
    return msgspec.structs.replace(changed, in_sync={**changed.in_sync, **added})


def the_eligible_set_survives_a_smaller_min(
    state: ReplicaSetState, members: Members, min_in_sync: int, change_id: str, **named: Any
) -> ReplicaSetState:
    changed = changed_state(state, members, min_in_sync, change_id, **named)
    kept = {member: value for member, value in state.eligible.items() if member in members}
    return msgspec.structs.replace(changed, eligible=kept)


def any_follower_takes_over(self: Leader) -> bool:
    return True


def a_leader_hands_over_and_goes_on(self: Replica, _why: str, _output: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (member_changes, "_with_members", a_new_member_is_in_sync_at_once),
        (member_changes, "_changed", the_eligible_set_survives_a_smaller_min),
        (Leader, "successor_is_ready", property(any_follower_takes_over)),
        (Replica, "_step_down", a_leader_hands_over_and_goes_on),
    ],
    ids=["new member in sync", "eligible survives", "any successor", "goes on to lead"],
)
def test_a_broken_rule_is_found(
    owner: Any, name: str, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    for seed in range(BROKEN_SEEDS):
        try:
            OperatedSimulation.of_seed(seed).run()
        except (AssertionError, KeyError):
            return
    pytest.fail(f"{BROKEN_SEEDS} seeds did not notice it")
