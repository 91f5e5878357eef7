"""What replicas tell operators. All are Sparrow's own."""

from __future__ import annotations

import msgspec

from sparrow.wire.bodies.codec import Body


class FollowerLag(Body, frozen=True):
    """A follower, as its leader sees it."""

    replica_id: int
    safe_end: int
    lag_bytes: int
    lag_ms: int
    """How long ago it had everything that the leader had; 0 if it has everything now."""


class ReplicaStatus(Body, frozen=True):
    """What a replica is and has."""

    set_id: str
    replica_id: int
    incarnation: str
    role: str
    """leader, follower, candidate (it follows nobody), removed, or stopped (an operator must act)."""
    epoch: int
    """The highest epoch that it has heard of."""
    first: int
    end: int
    safe_end: int
    high_watermark: int
    followers: list[FollowerLag] = msgspec.field(default_factory=list)
    """Only of a leader."""


class ElectedLeader(msgspec.Struct, frozen=True):
    """The replica that holds the leadership of a set."""

    replica_id: int
    create_revision: int
    """It differs between two leaderships, also of the same replica."""
    address: str


class ReplicaSetMembers(msgspec.Struct, frozen=True):
    """Who belongs to a set, and who has all that is committed. Replica ids map to incarnations."""

    set_id: str
    members: tuple[int, ...]
    min_in_sync: int
    epoch: int = 0
    in_sync: dict[int, str] = {}
    eligible: dict[int, str] = {}
    is_fixed: bool = False
    """A master and its slaves: `members` are all numbers that slaves may have."""


class ReplicaSetSnapshot(msgspec.Struct, frozen=True):
    """What the coordinator of a set holds: what operators read of the snapshot that replicas exchange."""

    state: ReplicaSetMembers
    leader: ElectedLeader | None = None
    addresses: dict[int, str] = {}


class LogChecksums(Body, frozen=True):
    """The CRC-32 of each block."""

    blocks: list[int]


class ViewChecksum(Body, frozen=True):
    """An entry of a view: a queue or a subject of the state."""

    name: str
    physical_offset: int
    """Of the newest record that it was made from; -1 if there is none in the range."""
    entries: int
    crc: int


class ViewChecksums(Body, frozen=True):
    """A page of a view, in the order of names; the last one is not full."""

    page: list[ViewChecksum]
    is_last: bool
