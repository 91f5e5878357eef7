"""What the coordinator holds of a replica set, as one value: the state, and the key of the leader."""

from __future__ import annotations

import msgspec

from sparrow.replication.core.membership import ReplicaSetState


class LeaderKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key that a leader holds by its lease."""

    replica_id: int
    incarnation: str
    epoch: int
    change_id: str
    create_revision: int
    address: str = ""
    """Where the leader takes fetches."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the coordinator holds, at one revision."""

    revision: int
    state: ReplicaSetState
    state_revision: int
    leader: LeaderKey | None
    addresses: dict[int, str] = {}
    """Of the replicas that run, and for a while of those that were killed."""

    @property
    def leader_address(self) -> str:
        """Where the leader takes fetches; empty if nobody leads."""
        return self.leader.address if self.leader is not None else ""

    def running_electable(self) -> set[int]:
        """Return the replicas that run and have every committed byte."""
        return self.addresses.keys() & {*self.state.in_sync, *self.state.eligible}
