"""The state of a replica set that the coordinator holds, and how it may change.

- N: the configured members. S: the in-sync set. E: the eligible set. `min_in_sync`: how many must be in S before
  anything is committed.
- Each change is a new value; the coordinator accepts it only if nobody else has changed the state since it was read.

1. A member of S or E has every committed byte, as long as it has the incarnation that is noted there. Only such a
   replica may be elected.
2. Who leaves S while fewer than `min_in_sync` remain moves to E: nothing can be committed from then on, so it lacks
   nothing. E is emptied when S is large enough again.
3. Epochs rise with every election.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class ReplicaSetState(msgspec.Struct, frozen=True, kw_only=True):
    """What the coordinator knows of a replica set. Replica ids map to incarnations."""

    set_id: str
    members: tuple[int, ...]
    min_in_sync: int
    epoch: int = 0
    leader: int | None = None
    """The replica that was elected last; it may be dead."""
    in_sync: dict[int, str] = {}
    eligible: dict[int, str] = {}
    change_id: str = ""
    """A random value of the change that made this state: its author recognises it when the answer was lost."""
    min_is_set: bool = False
    """An operator has chosen `min_in_sync`; otherwise it is more than half of the members."""
    successor: int | None = None
    """The replica that the last leader has handed over to; the others let it go first."""
    is_fixed: bool = False
    """Roles are fixed, as with RocketMQ's master and slaves: nobody joins or leaves S, and nobody else is elected."""
    loss_accepted_epoch: int = 0
    """An operator accepts that committed bytes of epochs before this one are lost."""


def next_epoch(*known: int) -> int:
    """Return the epoch of a new leadership, above all that are known."""
    return 1 + max(known)


def is_electable(state: ReplicaSetState, replica_id: int, incarnation: str) -> bool:
    """Return whether the replica has every committed byte."""
    return incarnation in (state.in_sync.get(replica_id), state.eligible.get(replica_id))


def elect(state: ReplicaSetState, replica_id: int, incarnation: str, epoch: int, change_id: str) -> ReplicaSetState:
    """Return the state after an election.

    The former leader leaves S: it is dead, or has lost its lease. One that has handed over stays.
    """
    assert epoch > state.epoch
    in_sync = {member: value for member, value in state.in_sync.items() if member != state.leader}
    in_sync[replica_id] = incarnation
    left = {member: value for member, value in state.in_sync.items() if member not in in_sync}
    return msgspec.structs.replace(
        state,
        epoch=epoch,
        leader=replica_id,
        successor=None,
        in_sync=in_sync,
        eligible=_eligible(state, in_sync, left),
        change_id=change_id,
    )


def join(state: ReplicaSetState, replica_id: int, incarnation: str, change_id: str) -> ReplicaSetState:
    """Return the state after a replica has joined S."""
    in_sync = {**state.in_sync, replica_id: incarnation}
    return msgspec.structs.replace(state, in_sync=in_sync, eligible=_eligible(state, in_sync, {}), change_id=change_id)


def leave(state: ReplicaSetState, replica_id: int, change_id: str) -> ReplicaSetState:
    """Return the state after a replica has left S."""
    in_sync = {member: value for member, value in state.in_sync.items() if member != replica_id}
    left = {member: value for member, value in state.in_sync.items() if member == replica_id}
    return msgspec.structs.replace(
        state, in_sync=in_sync, eligible=_eligible(state, in_sync, left), change_id=change_id
    )


def _eligible(state: ReplicaSetState, in_sync: Mapping[int, str], left: Mapping[int, str]) -> dict[int, str]:
    if len(in_sync) >= state.min_in_sync:
        return {}
    return {member: value for member, value in {**state.eligible, **left}.items() if member not in in_sync}


def high_watermark(
    current: int,
    safe_ends: Mapping[tuple[int, str], int],
    states: tuple[ReplicaSetState, ...],
) -> int:
    """Return up to where the log is committed.

    `safe_ends`: what each replica, the leader included, has acknowledged in this epoch, by id and incarnation.
    `states`: the state of the set and, while the outcome of a change is unknown, the changed one; both must allow it.
    Safe ends never lie inside an atomic append, and so does the result.
    """
    if any(len(state.in_sync) < state.min_in_sync for state in states):
        return current
    reached = min(safe_ends.get(member, -1) for state in states for member in state.in_sync.items())
    return max(current, reached)
