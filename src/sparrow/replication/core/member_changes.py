"""What an operator changes in a replica set: its members, how many must be in sync, and who leads.

Any process may write such a change, if the state is still as it was read; the leader may learn of it later.

1. A change never adds to S or E: who has every committed byte is found out by the leader alone.
2. Who is removed leaves S and E at once. At least one replica that may be elected stays.
3. A leader that does not know a change yet commits by the former state. That is safe: its S contains the new one, and
   E is emptied by the change that lets a smaller S commit, before any leader can know it.
4. A leader hands over when it has stopped to append: it stays in S, as it lacks nothing.
"""

from __future__ import annotations

import msgspec

from sparrow.model.errors import Refused
from sparrow.replication.core.membership import ReplicaSetState

REPLICA_ID_MAX = 64


def majority(members: int) -> int:
    """Return the smallest number that is more than half."""
    return members // 2 + 1


def add_member(state: ReplicaSetState, replica_id: int, change_id: str) -> ReplicaSetState:
    """Return the state with one more member, which copies the log and joins S when it has caught up."""
    if replica_id in state.members:
        raise Refused(f"replica {replica_id} is a member already: start it, or choose another number")
    if not 1 <= replica_id <= REPLICA_ID_MAX:
        raise Refused(f"{replica_id} cannot be the number of a replica: use 1 to {REPLICA_ID_MAX}")
    return _with_members(state, tuple(sorted((*state.members, replica_id))), change_id)


def remove_member(state: ReplicaSetState, replica_id: int, change_id: str) -> ReplicaSetState:
    """Return the state without a member. The leader cannot be removed: it must hand over before."""
    if replica_id not in state.members:
        raise Refused(f"replica {replica_id} is no member of the set: its members are {_listed(state.members)}")
    if replica_id == state.leader:
        raise Refused(f"replica {replica_id} was the last to lead: transfer the leadership to another replica first")
    if not ({*state.in_sync, *state.eligible} - {replica_id}):
        raise Refused(f"only replica {replica_id} has every acknowledged message: wait until another one is in sync")
    return _with_members(state, tuple(member for member in state.members if member != replica_id), change_id)


def set_min(state: ReplicaSetState, min_in_sync: int | None, change_id: str) -> ReplicaSetState:
    """Return the state with another number of replicas that must be in sync; None: more than half of the members."""
    needed = majority(len(state.members)) if min_in_sync is None else min_in_sync
    if not 1 <= needed <= len(state.members):
        raise Refused(f"{needed} replicas cannot be in sync: the set has {len(state.members)} members")
    return _changed(state, state.members, needed, change_id, min_is_set=min_in_sync is not None)


def hand_over(state: ReplicaSetState, successor: int, change_id: str) -> ReplicaSetState:
    """Return the state that a leader leaves behind for its successor: nobody leads, and nobody leaves S."""
    assert successor in state.in_sync
    return msgspec.structs.replace(state, leader=None, successor=successor, change_id=change_id)


def accept_loss(
    state: ReplicaSetState, replica_id: int, incarnation: str, epoch: int, change_id: str
) -> ReplicaSetState:
    """Return the state in which a replica may lead that may lack acknowledged messages. Others cut what it lacks.

    `epoch`: the highest epoch that a replica has heard of; a restored coordinator may know an older one.
    """
    if replica_id not in state.members:
        raise Refused(f"replica {replica_id} is no member of the set: its members are {_listed(state.members)}")
    return msgspec.structs.replace(
        state,
        leader=None,
        successor=None,
        in_sync={replica_id: incarnation},
        eligible={},
        epoch=max(state.epoch, epoch),
        loss_accepted_epoch=max(state.epoch, epoch) + 1,
        change_id=change_id,
    )


def _with_members(state: ReplicaSetState, members: tuple[int, ...], change_id: str) -> ReplicaSetState:
    needed = min(state.min_in_sync, len(members)) if state.min_is_set else majority(len(members))
    return _changed(state, members, needed, change_id, min_is_set=state.min_is_set)


def _changed(
    state: ReplicaSetState, members: tuple[int, ...], min_in_sync: int, change_id: str, *, min_is_set: bool
) -> ReplicaSetState:
    in_sync = {member: value for member, value in state.in_sync.items() if member in members}
    eligible = {member: value for member, value in state.eligible.items() if member in members}
    return msgspec.structs.replace(
        state,
        members=members,
        min_in_sync=min_in_sync,
        min_is_set=min_is_set,
        in_sync=in_sync,
        eligible=eligible if len(in_sync) < min_in_sync else {},
        successor=state.successor if state.successor in members else None,
        change_id=change_id,
    )


def _listed(members: tuple[int, ...]) -> str:
    return ", ".join(map(str, members))
