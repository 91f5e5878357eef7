"""What a step of the state machine asks for, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from sparrow.replication.core.fetch import Chunk, Fetch, FetchAnswer, SafeEnd
from sparrow.replication.core.membership import ReplicaSetState


class Read(msgspec.Struct, frozen=True):
    """Read the state of the set, linearizably."""


class Elect(msgspec.Struct, frozen=True, kw_only=True):
    """Write the leader key and the state, if both are as they were read."""

    state: ReplicaSetState
    state_revision: int
    leader_revision: int
    """The creation revision of this replica's own leader key from an earlier life; 0: there must be none."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Write the state, if it is as it was read and this replica still has its leader key."""

    state: ReplicaSetState
    state_revision: int
    leader_revision: int


class Resign(msgspec.Struct, frozen=True):
    """Revoke the lease of a leader key."""

    leader_revision: int


class HandOver(msgspec.Struct, frozen=True, kw_only=True):
    """Write the state and remove this replica's leader key, if both are as they were read."""

    state: ReplicaSetState
    state_revision: int
    leader_revision: int


CoordinatorCall = Read | Elect | Change | Resign | HandOver


@dataclass(slots=True)
class Output:
    """What to do after a step, in the order of the fields. Writes to disk are done before anything is sent."""

    step_down: str | None = None
    """Stop to lead: accept no sends, fail those that wait (their outcome is unknown), and report what was written
    last (`found_tail`), whose output replaces the fetch of this one. The text says why."""
    heard_epoch: int | None = None
    """Note durably that this epoch was heard of, and the incarnation."""
    restart_at: int | None = None
    """Note the new incarnation durably, delete the log, and start an empty one at this offset."""
    truncate_to: int | None = None
    fetch_ahead: tuple[int, Fetch] | None = None
    """Ask the leader for the bytes behind the chunk, while that is written."""
    append: Chunk | None = None
    """Append the bytes of this chunk, and report `stored`; if that fails, `not_stored`."""
    start_epoch: int | None = None
    """Append the epoch record at the end of the log, make it durable, and report `EpochStarted`."""
    committed: int | None = None
    """Everything before it is committed: show it to readers, and complete the sends that wait for it."""
    delete_before: int | None = None
    replies: list[tuple[int, FetchAnswer]] = field(default_factory=list)
    """Answers to fetches, by replica id."""
    fetch: tuple[int, Fetch] | None = None
    acknowledge: tuple[int, SafeEnd] | None = None
    """To the leader, by replica id."""
    calls: list[CoordinatorCall] = field(default_factory=list)
    notice: str | None = None
    """Tell the operator what keeps this replica from taking part."""
    alarm: str | None = None
    """An operator must act; the replica does nothing more."""

    @property
    def blocks(self) -> bool:
        """Whether something is asked for, beside the append of a chunk, that waits for the disk."""
        return (
            self.heard_epoch is not None
            or self.restart_at is not None
            or self.truncate_to is not None
            or self.start_epoch is not None
            or self.delete_before is not None
        )
